// Records when replicas last had the values of their owners, for one key in sixteen. If every slot header
// contained a time, each row would take more memory, only for a statistic.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/random.h"
#include "common/types.h"
#include "store/table.h"

namespace adaps {

// Two sampled keys may share an entry. The entry then contains only the key that was renewed last, with the
// time of its renewal.
class ReplicaAges {
 public:
  static bool sampled(Key key) { return (mix(key) & 15) == 0; }

  // Records that the replica has the value of its owner now.
  void renew(Key key, Micros now) {
    if (!sampled(key)) return;
    Entry& entry = entry_of(key);
    entry.key.store(key, std::memory_order_relaxed);
    entry.time.store(now, std::memory_order_relaxed);
  }
  std::optional<Micros> age(Key key, Micros now) const {
    const Entry& entry = entries_[index_of(key)];
    if (entry.key.load(std::memory_order_relaxed) != key) return std::nullopt;
    return now - entry.time.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kEntries = 4096;
  static constexpr Key kNoKey = ~Key{0};

  struct Entry {
    std::atomic<Key> key{kNoKey};
    std::atomic<Micros> time{0};
  };
  static std::size_t index_of(Key key) { return (mix(key) >> 4) % kEntries; }
  Entry& entry_of(Key key) { return entries_[index_of(key)]; }

  std::array<Entry, kEntries> entries_;
};

}  // namespace adaps
