// Nodes of a cluster that were not closed. They serve the other nodes until the process ends.
#pragma once

#include <memory>

#include "node/node.h"

namespace adaps::bindings {

// Takes ownership of a node on which no call is running. If the process exits with status 0, the node ends
// together with all others, as with Node::close. Otherwise, or if a signal kills the process, the other nodes
// detect its loss.
void serve_until_exit(std::unique_ptr<Node> node);

// Ends the nodes as at the exit of the process. Processes that end without exit handlers call it. With
// `well`, blocks until all other nodes have ended, at most for the stall timeout, and exits with status 1 if
// one of them fails.
void end_served_nodes(bool well);

}  // namespace adaps::bindings
