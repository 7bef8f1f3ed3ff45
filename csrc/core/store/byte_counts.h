// Counts that are nearly always small, in one byte each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "common/assert.h"
#include "common/prefetch.h"
#include "common/spin_lock.h"
#include "store/reserved.h"

namespace adaps {

// Counts from 0 on, which any thread may read and change. A count below 255 is in its byte. For a larger one,
// the byte is 255 and the count is in a map. Such a byte only changes under the lock.
class ByteCounts {
 public:
  explicit ByteCounts(std::uint64_t counts)
      : memory_(counts), bytes_(static_cast<std::atomic<std::uint8_t>*>(memory_.get())) {}

  std::uint32_t get(std::uint64_t index) const {
    const std::uint8_t count = bytes_[index].load(std::memory_order_acquire);
    if (count != kInMap) [[likely]]
      return count;
    const std::lock_guard guard(lock_);
    const auto found = in_map_.find(index);
    return found != in_map_.end() ? found->second : bytes_[index].load(std::memory_order_acquire);
  }
  // Sets a count. No other thread may change it at the same time.
  void set(std::uint64_t index, std::uint32_t count) {
    if (count < kInMap && bytes_[index].load(std::memory_order_relaxed) != kInMap) [[likely]] {
      bytes_[index].store(static_cast<std::uint8_t>(count), std::memory_order_release);
      return;
    }
    const std::lock_guard guard(lock_);
    set_large(index, count);
  }
  void increment(std::uint64_t index) {
    if (add(index, 1, kInMap - 1)) [[likely]]
      return;
    const std::lock_guard guard(lock_);
    // 254 becomes 255 before the count is in the map. Threads that read 255 wait for the lock.
    if (!add(index, 1, kInMap)) {
      ++in_map_.at(index);
    } else if (bytes_[index].load(std::memory_order_relaxed) == kInMap) {
      in_map_.emplace(index, kInMap);
    }
  }
  void decrement(std::uint64_t index) {
    ADAPS_ASSERT(bytes_[index].load(std::memory_order_relaxed) != 0);
    if (add(index, -1, kInMap)) [[likely]]
      return;
    const std::lock_guard guard(lock_);
    if (!add(index, -1, kInMap)) set_large(index, in_map_.at(index) - 1);
  }
  [[gnu::always_inline]] void prefetch(std::uint64_t index) const { prefetch_line(&bytes_[index]); }

 private:
  static constexpr std::uint8_t kInMap = 255;

  // Adds to a byte below `end`. Returns whether it was below.
  bool add(std::uint64_t index, int change, std::uint8_t end) {
    std::uint8_t count = bytes_[index].load(std::memory_order_relaxed);
    while (count < end) {
      if (bytes_[index].compare_exchange_weak(count, static_cast<std::uint8_t>(count + change),
                                              std::memory_order_acq_rel, std::memory_order_relaxed))
        return true;
    }
    return false;
  }
  void set_large(std::uint64_t index, std::uint32_t count) {
    if (count < kInMap) {
      in_map_.erase(index);
    } else {
      in_map_[index] = count;
    }
    bytes_[index].store(static_cast<std::uint8_t>(count < kInMap ? count : kInMap),
                        std::memory_order_release);
  }

  const Reserved memory_;
  std::atomic<std::uint8_t>* const bytes_;
  mutable SpinLock lock_;
  std::unordered_map<std::uint64_t, std::uint32_t> in_map_;
};

}  // namespace adaps
