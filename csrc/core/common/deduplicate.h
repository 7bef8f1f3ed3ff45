// Distinct ids of a batch, and where each id stands among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// Adds up rows of `length` floats by key, from zero in the order in which they are given, as torch's gradient
// of an embedding does. Rows of the key `ignored` count as zeros.
RowSums sum_by_key(std::span<const std::int64_t> keys, const float* rows, std::size_t length,
                   std::optional<std::int64_t> ignored);

// What sum_by_key is given: a row for each key. Of keys that follow each other each is there once.
struct KeyedRows {
  std::span<const std::int64_t> keys;
  const float* rows;
  std::optional<std::int64_t> ignored;
};

// Adds up each of `parts` by key, and then their sums, in order: as torch adds up the gradients of several
// reads of a weight.
RowSums sum_in_turn(std::span<const KeyedRows> parts, std::size_t length);

}  // namespace adaps
