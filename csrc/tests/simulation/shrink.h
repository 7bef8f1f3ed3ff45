// Makes a failing world small.
#pragma once

#include "simulation/mutants.h"
#include "simulation/spec.h"

namespace adaps::simulation {

// The world with as few calls as possible that still breaks the same promise.
WorldSpec shrink(WorldSpec spec, Mutant mutant);

}  // namespace adaps::simulation
