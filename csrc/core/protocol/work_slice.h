// Limits the amount of one kind of work that a channel does between two polls of the network.
#pragma once

#include <algorithm>
#include <cstddef>

namespace adaps {

class WorkSlice {
 public:
  // A key counts as 1, and this number of floats of its row counts as 1.
  static constexpr std::size_t kFloatsLikeAKey = 64;

  explicit WorkSlice(std::size_t size) : size_(size) {}

  // Begins a new slice, for another kind of work or for the same kind at a later time.
  void begin() { left_ = size_; }
  bool is_used_up() const { return left_ == 0; }
  // Counts work on a key with `floats` floats.
  void spend(std::size_t floats) { left_ -= std::min(left_, 1 + floats / kFloatsLikeAKey); }

 private:
  const std::size_t size_;
  std::size_t left_ = 0;
};

}  // namespace adaps
