#include "protocol/membership.h"

#include <algorithm>

namespace adaps {

namespace {

constexpr NodeId kCounting = 0;  // the node that counts arrivals
constexpr const char* kStalledReason =
    "it is alive, but did not arrive within stall_timeout where other nodes wait for it";

}  // namespace

Membership::Membership(NodeContext& node, Outbox& outbox, int channel)
    : node_(node),
      rank_(node.settings.rank),
      outbox_(outbox),
      counts_(channel == 0),
      at_barrier_(node.settings.nodes),
      left_(node.settings.nodes),
      said_goodbye_(node.settings.nodes) {}

// --- barriers and the end ---

void Membership::arrived(bool for_good, Micros now) {
  BarrierMessage message;
  message.for_good = for_good ? 1 : 0;
  message.failed = !for_good && node_.barrier.failed() ? 1 : 0;
  awaits_release_ = awaits_release_ || !for_good;
  if (for_good) node_.leaving.store(Leaving::kWaiting);
  if (rank_ == kCounting) {
    on_barrier(rank_, message, now);
  } else {
    outbox_.append(kCounting, message);
  }
}

void Membership::on_barrier(NodeId from, const BarrierMessage& message, Micros now) {
  if (rank_ != kCounting || !counts_) throw ProtocolError(from, "arrives where no node counts arrivals");
  if (left_[from]) throw ProtocolError(from, "arrives after it has left");
  if (at_barrier_[from] && message.for_good == 0) throw ProtocolError(from, "arrives twice at one barrier");
  (message.for_good != 0 ? left_ : at_barrier_)[from] = true;
  if (message.failed != 0) failed_node_ = from;
  waiting_since_ = std::min(waiting_since_, now);
  release_if_complete(now);
}

void Membership::release_if_complete(Micros now) {
  const bool all_left = std::find(left_.begin(), left_.end(), false) == left_.end();
  bool anyone = false;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!left_[i] && !at_barrier_[i]) return;
    anyone = anyone || at_barrier_[i];
  }
  if (!anyone && !all_left) return;
  std::fill(at_barrier_.begin(), at_barrier_.end(), false);
  // Nodes that have left wait until all nodes have.
  const bool anyone_left = std::find(left_.begin(), left_.end(), true) != left_.end();
  waiting_since_ = anyone_left && !all_left ? now : kNever;
  ReleaseMessage message;
  message.all_left = all_left ? 1 : 0;
  if (!all_left && failed_node_) {
    message.failed = 1;
    message.failed_node = *failed_node_;
  }
  failed_node_.reset();
  send_to_all(message);
  release(message);
}

// The number of the failed node is passed to the workers, so the message must contain an existing rank.
void Membership::on_release(NodeId from, const ReleaseMessage& message) {
  if (from != kCounting || !counts_)
    throw ProtocolError(from, "ends a barrier, which only rank 0 may on channel 0");
  const bool has_left = node_.leaving.load() == Leaving::kWaiting;
  if (message.all_left != 0 ? !has_left : !has_left && !awaits_release_)
    throw ProtocolError(from, "ends a barrier at which this node has not arrived");
  if (message.failed != 0 && message.failed_node >= node_.settings.nodes)
    throw ProtocolError("a message names rank " + std::to_string(message.failed_node));
  release(message);
}

void Membership::release(const ReleaseMessage& message) {
  awaits_release_ = false;
  std::optional<NodeId> failed_node;
  if (message.failed != 0) failed_node = message.failed_node;
  for (Operation* operation : node_.barrier.take(failed_node)) operation->finish();
  if (message.all_left == 0) return;
  node_.leaving.store(Leaving::kComplete);
  node_.announce_ending();
}

void Membership::say_goodbye() {
  send_to_all(GoodbyeMessage{});
  goodbye_sent_.store(true, std::memory_order_release);
  node_.announce_ending();
}

// A node says goodbye when rank 0 has informed it that every node has left. Rank 0 may receive this message
// only when it has recorded that all nodes have left, and any other node only when it has left itself. The
// message does not end the job: only rank 0 ends it.
void Membership::on_goodbye(NodeId from) {
  const Leaving earliest = rank_ == kCounting ? Leaving::kComplete : Leaving::kWaiting;
  if (node_.leaving.load() < earliest) throw ProtocolError(from, "says goodbye before all nodes have left");
  if (said_goodbye_[from]) throw ProtocolError(from, "says goodbye twice");
  said_goodbye_[from] = true;
}

// --- nodes that do not arrive ---

Micros Membership::stall_due() const {
  const Micros timeout = node_.settings.stall_timeout;
  return waiting_since_ == kNever || timeout == kNever ? kNever : waiting_since_ + timeout;
}

// Treats a node that does not arrive as lost. A node with blocked workers still answers messages and keeps
// its connections, so only the wait at a barrier or at the end detects it.
void Membership::give_up_on_stalled() {
  waiting_since_ = kNever;
  NodeId missing = 0;
  while (left_[missing] || at_barrier_[missing]) ++missing;
  if (lost_peer_ || node_.failed.load()) return;
  lost_peer_ = {missing, kStalledReason};
  announce_loss(missing, true);
}

// --- nodes that are lost ---

void Membership::on_peer_down(NodeId peer, const std::string& reason) {
  if (said_goodbye_[peer] || closed() || lost_peer_ || node_.failed.load()) return;
  lost_peer_ = {peer, reason};
  announce_loss(peer);
}

void Membership::fail_for_lost_peer() {
  if (lost_peer_) node_.fail(lost_peer_->rank, lost_peer_->reason);
  lost_peer_.reset();
}

void Membership::announce_loss(NodeId lost, bool stalled) {
  LostMessage message;
  message.stalled = stalled ? 1 : 0;
  message.node = lost;
  for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
    if (peer != rank_ && (peer != lost || stalled)) outbox_.append(peer, message);
  }
}

void Membership::on_lost(NodeId from, const LostMessage& message) {
  if (message.node >= node_.settings.nodes)
    throw ProtocolError("a message names rank " + std::to_string(message.node));
  const bool stalled = message.stalled != 0;
  if (stalled && from != kCounting)
    throw ProtocolError(from, "reports a stalled node, which only rank 0 may");
  if (closed()) return;
  if (message.node == rank_) {
    node_.fail(from, stalled ? "it waited for this node longer than stall_timeout"
                             : "it has lost its connection to this node");
  } else {
    node_.fail(message.node, stalled ? std::string(kStalledReason)
                                     : "node " + std::to_string(from) + " has lost its connection to it");
  }
}

}  // namespace adaps
