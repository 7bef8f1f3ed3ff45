// A growing array that keeps its memory when cleared, and does not initialize new elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

namespace sampler {

// std::vector's resize initializes every new element. In this class, each element is written only once, by
// the caller.
template <typename T>
class Buffer {
 public:
  // Ensures capacity for `extra` more elements.
  void reserve(std::size_t extra) {
    if (size_ + extra <= capacity_) return;
    capacity_ = std::max(size_ + extra, capacity_ * 2);
    auto larger = std::make_unique_for_overwrite<T[]>(capacity_);
    std::copy_n(data_.get(), size_, larger.get());
    data_ = std::move(larger);
  }

  // Adds `extra` elements, which the caller must write. Returns a pointer to the first of the new elements.
  T* extend(std::size_t extra) {
    reserve(extra);
    size_ += extra;
    return data_.get() + size_ - extra;
  }

  // Removes all elements after the first `size`.
  void truncate(std::size_t size) { size_ = size; }

  // Requires free capacity.
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
