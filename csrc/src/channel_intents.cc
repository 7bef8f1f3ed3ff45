// Intent: when it is acted on, and what begins and ends with it.

#include <algorithm>
#include <span>
#include <utility>

#include "adaps/channel.h"
#include "adaps/invariant.h"
#include "adaps/mutant.h"

namespace adaps {

namespace {
// How many keys a tick takes up for full replication, so that a frame stays of moderate size.
constexpr Key kPermanentBatch = 8192;

}  // namespace

// Goes on in the next turn where this one does not suffice.
void Channel::act_on_intents() {
  acting_ = true;
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
      if (!act(interest, first->second, clock)) return;
      interest.queued.erase(first);
    }
    while (!interest.acted_on.empty() && interest.acted_on.begin()->first <= clock) {
      const auto first = interest.acted_on.begin();
      Signal& signal = first->second;
      if (!go_on(signal.keys, signal.done, [this](Key key) { end_interest(key); })) return;
      interest.acted_on.erase(first);
    }
    if (!interest.queued.empty()) {
      const Micros later = interest.timer.until_ahead(interest.queued.begin()->first - clock, lead);
      if (later != kNever)
        intents_due_ = std::min(intents_due_, std::max(last_round_ + later, now_ + round_distance_));
    }
    update_due(interest, clock);
    if (node_.workers[i]->clock.load() >= interest.next_due.load()) round_requested_.store(true);
  }
  acting_ = false;
}

bool Channel::act(Interest& interest, Signal& signal, Clock clock) {
  if (signal.end <= clock) {
    counters_.intents_late.add(signal.keys.size() - signal.done);
    signal.keys.resize(signal.done);
  }
  const std::size_t before = signal.done;
  const bool through = go_on(signal.keys, signal.done, [this](Key key) { start_interest(key); });
  counters_.intents_acted.add(signal.done - before);
  if (!through) return false;
  if (signal.end != kForever && !signal.keys.empty())
    interest.acted_on.emplace(signal.end, Signal{std::move(signal.keys), signal.end});
  return true;
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
  for (std::size_t i = postponed_intents_.size(); i > 0 && !turn_is_over(); --i) {
    const IntentMessage message = postponed_intents_.front();
    postponed_intents_.pop_front();
    spend(node_.tables.find(message.key, table_hint_).width());
    on_intent(message);
  }
  for (std::size_t i = postponed_decisions_.size(); i > 0 && !turn_is_over(); --i) {
    const Key name = postponed_decisions_.front();
    postponed_decisions_.pop_front();
    LockedKey key = lock(name);
    spend(key.width());
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
