// Checks what the workers of a world saw against the promises of the parameter server. It knows nothing of
// the protocol: only which calls began and ended when, what they wrote and what they read.
#pragma once

#include <span>
#include <vector>

#include "simulation/history.h"

namespace adaps::simulation {

// No lost or doubled update, read-your-writes, monotonic reads, visibility after wait_sync, order of sets,
// duplicates. `last` is what every key contains in the end. Throws Violation.
void check_history(const History& history, std::span<const Content> last);

}  // namespace adaps::simulation
