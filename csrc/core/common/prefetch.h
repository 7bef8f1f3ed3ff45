// Asks the processor for memory some time before it is used.
#pragma once

#include <algorithm>
#include <cstddef>

namespace adaps {

// Fetches the line of an address into the second level of the cache. To the first only a dozen or two may be
// under way, and what is asked for beyond that makes the core wait (Intel), or is late (AMD: adding to rows
// behind locks takes three times as long).
[[gnu::always_inline]] inline void prefetch_line(const void* address) { __builtin_prefetch(address, 0, 2); }

// The same of so many floats, or of the first of them: the processor itself goes on where memory is read in
// its order.
[[gnu::always_inline]] inline void prefetch_floats(const float* first, std::size_t floats) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  constexpr std::size_t kMost = 8 * kLine;
  for (std::size_t i = 0; i < std::min(floats, kMost); i += kLine) prefetch_line(first + i);
}

}  // namespace adaps
