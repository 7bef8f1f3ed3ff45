// Two queues of intents for each worker (docs/concepts/protocol.md, section 8). The first contains intents
// that wait until they are acted on, sorted by their start. The second contains intents that were acted on,
// sorted by their end. This class decides when an intent is acted on. The key's owner decides the effect
// (Ownership::grant).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/action_timer.h"
#include "protocol/worker_state.h"

namespace adaps {

class IntentQueues {
 public:
  IntentQueues(const Settings& settings, const WorkerStates& workers);

  // --- for workers, from any thread; submit() and on_clock() return whether a round has work now ---

  bool submit(int worker, std::vector<Key> keys, Clock start, Clock end);
  bool on_clock(int worker, Clock clock);

  // --- the channel's thread ---

  void take_submitted();
  // Records the time that a requested key took to arrive.
  void note_lead(Micros lead);
  // Begins a round, `since` microseconds after the last one, and measures the pace of the workers' clocks.
  void begin_round(Micros since);
  // Whether the last slice was used up before all due intents were processed.
  bool acting() const { return acting_; }
  // Whether an intent has begun or ended and was not acted on.
  bool has_overdue() const;
  // Time when the next intent is due if no clock advances before.
  Micros due() const { return due_; }

  // Clocks of the fastest worker per microsecond; 0 if unknown.
  double pace() const;

  // Acts on the intents that are due. `begin(keys, done, until, for_good)` and `end(keys, done)` process keys
  // until the slice is used up, beginning after the first `done` keys. They add the number of processed keys
  // to `done` and return whether all keys are processed. `until` is the time until the intent starts, in
  // microseconds. `for_good` is whether the intent ends at kForGood or later.
  // `late(keys)` is called for keys whose intent is over before it was acted on. act() returns whether
  // another round is due.
  template <typename Begin, typename End, typename Late>
  bool act(Micros now, Micros last_round, ChannelCounters& counters, Begin begin, End end, Late late) {
    acting_ = true;
    due_ = kNever;
    bool round_due = false;
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      Queue& queue = *queues_[i];
      const Clock clock = workers_[i]->clock.load();
      const Clock horizon = horizon_of(queue, clock, now - last_round);
      // Starts are processed before ends, so that an intent that is extended is counted without a gap.
      while (!queue.waiting.empty() && queue.waiting.begin()->first <= horizon) {
        const auto first = queue.waiting.begin();
        const Micros until = queue.timer.until(first->first - clock, now - last_round);
        if (first->second.end <= clock) {
          counters.intents_late.add(first->second.keys.size() - first->second.done);
          late(std::span<const Key>(first->second.keys).subspan(first->second.done));
          first->second.keys.resize(first->second.done);
        }
        if (!act(queue, first->second, until, counters, begin)) return round_due;
        queue.waiting.erase(first);
      }
      while (!queue.acted_on.empty() && queue.acted_on.begin()->first <= clock) {
        const auto first = queue.acted_on.begin();
        if (!end(first->second.keys, first->second.done)) return round_due;
        queue.acted_on.erase(first);
      }
      note_next(queue, clock, now, last_round);
      round_due = round_due || workers_[i]->clock.load() >= queue.next_due.load();
    }
    acting_ = false;
    return round_due;
  }

 private:
  struct Signal {
    std::vector<Key> keys;
    Clock end;
    std::size_t done = 0;  // number of keys that earlier slices have processed
  };
  struct Queue {                            // intents of one worker
    std::multimap<Clock, Signal> waiting;   // by start
    std::multimap<Clock, Signal> acted_on;  // by end
    ActionTimer timer;
    Clock observed_clock = 0;
    std::atomic<Clock> next_due{kForever};  // the next clock at which a round has work
    std::atomic<Clock> reach{9};            // the last ActionTimer::reach
  };
  struct Submitted {
    int worker;
    std::vector<Key> keys;
    Clock start, end;
  };

  template <typename Begin>
  bool act(Queue& queue, Signal& signal, Micros until, ChannelCounters& counters, Begin begin) {
    const std::size_t before = signal.done;
    const bool through = begin(signal.keys, signal.done, until, signal.end >= kForGood);
    counters.intents_acted.add(signal.done - before);
    if (!through) return false;
    if (signal.end != kForever && !signal.keys.empty())
      queue.acted_on.emplace(signal.end, Signal{std::move(signal.keys), signal.end});
    return true;
  }
  // Latest start of intents that are acted on now. `since_round` is the time since the last round in
  // microseconds.
  Clock horizon_of(Queue& queue, Clock clock, Micros since_round);
  void note_next(Queue& queue, Clock clock, Micros now, Micros last_round);
  void update_next_due(Queue& queue, Clock clock);
  // The first clock at which an intent may be due, so that a round has to check it.
  Clock first_check(const Queue& queue, Clock start) const;

  const bool timing_;
  const Micros round_distance_;
  const WorkerStates& workers_;
  std::vector<std::unique_ptr<Queue>> queues_;
  mutable std::mutex mutex_;  // guards submitted_, and updates of next_due while intents are submitted
  std::vector<Submitted> submitted_;
  LeadTime lead_;
  std::atomic<bool> lead_pending_{false};      // lead_ has new observations since its last settle()
  std::atomic<bool> settle_requested_{false};  // a clock has advanced since the last settle()
  bool acting_ = false;
  Micros due_ = kNever;
};

}  // namespace adaps
