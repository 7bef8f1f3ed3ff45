#include "store/used_rows.h"

#include <algorithm>
#include <bit>

namespace adaps {

UsedRows::UsedRows(std::uint64_t rows)
    : words_((rows + 63) / 64),
      memory_(words_ * sizeof(std::uint64_t)),
      bits_(static_cast<std::atomic<std::uint64_t>*>(memory_.get())) {}

// Words without a row are not written, so that their pages do not become resident.
void UsedRows::clear() {
  for (std::uint64_t i = 0; i < words_; ++i) {
    if (bits_[i].load(std::memory_order_relaxed) != 0) bits_[i].store(0, std::memory_order_relaxed);
  }
}

std::uint64_t UsedRows::next(std::uint64_t row, std::uint64_t end) const {
  while (row < end) {
    const std::uint64_t rest = bits_[row / 64].load(std::memory_order_relaxed) >> (row % 64);
    if (rest != 0) return std::min(row + static_cast<std::uint64_t>(std::countr_zero(rest)), end);
    row = (row / 64 + 1) * 64;
  }
  return end;
}

}  // namespace adaps
