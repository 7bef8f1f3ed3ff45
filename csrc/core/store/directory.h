// Where keys live: their fixed home node and channel, and how news of their location is ordered.
#pragma once

#include <cstdint>
#include <vector>

#include "common/random.h"
#include "common/types.h"
#include "store/table.h"

namespace adaps {

// Both are fixed, by a hash or by the homes of the tables, so every node knows them without asking.
class Directory {
 public:
  Directory(NodeId nodes, int channels) : nodes_(nodes), channels_(static_cast<std::uint64_t>(channels)) {}
  // With the homes that tables give their rows.
  Directory(NodeId nodes, int channels, const Tables& tables);

  NodeId nodes() const { return static_cast<NodeId>(nodes_); }
  NodeId home(Key key) const { return placed_.empty() ? home_by_hash(key) : placed(key); }
  NodeId home_by_hash(Key key) const {
    return static_cast<NodeId>(((mix(key) & 0xffffffffULL) * nodes_) >> 32);
  }
  int channel(Key key) const {
    return channels_ == 1 ? 0 : static_cast<int>(((mix(key) >> 32) * channels_) >> 32);
  }

 private:
  // Keys from the end of the range before up to `end`, exclusive.
  struct Placed {
    Key end;
    NodeId node;
    std::uint32_t hashed;  // by hash: which of distances_ leads from a key to the one that is hashed
  };
  NodeId placed(Key key) const;

  std::uint64_t nodes_;
  std::uint64_t channels_;
  std::vector<Placed> placed_;  // ascending, covering all keys; empty if all homes are by hash
  std::vector<Key> distances_;  // modulo 2^64
};

// A location entry keeps 18 bits of the relocation count. They are compared modulo 2^18, and 0 is never taken
// by a relocation: it means "no news yet, ask home".
inline constexpr RelocationCount kEntryMask = (1U << 18) - 1;

inline bool newer_entry(RelocationCount a, RelocationCount b) {
  if ((b & kEntryMask) == 0) return (a & kEntryMask) != 0;
  const RelocationCount ahead = (a - b) & kEntryMask;
  return ahead != 0 && ahead < (1U << 17);
}

inline RelocationCount next_relocation(RelocationCount rc) {
  return ((rc + 1) & kEntryMask) == 0 ? rc + 2 : rc + 1;
}

}  // namespace adaps
