// Finds the distinct ids of a batch, and sums rows by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace adaps {

// Returns the distinct ids in the order of their first occurrence. Sets inverse[i] to the position of ids[i]
// in the result, so that unique[inverse[i]] == ids[i]. `inverse` has ids.size() elements and may not overlap
// `ids`.
std::vector<std::int64_t> deduplicate(std::span<const std::int64_t> ids, std::int64_t* inverse);

// Distinct keys in the order of their first occurrence, and a row of floats for each.
struct RowSums {
  std::vector<std::int64_t> keys;
  std::vector<float> rows;
};

// Sums rows of `length` floats by key. Each sum starts from zero and adds the rows in the given order, as
// torch's embedding gradient does. Rows of the key `ignored` count as zeros.
RowSums sum_by_key(std::span<const std::int64_t> keys, const float* rows, std::size_t length,
                   std::optional<std::int64_t> ignored);

// Rows with one key each, in the form that sum_by_key takes. Keys that ascend by one contain no duplicates.
struct KeyedRows {
  std::span<const std::int64_t> keys;
  const float* rows;
  std::optional<std::int64_t> ignored;
};

// Sums each of `parts` by key, and then adds these sums in order. Torch adds the gradients of several reads
// of a weight in this order.
RowSums sum_in_turn(std::span<const KeyedRows> parts, std::size_t length);

}  // namespace adaps
