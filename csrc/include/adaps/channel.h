// The protocol of one channel: a state machine without I/O, threads or clock of its own.
//
// It is complete in docs/design/protocol.md; each of its transitions is one function here. One thread (or the
// simulator) drives a channel: on_frame, on_tick, on_peer_down; what is to be sent lies in the outbox
// afterwards. Workers hand over what they cannot do themselves by the submit functions, from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "adaps/action_timer.h"
#include "adaps/dirty.h"
#include "adaps/flush_cadence.h"
#include "adaps/lookahead.h"
#include "adaps/message.h"
#include "adaps/node_state.h"
#include "adaps/operation.h"
#include "adaps/outbox.h"
#include "adaps/replica_ages.h"
#include "adaps/stats.h"
#include "adaps/transport.h"
#include "adaps/types.h"

namespace adaps {

class Channel : public TransportEvents {
 public:
  Channel(NodeState& node, int index);

  // --- the driver's side ---

  // The time of everything that follows; never goes back.
  void set_now(Micros now) {
    now_ = now;
    node_.now.store(now, std::memory_order_relaxed);
  }
  void on_frame(NodeId from, std::span<const std::byte> payload) override;
  // A loss that is no surprise to the node is noted, and a message to all others lies in the outbox. The node
  // fails with fail_for_lost_peer(): the message has to be on its way then, or the others take this node's
  // end for the cause of their own.
  void on_peer_down(NodeId peer, const std::string& reason) override;
  bool has_lost_peer() const { return lost_peer_.has_value(); }
  void fail_for_lost_peer();
  void announce_loss(NodeId lost, bool stalled = false);
  // Does what is due and says when there will be more without a submission or a frame.
  Micros on_tick();
  Outbox& outbox() { return outbox_; }
  const Outbox& outbox() const { return outbox_; }
  // Called, from any thread, when the driver should call on_tick.
  void set_waker(std::function<void()> waker) { waker_ = std::move(waker); }
  // Tells how many of the frames to a peer that were drained the network has not taken yet. Without it, it
  // takes all at once.
  void set_backlog(std::function<std::size_t(NodeId)> backlog) { backlog_ = std::move(backlog); }
  // Every node has left the cluster (channel 0 knows).
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  bool goodbye_sent() const { return goodbye_sent_.load(std::memory_order_acquire); }

  // --- the workers' side, any thread ---

  void submit(std::span<Unit* const> units);
  void submit_sync(Operation& operation);
  void submit_intent(int worker, std::vector<Key> keys, Clock start, Clock end);
  // All workers of this node have arrived at a barrier, or left for good (only channel 0).
  void submit_gathered(bool for_good);
  // Tells every peer that the connection is about to be closed.
  void submit_goodbye();
  void on_clock(int worker, Clock clock);
  void request_round();
  // Under the key's lock: the key is dirty from now on.
  void mark_dirty(LockedKey& key);

  SideTables& sides() { return sides_; }
  const ReplicaAges& ages() const { return ages_; }
  const ChannelCounters& counters() const { return counters_; }
  ChannelCounters& counters() { return counters_; }

 private:
  struct Signal {
    std::vector<Key> keys;
    Clock end;
    std::size_t done = 0;  // so many of the keys, where it is worked on in slices
  };
  struct Interest {                         // of one worker
    std::multimap<Clock, Signal> queued;    // by start
    std::multimap<Clock, Signal> acted_on;  // by end
    ActionTimer timer;
    Clock observed_clock = 0;
    std::atomic<Clock> next_due{kForever};  // the clock at which a round has something to do for it
    std::atomic<Clock> reach{9};            // of the timer
  };
  struct Sync {
    Operation* operation;
    std::uint32_t number;
    int echoes_left;
  };
  struct Submitted {
    int worker;
    std::vector<Key> keys;
    Clock start, end;
  };
  // What was submitted at one time, worked off in this order; what comes later waits.
  struct Batch {
    bool begins_round = false;     // who waits for keys to come has signalled them before,
    bool follows_intents = false;  // and that must have had its effect
    std::vector<Unit*> units;
    std::size_t next = 0;
    std::vector<Operation*> syncs;
    std::vector<bool> gatherings;
    bool goodbye = false;
    bool done() const { return next == units.size() && syncs.empty() && gatherings.empty() && !goodbye; }
  };
  // A MARK or an ECHO, which goes out behind the changes that were there when it was asked for.
  struct AfterFlush {
    std::uint64_t end;  // of those changes
    Operation* sync;    // whose MARK it is; else an ECHO
    NodeId to;
    std::uint32_t number;
  };

  // channel.cc: driving, rounds, synchronization
  void wake();
  void take_submissions();
  void work_off_batch();
  void run_round();
  void flush_dirty(bool everything);
  void go_on_flushing();
  void end_flush();
  void flush_key(Key name);
  void after_flush(const AfterFlush& message);
  void send_flushed();
  void send_mark(Operation& operation);
  bool flushing() const { return flush_next_ < flush_keys_.size(); }
  bool has_dirty() const { return !dirty_.empty() || flush_deferred_; }

  // Work in slices: a turn of a kind of work ends when it has done as much as Settings::slice says.
  void begin_turn() { left_in_turn_ = node_.settings.slice; }
  bool turn_is_over() const { return left_in_turn_ == 0; }
  void spend(std::size_t floats) { left_in_turn_ -= std::min(left_in_turn_, 1 + floats / kFloatsLikeAKey); }
  // How many of the keys the turn has room for.
  std::size_t affordable(std::span<const Key> keys);
  // Calls function(key) for the keys behind the `done` first ones as far as the turn goes; true if it got
  // through.
  template <typename Function>
  bool go_on(std::span<const Key> keys, std::size_t& done, Function function) {
    const std::span<const Key> some = keys.subspan(done, affordable(keys.subspan(done)));
    for_each_prefetched(node_.store, some, function);
    done += some.size();
    return done == keys.size();
  }
  Clock newest_clock() const;
  void begin_sync(Operation& operation);
  void on_mark(NodeId from, const NumberMessage& message);
  void on_echo(const NumberMessage& message);
  void on_gathered(bool for_good);
  void on_barrier(NodeId from, const NumberMessage& message);
  void on_release(const NumberMessage& message);
  void release_if_complete();
  Micros stall_due() const;
  void give_up_on_stalled();
  void become_closed();
  void on_lost(NodeId from, const NumberMessage& message);

  // channel_intents.cc
  void act_on_intents();
  bool act(Interest& interest, Signal& signal, Clock clock);
  void start_interest(Key key);
  void end_interest(Key key);
  void start_permanent_interest();
  void take_up_postponed();
  void update_due(Interest& interest, Clock clock);

  // channel_requests.cc: operations and routed requests
  void try_operation(Unit& unit);
  bool defer(LockedKey& key, Unit& unit);
  void send_request(LockedKey& key, Unit& unit);
  // Serves the unit if the key's state allows it (or drops it if its worker gave up).
  bool serve(LockedKey& key, Unit& unit);
  void complete(Unit& unit);
  Unit& take_awaiting(std::uint32_t name);
  void on_request(RequestMessage message, Reader& reader);
  void apply_request(LockedKey& key, const RequestMessage& message, std::span<const float> payload);
  void on_intent(IntentMessage message);
  void on_answer(NodeId from, const AnswerMessage& message, Reader& reader);
  NodeId next_hop(LockedKey& key, Route& route) const;
  void park(Unit& unit);
  void retry_parked(Key key);
  bool has_parked_set(Key key) const;

  // channel_replicas.cc: ownership, replicas, their deltas and refreshes
  void want(LockedKey& key);
  void note_lead(const SlotHeader& header);
  void grant(LockedKey& key, NodeId to);
  void reconsider(LockedKey& key);
  void transfer(LockedKey& key, NodeId to);
  // Appends a message that says itself whether the key's value goes with it.
  template <typename Message>
  void append_with_value(LockedKey& key, NodeId to, const Message& message) {
    if (message.payload == Payload::kValue) {
      outbox_.append(to, message, {std::span<const float>(key.value(), key.width())});
    } else {
      outbox_.append(to, message);
    }
  }
  void become_none(LockedKey& key, NodeId owner, RelocationCount rc);
  bool try_drop(LockedKey& key);
  void finish_drop(LockedKey& key);
  void flush(LockedKey& key);
  void refresh(LockedKey& key, Holder& holder);
  void look_at_links();
  bool untaken(NodeId to, std::uint32_t frame) const;
  void refresh_or_hold_back(LockedKey& key, Holder& holder);
  void send_held_back();
  void flush_held_back(NodeId to);
  Holder* find_holder(LockedKey& key, NodeId from, RelocationCount rc);
  bool apply_change(LockedKey& key, const DeltaMessage& message, std::span<const float> floats);
  void forget(Delta& delta);
  void on_setup(NodeId from, const SetupMessage& message, Reader& reader);
  void on_refresh(const RefreshMessage& message, Reader& reader);
  void on_delta(NodeId from, const DeltaMessage& message, Reader& reader);
  void on_drop(NodeId from, const DeltaMessage& message, Reader& reader);
  void on_ack(const AckMessage& message);
  void on_drop_ack(const AckMessage& message);
  void on_transfer(NodeId from, const TransferMessage& message, Reader& reader);
  void on_news(NodeId from, const NewsMessage& message);

  void trace(Key key, TraceKind kind) {
    if (node_.trace.wants(key)) node_.trace.add(now_, key, kind);
  }
  // Gives the home node's key that nobody touched yet its initial value.
  void materialize(LockedKey& key) {
    if (!key.untouched_here()) return;
    key.materialize();
    trace(key.key(), TraceKind::kAlloc);
  }
  void check_key(Key key) const;
  LockedKey lock(Key key) { return {node_.store, key, table_hint_}; }

  NodeState& node_;
  const int index_;
  const NodeId rank_;
  const Technique technique_;
  Micros now_ = 0;
  Outbox outbox_;
  SideTables sides_;
  DirtyList dirty_;
  ReplicaAges ages_;
  LeadTime lead_;
  std::atomic<bool> lead_pending_{false};      // it has seen keys come since it was settled
  std::atomic<bool> settle_requested_{false};  // and a clock has advanced since
  ChannelCounters counters_;
  std::function<void()> waker_;

  // Refreshes that wait for the one before them of the same key and holder, so that what waits to be sent is
  // bounded by the keys that are held, however often they are written.
  struct HeldBack {
    Key key;
    std::uint32_t frame;  // with which that one goes
  };
  std::function<std::size_t(NodeId)> backlog_;
  std::vector<std::uint32_t> taken_;             // by peer: the last frame that the network has taken
  std::vector<std::deque<HeldBack>> held_back_;  // by peer
  std::vector<std::uint32_t> echoes_due_;        // by peer, which is to see all before its echo
  bool newly_held_back_ = false;                 // since the last turn
  bool more_held_back_ = false;                  // could be sent now: the turn did not get through

  // submissions
  std::mutex inbox_mutex_;
  std::vector<Unit*> submitted_units_;
  std::vector<Operation*> submitted_syncs_;
  std::vector<Submitted> submitted_intents_;
  std::vector<bool> submitted_gatherings_;
  bool goodbye_submitted_ = false;
  std::atomic<bool> goodbye_sent_{false};
  std::atomic<bool> signalled_{false};
  std::atomic<bool> round_requested_{false};
  std::atomic<bool> closed_{false};

  static constexpr std::size_t kFloatsLikeAKey = 64;
  std::size_t left_in_turn_ = 0;
  Batch batch_;
  std::vector<Unit*> next_parts_;  // of units that are complete: for the next batch
  bool more_submitted_ = false;    // perhaps, for the next batch
  bool acting_ = false;            // on intents: the last turn did not get through

  // rounds
  const Micros round_distance_;
  Micros last_round_ = 0;
  Micros intents_due_ = kNever;   // when the next intent is to be acted on if no clock advances before
  Micros flush_allowed_ = 0;      // not before, so that the network is not filled
  Micros flush_wanted_ = kNever;  // at the latest
  FlushCadence cadence_;
  std::vector<std::vector<Key>> deferred_;  // by table: dirty keys that wait for their table's turn
  bool flush_deferred_ = false;             // any of them
  std::vector<bool> table_due_;
  std::vector<Key> flush_keys_;      // of the flush that is under way
  std::size_t flush_next_ = 0;       // among them
  std::uint64_t flush_end_ = 0;      // keys that were ever to be flushed,
  std::uint64_t flushed_ = 0;        // and that were
  std::uint64_t flushed_bytes_ = 0;  // of the flush that is under way
  std::vector<Key> newly_dirty_;
  std::deque<AfterFlush> after_flush_;

  std::vector<std::unique_ptr<Interest>> interests_;
  Key permanent_cursor_ = 0;

#ifdef ADAPS_SIMULATION
  // Keys that were given away and are still taken for owned: the mutant torn_transfer.
  struct Torn {
    Key key;
    NodeId to;
    RelocationCount rc;
  };
  void finish_torn();
  std::vector<Torn> torn_;
#endif

  // what keys that must not move now wait for (see snapshot.h)
  std::deque<IntentMessage> postponed_intents_;
  std::deque<Key> postponed_decisions_;

  // units whose answer is awaited, by name
  std::vector<Unit*> awaiting_;
  std::vector<std::uint32_t> free_names_;
  std::unordered_map<Key, std::deque<Unit*>> parked_;
  std::vector<float> scratch_;
  const Table* table_hint_ = nullptr;

  std::vector<Sync> syncs_;
  std::uint32_t next_mark_ = 0;

  // node 0, channel 0: nodes at the barrier, nodes that left
  std::vector<bool> at_barrier_, left_;
  std::optional<NodeId> failed_node_;  // of those at the barrier
  Micros waiting_since_ = kNever;      // the first of those who wait now for another
  std::vector<bool> said_goodbye_;
  struct LostPeer {
    NodeId rank;
    std::string reason;
  };
  std::optional<LostPeer> lost_peer_;
};

}  // namespace adaps
