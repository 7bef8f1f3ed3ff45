// Intent: when it is acted on, and what begins and ends with it.

#include <algorithm>
#include <span>
#include <utility>

#include "adaps/channel.h"
#include "adaps/invariant.h"
#include "adaps/lookahead.h"
#include "adaps/mutant.h"

namespace adaps {

namespace {
// How many keys a tick takes up for full replication, so that a frame stays of moderate size.
constexpr Key kPermanentBatch = 8192;

}  // namespace

void Channel::act_on_intents() {
  intents_due_ = kNever;
  for (std::size_t i = 0; i < interests_.size(); ++i) {
    Interest& interest = *interests_[i];
    const Clock clock = node_.workers[i]->clock.load();
    const Micros lead = lead_.micros();
    interest.reach.store(interest.timer.reach(lead), std::memory_order_relaxed);
    const Clock horizon =
        node_.settings.timing ? clock + interest.timer.ahead(lead, now_ - last_round_) : kForever;
    // Starts before ends: an intent that is merely extended must not look as if it had ended.
    while (!interest.queued.empty() && interest.queued.begin()->first <= horizon) {
      const auto first = interest.queued.begin();
      const Signal signal = std::move(first->second);
      interest.queued.erase(first);
      act(interest, signal, clock);
    }
    while (!interest.acted_on.empty() && interest.acted_on.begin()->first <= clock) {
      const auto first = interest.acted_on.begin();
      const std::vector<Key> keys = std::move(first->second);
      interest.acted_on.erase(first);
      for_each_prefetched(node_.store, keys, [this](Key key) { end_interest(key); });
    }
    if (!interest.queued.empty()) {
      const Micros later = interest.timer.until_ahead(interest.queued.begin()->first - clock, lead);
      if (later != kNever)
        intents_due_ = std::min(intents_due_, std::max(last_round_ + later, now_ + round_distance_));
    }
    update_due(interest, clock);
    if (node_.workers[i]->clock.load() >= interest.next_due.load()) round_requested_.store(true);
  }
}

void Channel::act(Interest& interest, const Signal& signal, Clock clock) {
  if (signal.end <= clock) {
    counters_.intents_late.add(signal.keys.size());
    return;
  }
  counters_.intents_acted.add(signal.keys.size());
  for_each_prefetched(node_.store, signal.keys, [this](Key key) { start_interest(key); });
  if (signal.end != kForever) {
    std::vector<Key>& ending = interest.acted_on[signal.end];
    ending.insert(ending.end(), signal.keys.begin(), signal.keys.end());
  }
}

void Channel::start_interest(Key name) {
  LockedKey key = lock(name);
  materialize(key);
  if (!key.has_slot()) key.allocate(State::kNone);
  if (key.header().intents++ == 0) trace(name, TraceKind::kIntentStart);
  if (key.state() == State::kNone || (ADAPS_MUTANT(intent_while_dropping) && key.state() == State::kDropping))
    want(key);
}

// The last intent of this node for the key may have ended: then it gives up what it holds only for that.
void Channel::end_interest(Key name) {
  LockedKey key = lock(name);
  ADAPS_INVARIANT(key.has_slot() && key.header().intents > 0, "an intent ends that is not counted");
  if (--key.header().intents > 0) return;
  trace(name, TraceKind::kIntentStop);
  switch (key.state()) {
    case State::kOwner:
      reconsider(key);
      return;
    case State::kReplica:
      try_drop(key);
      return;
    case State::kNone:  // under relocation: another node got the key, and this one did not ask again
      key.release(key.location(), key.location_count());
      return;
    case State::kPending:   // set-up will try to drop
    case State::kDropping:  // its answer looks at the count
      return;
  }
}

void Channel::start_permanent_interest() {
  const Key end = std::min(permanent_cursor_ + kPermanentBatch, node_.tables.num_keys());
  for (; permanent_cursor_ < end; ++permanent_cursor_) {
    if (node_.directory.channel(permanent_cursor_) == index_) start_interest(permanent_cursor_);
  }
}

// What had to wait while keys were not to move.
void Channel::take_up_postponed() {
  for (const IntentMessage& message : std::exchange(postponed_intents_, {})) on_intent(message);
  for (const Key name : std::exchange(postponed_decisions_, {})) {
    LockedKey key = lock(name);
    if (key.state() == State::kOwner) reconsider(key);
  }
}

// The clock at which a round has something to do: act on an intent, or see whether one is due before the
// next.
void Channel::update_due(Interest& interest, Clock clock) {
  const std::lock_guard guard(inbox_mutex_);
  const Clock reach = interest.reach.load(std::memory_order_relaxed);
  const auto due = [&](Clock start) {
    if (!node_.settings.timing) return Clock{0};
    return std::min(start - interest.timer.window(), std::max(start - reach, clock + 1));
  };
  Clock next = kForever;
  if (!interest.queued.empty()) next = std::min(next, due(interest.queued.begin()->first));
  if (!interest.acted_on.empty()) next = std::min(next, interest.acted_on.begin()->first);
  for (const Submitted& submitted : submitted_intents_) {
    if (interests_[static_cast<std::size_t>(submitted.worker)].get() == &interest) {
      next = std::min(next, due(submitted.start));
    }
  }
  interest.next_due.store(next);
}

}  // namespace adaps
