// Sets of rows of a table with ids.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/reserved.h"

namespace adaps {

// The rows that were used since the start or since clear(), one bit each. Any number of threads may call any
// function. A row that is added while another thread calls clear() may be lost.
class UsedRows {
 public:
  explicit UsedRows(std::uint64_t rows);

  bool contains(std::uint64_t row) const {
    return (bits_[row / 64].load(std::memory_order_relaxed) >> (row % 64) & 1) != 0;
  }
  void add(std::uint64_t row) {
    // Most rows were added before. A load does not take the cache line away from other threads.
    if (!contains(row)) bits_[row / 64].fetch_or(std::uint64_t{1} << (row % 64), std::memory_order_relaxed);
  }
  void remove(std::uint64_t row) {
    bits_[row / 64].fetch_and(~(std::uint64_t{1} << (row % 64)), std::memory_order_relaxed);
  }
  void clear();
  // Returns the first added row in [row, end), or `end`, which is at most the number of rows.
  std::uint64_t next(std::uint64_t row, std::uint64_t end) const;
  // Bytes of memory that are reserved. Only used pages are resident.
  std::uint64_t bytes() const { return words_ * sizeof(std::uint64_t); }

 private:
  const std::uint64_t words_;
  const Reserved memory_;
  std::atomic<std::uint64_t>* const bits_;
};

}  // namespace adaps
