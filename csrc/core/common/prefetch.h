// Prefetches memory into the processor's cache before it is used.
#pragma once

#include <algorithm>
#include <cstddef>

namespace adaps {

// Fetches the cache line of an address into the second-level cache. The first-level cache allows only one or
// two dozen pending fetches. Further fetches stall the core (Intel) or arrive late (AMD: adding to rows under
// their locks takes three times as long).
[[gnu::always_inline]] inline void prefetch_line(const void* address) { __builtin_prefetch(address, 0, 2); }

// Fetches the first floats of an array, at most kMost of them. If memory is read sequentially, the hardware
// prefetcher fetches the remaining floats.
[[gnu::always_inline]] inline void prefetch_floats(const float* first, std::size_t floats) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  constexpr std::size_t kMost = 8 * kLine;
  for (std::size_t i = 0; i < std::min(floats, kMost); i += kLine) prefetch_line(first + i);
}

}  // namespace adaps
