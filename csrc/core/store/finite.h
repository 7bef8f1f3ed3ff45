// Finds NaN and infinity in gradients. One such value would make its row useless for the rest of the
// training, and later all parameters that are trained together with the row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

// Uses one pass that compilers vectorize. Its result does not depend on floating-point compiler options.
bool all_finite(const float* values, std::size_t count);

// Describes the first row with a value that is not finite: table, row and value. Such a row must exist.
std::string describe_nonfinite(const Tables& tables, std::span<const Key> keys, const float* values);

// The keys and values of those rows that contain neither NaN nor infinity.
struct FiniteRows {
  std::vector<Key> keys;
  std::vector<float> values;
};
FiniteRows finite_rows(const Tables& tables, std::span<const Key> keys, const float* values);

}  // namespace adaps
