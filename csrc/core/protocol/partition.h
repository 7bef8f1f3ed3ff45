// State that a node's workers share with one of its channels. Workers access the channel only through this
// state.
//
// A partition contains the keys of one channel. Workers submit operations here that they cannot complete
// themselves. They also find the data here that they need to serve a key: changes of replicas, the list of
// dirty keys, and the age of copies.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/types.h"
#include "protocol/dirty_list.h"
#include "protocol/intent_queues.h"
#include "protocol/operation.h"
#include "protocol/replica_ages.h"
#include "protocol/worker_state.h"
#include "store/store.h"

namespace adaps {

class Partition {
 public:
  // All submissions that the channel takes together.
  struct Submissions {
    std::vector<KeyRequest*> requests;
    std::vector<IdRequest*> id_requests;
    std::vector<Operation*> id_listings;
    std::vector<Operation*> syncs;
    std::vector<bool> arrivals;  // arrivals of all workers of the node: true if permanent
    bool goodbye = false;
  };

  Partition(const Settings& settings, const Tables& all_tables, const WorkerStates& workers)
      : tables(all_tables), intents(settings, workers), workers_(workers) {}

  // --- workers, any thread ---

  void submit(std::span<KeyRequest* const> requests);
  void submit(std::span<IdRequest* const> requests);
  void submit_id_listing(Operation& operation);
  void submit_sync(Operation& operation);
  void submit_intent(int worker, std::vector<Key> keys, Clock start, Clock end);
  // Submits that all workers of this node have arrived at a barrier or left permanently. Only for channel 0.
  void submit_arrival(bool for_good);
  // Submits GOODBYE, which notifies every peer that the connection is about to be closed.
  void submit_goodbye();
  void on_clock(int worker, Clock clock);
  void request_round();
  // Lets the driver call Channel::on_tick. Any thread may call this.
  void wake();
  // Requests a round at the time when any worker's clock reaches `clock`. Replaces the previous request of
  // this kind.
  void request_round_at(Clock clock);
  // Marks the key as dirty. Its lock must be held.
  void mark_dirty(LockedKey& key);

  // --- the channel's driver ---

  // Sets a function that any thread calls when the driver must call Channel::on_tick.
  void set_waker(std::function<void()> waker) { waker_ = std::move(waker); }
  // While an object of this class exists, the current thread drives the channel, and submissions of this
  // thread do not wake it.
  class Driving {
   public:
    explicit Driving(const Partition& partition);
    ~Driving();
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;

   private:
    const Partition* before_;
  };
  // From now on, a submission wakes the driver again.
  void begin_tick() { signalled_.store(false); }
  Submissions take();
  bool round_requested() const { return round_requested_.load(); }
  void begin_round() { round_requested_.store(false); }

  KeyTables tables;
  DirtyList dirty;
  ReplicaAges ages;
  IntentQueues intents;

 private:
  const WorkerStates& workers_;
  std::function<void()> waker_;
  std::atomic<bool> signalled_{false};
  std::atomic<bool> round_requested_{false};
  std::atomic<Clock> round_at_{kForever};
  std::mutex mutex_;
  Submissions submitted_;
};

}  // namespace adaps
