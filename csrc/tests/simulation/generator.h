// Generates random worlds: small clusters, few keys and many conflicts.
#pragma once

#include <cstdint>

#include "simulation/spec.h"

namespace adaps::simulation {

// A world depends only on seed and number.
WorldSpec random_world(std::uint64_t seed, std::uint64_t number);

}  // namespace adaps::simulation
