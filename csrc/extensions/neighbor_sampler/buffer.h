// A growing array that keeps its memory when it is cleared and never writes elements that nobody asked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

namespace sampler {

// std::vector would zero every element on resize; here each one is written exactly once, by the caller.
template <typename T>
class Buffer {
 public:
  // Makes room for `extra` more elements.
  void reserve(std::size_t extra) {
    if (size_ + extra <= capacity_) return;
    capacity_ = std::max(size_ + extra, capacity_ * 2);
    auto larger = std::make_unique_for_overwrite<T[]>(capacity_);
    std::copy_n(data_.get(), size_, larger.get());
    data_ = std::move(larger);
  }

  // Adds `extra` elements that the caller writes; returns the first of them.
  T* extend(std::size_t extra) {
    reserve(extra);
    size_ += extra;
    return data_.get() + size_ - extra;
  }

  // Drops all elements but the first `size`.
  void truncate(std::size_t size) { size_ = size; }

  // There must be room.
  void append(T value) { data_[size_++] = value; }

  void clear() { size_ = 0; }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace sampler
