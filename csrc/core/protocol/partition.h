// What a node's workers and one of its channels share; it is all that workers see of a channel.
//
// A partition is the share of the keys that one channel is responsible for. Workers leave here what they
// cannot do themselves, and find here what they need to serve a key on their own: the changes of replicas,
// which keys have something to send, and how old copies are.
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
  // What was submitted at one time.
  struct Submissions {
    std::vector<KeyRequest*> requests;
    std::vector<Operation*> syncs;
    std::vector<bool> arrivals;  // of all workers of the node: true if for good
    bool goodbye = false;
  };

  Partition(const Settings& settings, const Tables& all_tables, const WorkerStates& workers)
      : tables(all_tables), intents(settings, workers), workers_(workers) {}

  // --- workers, any thread ---

  void submit(std::span<KeyRequest* const> requests);
  void submit_sync(Operation& operation);
  void submit_intent(int worker, std::vector<Key> keys, Clock start, Clock end);
  // All workers of this node have arrived at a barrier, or left for good (only channel 0).
  void submit_arrival(bool for_good);
  // Tells every peer that the connection is about to be closed.
  void submit_goodbye();
  void on_clock(int worker, Clock clock);
  void request_round();
  // Also when a worker's clock has come to this; of two calls the last counts.
  void request_round_at(Clock clock);
  // Under the key's lock: the key is dirty from now on.
  void mark_dirty(LockedKey& key);

  // --- the channel's driver ---

  // Called, from any thread, when the driver should call Channel::on_tick.
  void set_waker(std::function<void()> waker) { waker_ = std::move(waker); }
  // While it exists, the current thread drives the channel, and what it submits itself does not wake it.
  class Driving {
   public:
    explicit Driving(const Partition& partition);
    ~Driving();
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;

   private:
    const Partition* before_;
  };
  // From now on a submission wakes the driver again.
  void begin_tick() { signalled_.store(false); }
  Submissions take();
  bool round_requested() const { return round_requested_.load(); }
  void begin_round() { round_requested_.store(false); }

  KeyTables tables;
  DirtyList dirty;
  ReplicaAges ages;
  IntentQueues intents;

 private:
  void wake();

  const WorkerStates& workers_;
  std::function<void()> waker_;
  std::atomic<bool> signalled_{false};
  std::atomic<bool> round_requested_{false};
  std::atomic<Clock> round_at_{kForever};
  std::mutex mutex_;
  Submissions submitted_;
};

}  // namespace adaps
