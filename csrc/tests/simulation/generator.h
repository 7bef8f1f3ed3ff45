// Random worlds: small clusters, few keys and many conflicts.
#pragma once

#include <cstdint>

#include "simulation/spec.h"

namespace adaps::simulation {

// The same world for the same number, whatever was generated before.
WorldSpec random_world(std::uint64_t seed, std::uint64_t number);

}  // namespace adaps::simulation
