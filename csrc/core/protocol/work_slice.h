// Work in slices: how much of one kind of work a channel does between two looks at the network.
#pragma once

#include <algorithm>
#include <cstddef>

namespace adaps {

class WorkSlice {
 public:
  // A key counts as one, and so do so many floats of its row.
  static constexpr std::size_t kFloatsLikeAKey = 64;

  explicit WorkSlice(std::size_t size) : size_(size) {}

  // Another kind of work begins, or the same one at another time.
  void begin() { left_ = size_; }
  bool is_used_up() const { return left_ == 0; }
  // A key with so many floats is worked on.
  void spend(std::size_t floats) { left_ -= std::min(left_, 1 + floats / kFloatsLikeAKey); }

 private:
  const std::size_t size_;
  std::size_t left_ = 0;
};

}  // namespace adaps
