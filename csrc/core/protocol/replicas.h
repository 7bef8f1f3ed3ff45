// Replicas of a key, and the merging of their changes at its owner (docs/concepts/protocol.md, section 4).
#pragma once

#include <span>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/parked_requests.h"
#include "protocol/refreshes.h"

namespace adaps {

// Whether a message about a copy comes from the owner that has registered the copy. During a drop, the
// location entry may already name a later owner, so any sender is accepted.
inline bool is_from_owner(const SlotHeader& header, NodeId from) {
  return header.state != State::kReplica || header.location == from;
}

class Replicas {
 public:
  Replicas(ChannelContext& channel, Refreshes& refreshes, const ParkedRequests& parked)
      : channel_(channel), refreshes_(refreshes), parked_(parked) {}

  // --- at the owner ---

  // Makes a node a holder.
  void set_up(LockedKey& key, NodeId to);
  // Applies the sender's change. Returns false if it is not a holder in this ownership period.
  bool on_delta(LockedKey& key, NodeId from, const DeltaMessage& message, Reader& reader);
  // Removes the sender from the holders. Returns false if it was not a holder in this ownership period.
  bool on_drop(LockedKey& key, NodeId from, const DeltaMessage& message, Reader& reader);

  // --- at a holder ---

  void on_setup(NodeId from, const SetupMessage& message, Reader& reader);
  void on_refresh(NodeId from, const RefreshMessage& message, Reader& reader);
  void on_ack(NodeId from, const AckMessage& message);
  // Gives up a replica for which there is no intent.
  void drop_if_unwanted(Key number);
  void try_drop(LockedKey& key);
  void finish_drop(LockedKey& key);
  // Turns the replica's row into the owner's row and returns its version. `has_value` is true if the owner's
  // value was received.
  Version absorb_changes(LockedKey& key, Version version, bool has_value);

  // --- at the owner and at a holder ---

  // Sends the changes of one key. With `exact`, they are not rounded, even on a lossy wire. Refreshes to
  // holders may be held back. Returns the size in bytes of the message with a replica's change.
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
