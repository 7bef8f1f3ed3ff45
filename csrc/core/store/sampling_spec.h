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
  // Whether a row may come twice in one sample.
  bool replacement = true;
  std::uint64_t seed = 0;
  // Of the scheme pool: rows in it, and how often each is handed out before another one takes its place.
  std::uint64_t pool_size = 0;
  std::uint64_t reuse = 0;
};

}  // namespace adaps
