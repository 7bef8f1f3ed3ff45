// Ownership of keys (docs/concepts/protocol.md, section 4). grant() and reconsider() decide relocations.
#pragma once

#include <deque>
#include <map>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/replicas.h"
#include "protocol/stored_rows.h"

namespace adaps {

class Ownership {
 public:
  Ownership(ChannelContext& channel, StoredRows& stored, Replicas& replicas)
      : channel_(channel),
        stored_(stored),
        replicas_(replicas),
        times_alone_(channel.node.settings.times_until_leaving_home()),
        times_for_good_(channel.node.settings.times_for_good()) {}

  // Sends INTENT for an intent that starts in `until_start` microseconds, and is `for_good` or ends. Does
  // nothing if the limited memory of the table has no space for the row; calls then access the row at its
  // owner.
  void ask_for(LockedKey& key, Micros until_start, bool for_good);
  // Gives the key to the only interested node, if there is one and the owner has no intent.
  void reconsider(LockedKey& key) { reconsider(key, times_alone_); }
  // Gives a key without other holders to a node. Returns the size of the message in bytes.
  std::size_t transfer(LockedKey& key, NodeId to);
  // Gives a key away whose row is in the file. The caller waits for the disk.
  void transfer_stored(LockedKey& key, NodeId to);

  void on_intent(NodeId from, const IntentMessage& message);
  void on_transfer(NodeId from, const TransferMessage& message, Reader& reader);
  void on_news(NodeId from, const NewsMessage& message);
  void on_delta(NodeId from, const DeltaMessage& message, Reader& reader);
  void on_drop(NodeId from, const DeltaMessage& message, Reader& reader);
  void on_drop_ack(const AckMessage& message);

  // Processes intents and decisions that were postponed while the node was frozen (see snapshot.h), as many
  // as the slice allows.
  void take_up_postponed();
  bool has_postponed() const { return !postponed_intents_.empty() || !postponed_decisions_.empty(); }
  // Decides on intents that were kept back because too many bytes waited for their nodes, as many as the
  // slice allows.
  void take_up_kept_back();
  // Whether some of these intents remain because the slice was used up.
  bool may_go_on() const { return more_kept_back_; }

 private:
  void decide(const IntentMessage& message);
  void grant(LockedKey& key, const IntentMessage& intent);
  void reconsider(LockedKey& key, int times_needed);
  bool leaves_for(LockedKey& key, NodeId to, int times_needed);
  void put_returned(LockedKey& key, const TransferMessage& message, Reader& reader);

  ChannelContext& channel_;
  StoredRows& stored_;
  Replicas& replicas_;
  const int times_alone_;     // until a key leaves its home node
  const int times_for_good_;  // the same, if the node's interest may be for good
  std::deque<IntentMessage> postponed_intents_;
  std::deque<Key> postponed_decisions_;
  std::map<NodeId, std::deque<IntentMessage>> kept_back_;  // by origin
  bool more_kept_back_ = false;
};

}  // namespace adaps
