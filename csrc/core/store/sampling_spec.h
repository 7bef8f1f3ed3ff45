// How samples of a table's rows are drawn.
#pragma once

#include <cstdint>
#include <memory>

#include "store/distribution.h"

namespace adaps {

enum class SamplingScheme : std::uint8_t { kNaive, kPreloc, kPool, kLocal };

struct SamplingSpec {
  std::shared_ptr<const Distribution> distribution;
  SamplingScheme scheme = SamplingScheme::kLocal;
  // Whether a row may occur twice in one sample.
  bool replacement = true;
  std::uint64_t seed = 0;
  // For the scheme `pool`: the number of rows in the pool.
  std::uint64_t pool_size = 0;
  // For the scheme `pool`: the number of times that a row of the pool is used before another row replaces it.
  std::uint64_t reuse = 0;
};

}  // namespace adaps
