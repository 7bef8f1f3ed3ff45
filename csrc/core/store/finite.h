// NaN and infinity among gradients: one of them would spoil its row for good, and all that is trained with
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

// In one pass that compilers turn into vector instructions, whatever they may assume of floats.
bool all_finite(const float* values, std::size_t count);

// The first row with a value that is not finite: table, row and value, for a message. There has to be one.
std::string describe_nonfinite(const Tables& tables, std::span<const Key> keys, const float* values);

// Rows without such values.
struct FiniteRows {
  std::vector<Key> keys;
  std::vector<float> values;
};
FiniteRows finite_rows(const Tables& tables, std::span<const Key> keys, const float* values);

}  // namespace adaps
