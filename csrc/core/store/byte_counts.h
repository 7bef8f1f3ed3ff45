// Counts that are nearly always small, in one byte or a part of a word each.
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

// Counts from 0 on, which any thread may read and change. A small count is in the lowest bits of a word. For
// a larger one, these bits are all ones and the count is in a map. Such bits only change under the lock. The
// other bits of a word belong to the user, who must not change the count with them.
template <typename Word, int kBits>
class SmallCounts {
 public:
  static constexpr Word kInMap = (std::uint64_t{1} << kBits) - 1;

  explicit SmallCounts(std::uint64_t counts)
      : memory_(counts * sizeof(Word)), words_(static_cast<std::atomic<Word>*>(memory_.get())) {}

  std::atomic<Word>& word(std::uint64_t index) const { return words_[index]; }
  std::uint32_t get(std::uint64_t index) const {
    const Word count = small(index, std::memory_order_acquire);
    if (count != kInMap) [[likely]]
      return count;
    const std::lock_guard guard(lock_);
    const auto found = in_map_.find(index);
    return found != in_map_.end() ? found->second : small(index, std::memory_order_acquire);
  }
  // Sets a count that fills its word. No other thread may change it at the same time.
  void set(std::uint64_t index, std::uint32_t count) {
    static_assert(kBits == 8 * sizeof(Word));
    if (count < kInMap && small(index) != kInMap) [[likely]] {
      words_[index].store(static_cast<Word>(count), std::memory_order_release);
      return;
    }
    const std::lock_guard guard(lock_);
    set_large(index, count);
  }
  void increment(std::uint64_t index) {
    if (add(index, 1, kInMap - 1)) [[likely]]
      return;
    const std::lock_guard guard(lock_);
    // The bits become all ones before the count is in the map. Threads that read them wait for the lock.
    if (!add(index, 1, kInMap)) {
      ++in_map_.at(index);
    } else if (small(index) == kInMap) {
      in_map_.emplace(index, kInMap);
    }
  }
  void decrement(std::uint64_t index) {
    ADAPS_ASSERT(small(index) != 0);
    if (add(index, -1, kInMap)) [[likely]]
      return;
    const std::lock_guard guard(lock_);
    if (!add(index, -1, kInMap)) set_large(index, in_map_.at(index) - 1);
  }
  [[gnu::always_inline]] void prefetch(std::uint64_t index) const { prefetch_line(&words_[index]); }

 private:
  Word small(std::uint64_t index, std::memory_order order = std::memory_order_relaxed) const {
    return words_[index].load(order) & kInMap;
  }
  // Adds to a count whose bits are below `end`. Returns whether they were.
  bool add(std::uint64_t index, int change, Word end) {
    Word word = words_[index].load(std::memory_order_relaxed);
    while ((word & kInMap) < end) {
      if (words_[index].compare_exchange_weak(word, static_cast<Word>(word + static_cast<Word>(change)),
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
    const auto bits = static_cast<Word>(count < kInMap ? count : kInMap);
    words_[index].fetch_add(static_cast<Word>(bits - small(index)), std::memory_order_release);
  }

  const Reserved memory_;
  std::atomic<Word>* const words_;
  mutable SpinLock lock_;
  std::unordered_map<std::uint64_t, std::uint32_t> in_map_;
};

using ByteCounts = SmallCounts<std::uint8_t, 8>;

}  // namespace adaps
