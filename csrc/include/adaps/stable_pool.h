// A pool of objects with stable addresses and 32-bit names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace adaps {

// allocate() and release() from any thread; at() without a lock for a name that its holder got by a release/acquire
// of its own (here: the key's lock). Name 0 is never given out.
template <typename T>
class StablePool {
 public:
  std::uint32_t allocate() {
    const std::lock_guard guard(mutex_);
    if (free_.empty()) grow();
    const std::uint32_t name = free_.back();
    free_.pop_back();
    return name;
  }

  void release(std::uint32_t name) {
    at(name) = T{};
    const std::lock_guard guard(mutex_);
    free_.push_back(name);
  }

  T& at(std::uint32_t name) { return (*chunks_[name / kChunk])[name % kChunk]; }

  std::size_t in_use() const {
    const std::lock_guard guard(mutex_);
    return used_chunks_ * kChunk - free_.size() - (used_chunks_ > 0 ? 1 : 0);
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kMaxChunks = 65536;
  using Chunk = std::array<T, kChunk>;

  void grow() {
    if (used_chunks_ == kMaxChunks) throw std::length_error("more than 67 million keys are shared or dirty at once");
    const auto first = static_cast<std::uint32_t>(used_chunks_ * kChunk);
    chunks_[used_chunks_++] = std::make_unique<Chunk>();
    for (std::uint32_t i = kChunk; i-- > 0;) {
      if (first + i != 0) free_.push_back(first + i);
    }
  }

  mutable std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::size_t used_chunks_ = 0;
  std::unique_ptr<std::unique_ptr<Chunk>[]> chunks_ = std::make_unique<std::unique_ptr<Chunk>[]>(kMaxChunks);
};

}  // namespace adaps
