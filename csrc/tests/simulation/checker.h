// Checks the workers' observations in a simulated world against the promises of the parameter server. It does
// not use the protocol, only the calls' start and end, and the values that they wrote and read.
#pragma once

#include <span>
#include <vector>

#include "simulation/history.h"

namespace adaps::simulation {

// Checks for lost or doubled updates, read-your-writes, monotonic reads, visibility after wait_sync, order of
// sets, and duplicates. `last` has the final content of every key. Throws Violation.
void check_history(const History& history, std::span<const Content> last);

}  // namespace adaps::simulation
