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
// Initial number of slots: enough for ids that are all distinct, up to a table that fits into the L1 cache.
constexpr std::size_t kSmallest = 64;
constexpr std::size_t kLargestAtFirst = 4096;

// Open addressing with linear probing over positions in the list of distinct ids; at most half full.
class PositionTable {
 public:
  explicit PositionTable(std::size_t capacity)
      : shift_(64 - std::countr_zero(capacity)), slots_(capacity, kFree) {}

  // The slot of the id: either the one that holds its position, or the free one where it belongs.
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

RowSums sum_by_key(std::span<const std::int64_t> keys, const float* rows, std::size_t length) {
  std::vector<std::int64_t> positions(keys.size());
  RowSums sums;
  sums.keys = deduplicate(keys, positions.data());
  sums.rows.assign(sums.keys.size() * length, 0.0F);
  for (std::size_t i = 0; i < keys.size(); ++i, rows += length)
    add(sums.rows.data() + static_cast<std::size_t>(positions[i]) * length, rows, length);
  return sums;
}

}  // namespace adaps
