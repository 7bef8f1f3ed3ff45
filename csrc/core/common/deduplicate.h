// Finds the distinct ids of a batch, and sums rows by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace adaps {

// Returns the distinct ids in the order of their first occurrence; inverse[i] becomes the position of ids[i]
// among them, so that unique[inverse[i]] == ids[i]. `inverse` has ids.size() elements and may not overlap
// `ids`.
std::vector<std::int64_t> deduplicate(std::span<const std::int64_t> ids, std::int64_t* inverse);

// Distinct keys in the order of their first occurrence, and a row of floats for each.
struct RowSums {
  std::vector<std::int64_t> keys;
  std::vector<float> rows;
};

// Sums rows of `length` floats by key. Each sum starts from zero and adds the rows in the given order, as
// torch's embedding gradient does.
RowSums sum_by_key(std::span<const std::int64_t> keys, const float* rows, std::size_t length);

}  // namespace adaps
