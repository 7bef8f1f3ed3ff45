// Memory of many blocks of floats, all of one length.
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

// For what workers allocate and channels release with every row that they push to. Nothing is cleared, as it
// is written anyway. Blocks that are released are used again, the last one first, and their memory is kept.
// Any thread may allocate and release.
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

  std::size_t floats() const { return floats_; }  // of a block
  // What is in the block means nothing. It must be released before the pool ends.
  Block allocate() {
    const std::lock_guard guard(lock_);
    if (free_.empty()) grow();
    float* block = free_.back();
    free_.pop_back();
    return Block(block, Release(*this));
  }
  // Fetches so many blocks into the processor's cache, those that are allocated next; kPrefetched at most.
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
    free_.reserve(chunks_.size() * blocks);  // so that release() never allocates
    for (std::size_t i = blocks; i > 0; --i) free_.push_back(chunks_.back().get() + (i - 1) * floats_);
  }

  void release(float* block) {
#ifdef ADAPS_CHECKED
    // Whoever reads it later finds no number.
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
