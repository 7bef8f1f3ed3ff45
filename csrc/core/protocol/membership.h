// The nodes that are in the cluster: barriers, nodes that leave, nodes that stall, and the loss of a peer
// (docs/concepts/protocol.md, section 10). Node 0 counts arrivals, on its channel 0. Every channel reports
// losses and informs the other nodes. Each on_ function throws ProtocolError for a message that its sender
// may not send now.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"
#include "protocol/context.h"
#include "protocol/message.h"
#include "protocol/outbox.h"

namespace adaps {

class Membership {
 public:
  Membership(NodeContext& node, Outbox& outbox, int channel);

  // Records that all workers of this node have arrived at a barrier, or have left permanently.
  void arrived(bool for_good, Micros now);
  void on_barrier(NodeId from, const BarrierMessage& message, Micros now);
  void on_release(NodeId from, const ReleaseMessage& message);

  // Notifies every peer that the connection is about to be closed.
  void say_goodbye();
  void on_goodbye(NodeId from);
  bool goodbye_sent() const { return goodbye_sent_.load(std::memory_order_acquire); }
  // Whether every node has left the cluster.
  bool closed() const { return node_.leaving.load() == Leaving::kComplete; }

  // Time at which nodes that have not arrived count as stalled; kNever if no node waits for them.
  Micros stall_due() const;
  void give_up_on_stalled();

  // Records the loss and appends LOST for all other nodes to the outbox. Does nothing if the peer had sent
  // GOODBYE or if another loss was recorded. The node itself fails only in fail_for_lost_peer(), which is
  // called after LOST was sent. Otherwise the other nodes would mistake this node for the lost one.
  void on_peer_down(NodeId peer, const std::string& reason);
  bool has_lost_peer() const { return lost_peer_.has_value(); }
  void fail_for_lost_peer();
  void announce_loss(NodeId lost, bool stalled = false);
  void on_lost(NodeId from, const LostMessage& message);

 private:
  struct LostPeer {
    NodeId rank;
    std::string reason;
  };

  template <typename Message>
  void send_to_all(const Message& message) {
    for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
      if (peer != rank_) outbox_.append(peer, message);
    }
  }
  void release_if_complete(Micros now);
  void release(const ReleaseMessage& message);

  NodeContext& node_;
  const NodeId rank_;
  Outbox& outbox_;
  const bool counts_;            // whether this is channel 0, which counts nodes at barriers
  bool awaits_release_ = false;  // this node has arrived at a barrier, and its end has not been reported
  // On node 0, channel 0, by node:
  std::vector<bool> at_barrier_, left_;
  std::optional<NodeId> failed_node_;  // a node at the barrier with a reported failure
  Micros waiting_since_ = kNever;      // arrival time of the first node that waits now
  std::vector<bool> said_goodbye_;
  std::optional<LostPeer> lost_peer_;
  std::atomic<bool> goodbye_sent_{false};
};

}  // namespace adaps
