#include "common/deduplicate.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>

#include "common/random.h"

namespace adaps {

namespace {

constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();
// Initial number of slots. With up to this number of slots, the table fits into the L1 cache.
constexpr std::size_t kSmallest = 64;
constexpr std::size_t kLargestAtFirst = 4096;

// A hash table of positions in the list of distinct ids, with open addressing and linear probing. It is at
// most half full.
class PositionTable {
 public:
  explicit PositionTable(std::size_t capacity)
      : shift_(64 - std::countr_zero(capacity)), slots_(capacity, kFree) {}

  // The slot of the id: the slot that contains its position or, if the id is new, the free slot for it.
  std::uint32_t& find(std::int64_t id, const std::vector<std::int64_t>& unique) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = hash(id);
    while (slots_[slot] != kFree && unique[slots_[slot]] != id) slot = (slot + 1) & mask;
    return slots_[slot];
  }

  bool full(std::size_t entries) const { return 2 * entries > slots_.size(); }

  void grow(const std::vector<std::int64_t>& unique) {
    PositionTable larger(4 * slots_.size());
    for (std::size_t i = 0; i < unique.size(); ++i)
      larger.find(unique[i], unique) = static_cast<std::uint32_t>(i);
    *this = std::move(larger);
  }

 private:
  // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): spreads consecutive and strided ids
  // evenly.
  std::size_t hash(std::int64_t id) const {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(id) * kGoldenRatio) >> shift_);
  }

  int shift_;
  std::vector<std::uint32_t> slots_;
};

void add(float* sum, const float* row, std::size_t length) {
  for (std::size_t d = 0; d < length; ++d) sum[d] += row[d];
}

bool follow_each_other(std::span<const std::int64_t> keys) {
  return !keys.empty() &&
         std::ranges::adjacent_find(keys, [](auto one, auto next) { return next != one + 1; }) == keys.end();
}

// A range contains each key once, so it is its own sum.
bool is_range(const KeyedRows& part) { return !part.ignored && follow_each_other(part.keys); }

const KeyedRows* range_with_all(std::span<const KeyedRows> parts) {
  const auto largest = std::ranges::max_element(
      parts, {}, [](const KeyedRows& part) { return is_range(part) ? part.keys.size() : 0; });
  if (!is_range(*largest)) return nullptr;
  for (const KeyedRows& part : parts) {
    for (const std::int64_t key : part.keys)
      if (key < largest->keys.front() || key > largest->keys.back()) return nullptr;
  }
  return &*largest;
}

// Sums rows whose keys are all in `range`. The position of each sum is the distance of its key to the first
// key.
RowSums sum_within(const KeyedRows& range, std::span<const KeyedRows> parts, std::size_t length) {
  RowSums total{{range.keys.begin(), range.keys.end()}, std::vector<float>(range.keys.size() * length)};
  const auto add_all = [&](std::span<const std::int64_t> keys, const float* rows) {
    for (const std::int64_t key : keys) {
      add(total.rows.data() + static_cast<std::size_t>(key - range.keys.front()) * length, rows, length);
      rows += length;
    }
  };
  for (const KeyedRows& part : parts) {
    if (is_range(part)) {
      add_all(part.keys, part.rows);
    } else {
      const RowSums sums = sum_by_key(part.keys, part.rows, length, part.ignored);
      add_all(sums.keys, sums.rows.data());
    }
  }
  return total;
}

}  // namespace

std::vector<std::int64_t> deduplicate(std::span<const std::int64_t> ids, std::int64_t* inverse) {
  if (ids.size() >= kFree) throw std::length_error("deduplicate takes fewer than 2^32 - 1 ids at a time");
  std::vector<std::int64_t> unique;
  unique.reserve(std::min(ids.size(), kLargestAtFirst));
  PositionTable table(std::bit_ceil(std::clamp(2 * ids.size(), kSmallest, kLargestAtFirst)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint32_t* slot = &table.find(ids[i], unique);
    if (*slot == kFree) {
      if (table.full(unique.size() + 1)) {
        table.grow(unique);
        slot = &table.find(ids[i], unique);
      }
      *slot = static_cast<std::uint32_t>(unique.size());
      unique.push_back(ids[i]);
    }
    inverse[i] = *slot;
  }
  return unique;
}

RowSums sum_by_key(std::span<const std::int64_t> keys, const float* rows, std::size_t length,
                   std::optional<std::int64_t> ignored) {
  std::vector<std::int64_t> positions(keys.size());
  RowSums sums;
  sums.keys = deduplicate(keys, positions.data());
  sums.rows.assign(sums.keys.size() * length, 0.0F);
  for (std::size_t i = 0; i < keys.size(); ++i, rows += length) {
    if (keys[i] == ignored) continue;
    add(sums.rows.data() + static_cast<std::size_t>(positions[i]) * length, rows, length);
  }
  return sums;
}

RowSums sum_in_turn(std::span<const KeyedRows> parts, std::size_t length) {
  if (parts.empty()) return {};
  if (const KeyedRows* const range = range_with_all(parts)) return sum_within(*range, parts, length);
  if (parts.size() == 1) return sum_by_key(parts[0].keys, parts[0].rows, length, parts[0].ignored);
  RowSums all;
  for (const KeyedRows& part : parts) {
    const RowSums sums = sum_by_key(part.keys, part.rows, length, part.ignored);
    all.keys.insert(all.keys.end(), sums.keys.begin(), sums.keys.end());
    all.rows.insert(all.rows.end(), sums.rows.begin(), sums.rows.end());
  }
  return sum_by_key(all.keys, all.rows.data(), length, std::nullopt);
}

}  // namespace adaps
