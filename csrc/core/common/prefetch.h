// Prefetches memory into the processor's cache before it is used.
#pragma once

#include <algorithm>
#include <cstddef>

namespace adaps {

// Fetches the cache line of an address into the second-level cache. The first level allows only one or two
// dozen pending fetches. Further ones stall the core (Intel) or arrive late (AMD: adding to rows under their
// locks takes three times as long).
[[gnu::always_inline]] inline void prefetch_line(const void* address) { __builtin_prefetch(address, 0, 2); }

// Fetches the first floats of an array, at most kMost of them. The hardware prefetcher continues where memory
// is read sequentially.
[[gnu::always_inline]] inline void prefetch_floats(const float* first, std::size_t floats) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  constexpr std::size_t kMost = 8 * kLine;
  for (std::size_t i = 0; i < std::min(floats, kMost); i += kLine) prefetch_line(first + i);
}

}  // namespace adaps
