// The only function that reads a row while another thread may write it.
#pragma once

#include <cstddef>
#include <cstring>

#include "common/thread_sanitizer.h"

namespace adaps {

// Copies floats that other threads may change during the copy. Store::read_if calls it and discards an
// inconsistent copy before any float is used, so the race with writers is harmless. It is the only function
// that is excluded from ThreadSanitizer.
#if ADAPS_THREAD_SANITIZER
[[gnu::noinline, gnu::no_sanitize("thread")]] inline void copy_racing(float* out, const float* in,
                                                                      std::size_t floats) {
  // The pointer is volatile, because a compiler would otherwise call memcpy, which the sanitizer checks.
  const volatile float* from = in;
  for (std::size_t i = 0; i < floats; ++i) out[i] = from[i];
}
#else
// Copies rows of usual lengths without a call. For such a row, memcpy would need as much time to choose its
// method as to copy.
inline void copy_racing(float* out, const float* in, std::size_t floats) {
  constexpr std::size_t kBlock = 16;
  constexpr std::size_t kLongest = 8 * kBlock;
  if (floats % kBlock != 0 || floats > kLongest) {
    std::memcpy(out, in, floats * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < floats; i += kBlock) std::memcpy(out + i, in + i, kBlock * sizeof(float));
}
#endif

}  // namespace adaps
