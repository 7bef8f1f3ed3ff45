// Checks the workers' observations in a simulated world against the promises of the parameter server. It does
// not use the protocol, only the calls' start and end, and the values that they wrote and read.
#pragma once

#include <vector>

#include "simulation/history.h"

namespace adaps::simulation {

// Contents of the rows of all keys at one time.
struct Rows {
  std::vector<Content> values;
  std::vector<StateRead> states;  // of the rows whose optimizer state can be decoded
  std::vector<bool> has_ended{};  // whether a row was retired before, so that its content is unknown
};

// Checks for lost or doubled updates, read-your-writes, monotonic reads, visibility after wait_sync, order of
// sets, and duplicates. Checks that the calls about each optimizer state, and the gradients, have an effect
// in some order that agrees with the calls' times. `last` has the final contents. Throws Violation.
void check_history(const History& history, const Rows& last);

}  // namespace adaps::simulation
