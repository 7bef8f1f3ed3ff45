// Invariants of the nodes' state when a world has come to rest.
#pragma once

#include "simulation/checker.h"
#include "simulation/world.h"

namespace adaps::simulation {

// Checks that each key has one owner, that every replica is equal to it bit by bit, and that no message is on
// the network. Returns the contents of the rows. Throws Violation.
Rows check_at_rest(World& world);

// Checks that current intents have their effect, and that extended intents, local reads and idle time send no
// message.
void check_intents(World& world);

// Checks the state after the end of all intents: no replica, holder, slot or counter remains, and values are
// unchanged.
void check_after_end(World& world, const Rows& before);

// Runs a world and checks everything. Throws Violation.
void run_and_check(World& world);

}  // namespace adaps::simulation
