// Maps keys to their fixed home node and channel, and orders updates of their location.
#pragma once

#include <cstdint>
#include <vector>

#include "common/random.h"
#include "common/types.h"
#include "store/table.h"

namespace adaps {

// A hash or the tables' homes determine the home node and the channel of a key, so every node computes them
// without a message.
class Directory {
 public:
  Directory(NodeId nodes, int channels) : nodes_(nodes), channels_(static_cast<std::uint64_t>(channels)) {}
  // Uses the homes that the tables define for their rows.
  Directory(NodeId nodes, int channels, const Tables& tables);

  NodeId nodes() const { return static_cast<NodeId>(nodes_); }
  int channels() const { return static_cast<int>(channels_); }
  NodeId home(Key key) const { return placed_.empty() ? home_by_hash(key) : placed(key); }
  // Of as many consecutive keys as there are nodes, beginning with a multiple, each node is the home of one.
  // The most used rows of a table are often the first ones, and all rows of a dense layer are used in every
  // step. If each key had an independent hash, some nodes would serve several times as many of them as
  // others.
  NodeId home_by_hash(Key key) const {
    const std::uint64_t turned = key % nodes_ + scaled_hash(key / nodes_);
    return static_cast<NodeId>(turned < nodes_ ? turned : turned - nodes_);
  }
  // The node that assigns a row to an id.
  NodeId node_of_id(std::int64_t id) const {
    return static_cast<NodeId>(scaled_hash(static_cast<std::uint64_t>(id)));
  }
  int channel(Key key) const {
    return channels_ == 1 ? 0 : static_cast<int>(((mix(key) >> 32) * channels_) >> 32);
  }

 private:
  // Keys from the end of the previous range up to `end`, exclusive.
  struct Placed {
    Key end;
    NodeId node;
    // index in distances_ of the difference between a key and the key that is hashed in its place
    std::uint32_t hashed;
  };
  NodeId placed(Key key) const;
  // A hash in [0, nodes).
  std::uint64_t scaled_hash(std::uint64_t number) const {
    return ((mix(number) & 0xffffffffULL) * nodes_) >> 32;
  }

  std::uint64_t nodes_;
  std::uint64_t channels_;
  std::vector<Placed> placed_;  // ascending, covering all keys; empty if all homes are by hash
  std::vector<Key> distances_;  // modulo 2^64
};

// Relocation counts have 18 bits, and are compared modulo 2^18. No relocation has the count 0. The count 0
// means that the location is unknown, and that requests must be sent to the home node.
inline constexpr RelocationCount kEntryMask = (1U << 18) - 1;

inline bool newer_entry(RelocationCount a, RelocationCount b) {
  if ((b & kEntryMask) == 0) return (a & kEntryMask) != 0;
  const RelocationCount ahead = (a - b) & kEntryMask;
  return ahead != 0 && ahead < (1U << 17);
}

inline RelocationCount next_relocation(RelocationCount rc) {
  const RelocationCount next = (rc + 1) & kEntryMask;
  return next == 0 ? 1 : next;
}

}  // namespace adaps
