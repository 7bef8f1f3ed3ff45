// The one place where a row is read that somebody may be writing.
#pragma once

#include <cstddef>
#include <cstring>

#include "common/thread_sanitizer.h"

namespace adaps {

// Copies floats that others may change meanwhile, for Store::read_if, which throws away what is not whole: no
// float is looked at before that. So it is no error that this races with writers, and it is the only function
// that ThreadSanitizer is told to pass over.
#if ADAPS_THREAD_SANITIZER
[[gnu::noinline, gnu::no_sanitize("thread")]] inline void copy_racing(float* out, const float* in,
                                                                      std::size_t floats) {
  const volatile float* from = in;  // or a call of memcpy is made of it, which the sanitizer does look at
  for (std::size_t i = 0; i < floats; ++i) out[i] = from[i];
}
#else
// The usual lengths without a call, whose own choice among ways to copy costs as much as such a row.
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
