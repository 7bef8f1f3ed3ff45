// The protocol of one channel: a state machine without I/O, threads or clock of its own.
//
// It is complete in docs/concepts/protocol.md. One thread (or the simulator) drives a channel: on_frame,
// on_tick, on_peer_down, on_sent; what is to be sent lies in the outbox afterwards. Workers hand over what
// they cannot do themselves at the channel's partition, from any thread.
//
// The channel gives each message to the part that handles it, and each kind of work its slice. A part knows
// only those above it in this list:
//   Refreshes   what an owner sends to holders, and which of it is held back
//   Replicas    a replica's life, and how its changes meet at the owner
//   Ownership   who owns a key: where a relocation is decided
//   Interest    what begins and ends with an intent
//   Requests    calls of workers, and requests on their way to a key's owner
//   Flusher     when changes go out
//   Syncs       wait_sync
// Who is in the cluster is Membership's part, and when intents are acted on that of IntentQueues.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/flusher.h"
#include "protocol/intent_handler.h"
#include "protocol/membership.h"
#include "protocol/ownership.h"
#include "protocol/parked_requests.h"
#include "protocol/refreshes.h"
#include "protocol/replicas.h"
#include "protocol/requests.h"
#include "protocol/syncs.h"
#include "transport/transport.h"

namespace adaps {

class Channel : public TransportEvents {
 public:
  Channel(NodeContext& node, int index);

  // The time of everything that follows; never goes back.
  void set_now(Micros now) {
    context_.now = now;
    context_.outbox.set_now(now);
    context_.node.now.store(now, std::memory_order_relaxed);
  }
  void on_frame(NodeId from, std::span<const std::byte> payload) override;
  void on_peer_down(NodeId peer, const std::string& reason) override {
    membership_.on_peer_down(peer, reason);
  }
  void on_sent(Frame frame) override { context_.outbox.reuse(std::move(frame)); }
  // Does what is due and says when there will be more without a submission or a frame.
  Micros on_tick();
  Outbox& outbox() { return context_.outbox; }
  const Outbox& outbox() const { return context_.outbox; }
  // Sends what is drained at once, in the middle of on_frame or on_tick, while this channel goes on. Without
  // it, all leaves afterwards.
  void set_sender(std::function<void()> send_drained) { send_drained_ = std::move(send_drained); }
  // Tells how many of the frames to a peer that were drained the network has not taken yet. Without it, it
  // takes all at once.
  void set_backlog(std::function<std::size_t(NodeId)> frames) {
    context_.backlog.set_frames(std::move(frames));
  }

  Partition& partition() { return context_.partition; }
  Membership& membership() { return membership_; }
  const Membership& membership() const { return membership_; }
  const ChannelCounters& counters() const { return context_.counters; }
  ChannelCounters& counters() { return context_.counters; }

 private:
  // What was submitted at one time, worked off in this order; what comes later waits.
  struct Batch : Partition::Submissions {
    bool begins_round = false;     // who waits for keys to come has signalled them before,
    bool follows_intents = false;  // and that must have had its effect
    std::size_t next = 0;          // of the requests
    bool done() const { return next == requests.size() && syncs.empty() && arrivals.empty() && !goodbye; }
  };

  void take_submissions();
  void work_off_batch();
  void run_round();
  void flush(bool everything);
  void send_with_frames();
  void send_first(std::size_t requests, bool many_left);
  // A replica was set up, or a change of it applied: goes on with what waited for that.
  void settle(Key key);

  ChannelContext context_;
  Membership membership_;
  ParkedRequests parked_;
  Refreshes refreshes_;
  Replicas replicas_;
  Ownership ownership_;
  Interest interest_;
  Requests requests_;
  Flusher flusher_;
  Syncs syncs_;

  std::function<void()> send_drained_;
  Batch batch_;
  bool more_submitted_ = false;  // perhaps, for the next batch
  const Micros round_distance_;
  Micros last_round_;
};

}  // namespace adaps
