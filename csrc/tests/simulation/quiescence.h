// What must hold of the nodes' state when a world has come to rest.
#pragma once

#include <vector>

#include "simulation/world.h"

namespace adaps::simulation {

// One owner of each key, every replica equal to it bit by bit, nothing on its way. Returns what each key
// contains; throws Violation.
std::vector<Content> check_at_rest(World& world);

// Live intents have their effect; extending them, reading what is local and doing nothing sends no message.
void check_intents(World& world);

// After the end of all intents: no replica, no holder, no slot, no counter is left over, and the values stay.
void check_after_end(World& world, const std::vector<Content>& before);

// Runs a world and checks everything; throws Violation.
void run_and_check(World& world);

}  // namespace adaps::simulation
