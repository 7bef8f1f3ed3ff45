// Replicas of a key, and how their changes meet at its owner (docs/concepts/protocol.md, section 4).
#pragma once

#include <span>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/parked_requests.h"
#include "protocol/refreshes.h"

namespace adaps {

// Whether a message about a copy comes from the owner that has registered it. During a drop the location
// entry may name a later owner, so any node may be the one that the message is from.
inline bool is_from_owner(const SlotHeader& header, NodeId from) {
  return header.state != State::kReplica || header.location == from;
}

class Replicas {
 public:
  Replicas(ChannelContext& channel, Refreshes& refreshes, const ParkedRequests& parked)
      : channel_(channel), refreshes_(refreshes), parked_(parked) {}

  // --- at the owner ---

  // A node becomes a holder.
  void set_up(LockedKey& key, NodeId to);
  void on_delta(NodeId from, const DeltaMessage& message, Reader& reader);
  // The sender is no holder any more; false if it was none in this tenure.
  bool on_drop(LockedKey& key, NodeId from, const DeltaMessage& message, Reader& reader);

  // --- at a holder ---

  void on_setup(NodeId from, const SetupMessage& message, Reader& reader);
  void on_refresh(NodeId from, const RefreshMessage& message, Reader& reader);
  void on_ack(NodeId from, const AckMessage& message);
  // Gives up a replica for which there is no intent.
  void drop_if_unwanted(Key number);
  void try_drop(LockedKey& key);
  void finish_drop(LockedKey& key);
  // The replica becomes the owner's row; gives its version. `has_value`: the owner's value came along.
  Version absorb_changes(LockedKey& key, Version version, bool has_value);

  // --- at both ---

  // Sends what changed of one key; `exact`: as it is, also with a lossy wire. What holders get may be held
  // back. Gives the bytes of the change that a replica sends.
  std::size_t flush(LockedKey& key, bool exact);
  // Whether a replica has a change to send.
  bool has_to_flush(LockedKey& key, bool exact) const { return change_to_send(key, exact) != nullptr; }

 private:
  Unapplied* change_to_send(LockedKey& key, bool exact) const;
  std::span<const float> take_off(LockedKey& key, Unapplied& changes, DeltaMessage& message, bool exact);
  Holder* find_holder(LockedKey& key, NodeId from, RelocationCount rc);
  bool apply_change(LockedKey& key, const DeltaMessage& message, std::span<const float> floats);
  void mark_dirty_if_behind(LockedKey& key);
  void forget(Delta& delta);

  ChannelContext& channel_;
  Refreshes& refreshes_;
  const ParkedRequests& parked_;
};

}  // namespace adaps
