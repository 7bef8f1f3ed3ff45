// Minimizes a failing world.
#pragma once

#include "simulation/mutants.h"
#include "simulation/spec.h"

namespace adaps::simulation {

// Returns the smallest world found that still breaks the same promise.
WorldSpec shrink(WorldSpec spec, Mutant mutant);

}  // namespace adaps::simulation
