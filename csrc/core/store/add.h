// Adds one row to another.
#pragma once

#include <cstddef>

namespace adaps {

inline void add_to(float* __restrict value, const float* __restrict delta, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) value[i] += delta[i];
}

}  // namespace adaps
