// Memory for many blocks of floats of equal length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "common/prefetch.h"
#include "common/spin_lock.h"

namespace adaps {

// Allocates blocks for rows that workers push and that channels release later. Blocks are not cleared,
// because every user overwrites them. A new block is the one that was released last, and the memory of
// released blocks is kept. All calls may be made from any thread.
class BlockPool {
 public:
  class Release {
   public:
    Release() = default;
    explicit Release(BlockPool& pool) : pool_(&pool) {}
    void operator()(float* block) const { pool_->release(block); }
    BlockPool& pool() const { return *pool_; }

   private:
    BlockPool* pool_ = nullptr;
  };
  using Block = std::unique_ptr<float[], Release>;

  explicit BlockPool(std::size_t floats) : floats_(std::max<std::size_t>(floats, 1)) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  std::size_t floats() const { return floats_; }
  // Returns a block with undefined contents. The block must be released before the pool is destroyed.
  Block allocate() {
    const std::lock_guard guard(lock_);
    if (free_.empty()) grow();
    float* block = free_.back();
    free_.pop_back();
    return Block(block, Release(*this));
  }
  // Fetches the blocks that will be allocated next into the processor's cache, at most kPrefetched of them.
  void prefetch(std::size_t blocks) const {
    std::array<const float*, kPrefetched> next;
    std::size_t count = 0;
    {
      const std::lock_guard guard(lock_);
      const std::size_t most = std::min({blocks, kPrefetched, free_.size()});
      for (; count < most; ++count) next[count] = free_[free_.size() - 1 - count];
    }
    for (std::size_t i = 0; i < count; ++i) prefetch_floats(next[i], floats_);
  }
  static constexpr std::size_t kPrefetched = 32;

 private:
  static constexpr std::size_t kChunkFloats = 16384;

  void grow() {
    const std::size_t blocks = std::max<std::size_t>(kChunkFloats / floats_, 1);
    chunks_.push_back(std::make_unique_for_overwrite<float[]>(blocks * floats_));
    free_.reserve(chunks_.size() * blocks);  // release() never allocates
    for (std::size_t i = blocks; i > 0; --i) free_.push_back(chunks_.back().get() + (i - 1) * floats_);
  }

  void release(float* block) {
#ifdef ADAPS_CHECKED
    // If released memory is read, the result is NaN.
    std::fill_n(block, floats_, std::numeric_limits<float>::quiet_NaN());
#endif
    const std::lock_guard guard(lock_);
    free_.push_back(block);
  }

  const std::size_t floats_;
  mutable SpinLock lock_;
  std::vector<float*> free_;
  std::vector<std::unique_ptr<float[]>> chunks_;
};

}  // namespace adaps
