// Nodes of a cluster that nobody closed: they serve the others until the process ends, and end with them.
#pragma once

#include <memory>

#include "node/node.h"

namespace adaps::bindings {

// Takes over a node that is in no call. When the process exits with status 0, it ends together with all
// others, as Node::close does; otherwise, or if a signal kills the process, the others see that they lost it.
void serve_until_exit(std::unique_ptr<Node> node);

// What the exit of the process does, for processes that end without it. If `well`, blocks until all other
// nodes end as well, at most for the stall timeout, and exits with status 1 if one of them fails.
void end_served_nodes(bool well);

}  // namespace adaps::bindings
