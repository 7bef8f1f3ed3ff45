// The protocol of one channel: a state machine that does no I/O, creates no threads and reads no clock
// (docs/concepts/protocol.md).
//
// One thread, or the simulator, drives a channel with on_frame, on_tick, on_peer_down and on_sent, and then
// sends the contents of its outbox. Workers submit requests through the channel's partition, from any thread.
//
// The channel passes messages and slices of work to its parts, which the protocol's section 1 lists:
// StoredRows, Refreshes, Replicas, Ownership, IntentHandler, Requests, IdRequests, Retirement, IdListings,
// Flusher and Syncs. Each part depends only on parts before it in this list. Membership handles the nodes of
// the cluster. IntentQueues decides when intents are acted on.
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
#include "protocol/id_listings.h"
#include "protocol/id_requests.h"
#include "protocol/intent_handler.h"
#include "protocol/membership.h"
#include "protocol/ownership.h"
#include "protocol/parked_requests.h"
#include "protocol/refreshes.h"
#include "protocol/replicas.h"
#include "protocol/requests.h"
#include "protocol/retirement.h"
#include "protocol/stored_rows.h"
#include "protocol/syncs.h"
#include "transport/transport.h"

namespace adaps {

class Channel : public TransportEvents {
 public:
  Channel(NodeContext& node, int index);

  // Sets the time of the following calls. It must never decrease.
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
  // Does all work that is due. Returns the time when more work will be due, unless a submission or a frame
  // arrives earlier.
  Micros on_tick();
  Outbox& outbox() { return context_.outbox; }
  const Outbox& outbox() const { return context_.outbox; }
  // Sets a function that sends the drained frames during on_frame or on_tick. By default all frames are sent
  // after the call.
  void set_sender(std::function<void()> send_drained) { send_drained_ = std::move(send_drained); }
  // Sets a function that returns how many drained frames to a peer the network has not taken yet. By default
  // each drained frame counts as taken immediately.
  void set_backlog(std::function<std::size_t(NodeId)> frames) {
    context_.backlog.set_frames(std::move(frames));
  }

  Partition& partition() { return context_.partition; }
  Membership& membership() { return membership_; }
  const Membership& membership() const { return membership_; }
  const ChannelCounters& counters() const { return context_.counters; }
  ChannelCounters& counters() { return context_.counters; }

 private:
  // Submissions that were taken together. They are processed in order; later submissions wait.
  struct Batch : Partition::Submissions {
    bool begins_round = false;     // Intents are acted on before calls that wait for keys to arrive.
    bool follows_intents = false;  // Requests wait until all due intents have been acted on.
    std::size_t next = 0;          // Index of the next request.
    bool done() const {
      return next == requests.size() && id_requests.empty() && id_listings.empty() && syncs.empty() &&
             arrivals.empty() && !goodbye;
    }
  };

  void take_submissions();
  void work_off_batch();
  void run_round();
  void flush_if_due();
  bool hurries() const;
  Beyond needed_for_syncs() const;
  void flush(Beyond beyond);
  void send_with_frames();
  void send_first(std::size_t requests, bool many_left);
  // Continues requests that waited until a replica was set up, or until its change was applied at the owner.
  void settle(Key key);
  // Continues everything that waited until a row was read from its file.
  void continue_with_row(Key key);

  ChannelContext context_;
  Membership membership_;
  ParkedRequests parked_;
  StoredRows stored_rows_;
  Refreshes refreshes_;
  Replicas replicas_;
  Ownership ownership_;
  IntentHandler intent_handler_;
  Requests requests_;
  IdRequests id_requests_;
  Retirement retirement_;
  IdListings id_listings_;
  Flusher flusher_;
  Syncs syncs_;

  std::function<void()> send_drained_;
  Batch batch_;
  bool more_submitted_ = false;  // Submissions may be waiting for the next batch.
  const Micros round_distance_;
  Micros last_round_;
};

}  // namespace adaps
