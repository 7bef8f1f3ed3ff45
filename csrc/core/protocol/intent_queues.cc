#include "protocol/intent_queues.h"

namespace adaps {

IntentQueues::IntentQueues(const Settings& settings, const WorkerStates& workers)
    : timing_(settings.timing), round_distance_(settings.round_distance()), workers_(workers) {
  for (std::size_t i = 0; i < workers.size(); ++i) queues_.push_back(std::make_unique<Queue>());
}

bool IntentQueues::submit(int worker, std::vector<Key> keys, Clock start, Clock end) {
  Queue& queue = *queues_[static_cast<std::size_t>(worker)];
  Clock due = 0;
  {
    const std::lock_guard guard(mutex_);
    due = first_check(queue, start);
    submitted_.push_back({worker, std::move(keys), start, end});
    if (due < queue.next_due.load(std::memory_order_relaxed)) queue.next_due.store(due);
  }
  return due <= workers_[static_cast<std::size_t>(worker)]->clock.load();
}

Clock IntentQueues::first_check(const Queue& queue, Clock start) const {
  return timing_ ? start - queue.reach.load(std::memory_order_relaxed) : 0;
}

bool IntentQueues::on_clock(int worker, Clock clock) {
  // New lead times were measured, which may make an intent due earlier, so a round is requested now.
  if (lead_pending_.load(std::memory_order_relaxed)) settle_requested_.store(true);
  return settle_requested_.load() || clock >= queues_[static_cast<std::size_t>(worker)]->next_due.load();
}

void IntentQueues::take_submitted() {
  std::vector<Submitted> taken;
  {
    const std::lock_guard guard(mutex_);
    taken.swap(submitted_);
  }
  for (Submitted& intent : taken) {
    queues_[static_cast<std::size_t>(intent.worker)]->waiting.emplace(
        intent.start, Signal{std::move(intent.keys), intent.end});
  }
}

void IntentQueues::note_lead(Micros lead) {
  lead_.observe(lead);
  lead_pending_.store(true, std::memory_order_relaxed);
}

void IntentQueues::begin_round(Micros since) {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = *queues_[i];
    const Clock skipped = workers_[i]->skipped.exchange(0);
    const Clock clock = workers_[i]->clock.load();
    const Clock ticks = std::max<Clock>(clock - queue.observed_clock - skipped, 0);
    queue.timer.observe(ticks, since, 2 * round_distance_);
    queue.observed_clock = clock;
  }
  if (settle_requested_.exchange(false)) {
    lead_.settle();
    lead_pending_.store(false, std::memory_order_relaxed);
  }
}

bool IntentQueues::has_overdue() const {
  {
    const std::lock_guard guard(mutex_);
    for (const Submitted& intent : submitted_) {
      if (intent.start <= workers_[static_cast<std::size_t>(intent.worker)]->clock.load()) return true;
    }
  }
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    const Clock clock = workers_[i]->clock.load();
    const Queue& queue = *queues_[i];
    const bool begins = !queue.waiting.empty() && queue.waiting.begin()->first <= clock;
    if (begins || (!queue.acted_on.empty() && queue.acted_on.begin()->first <= clock)) return true;
  }
  return false;
}

double IntentQueues::pace() const {
  double fastest = 0.0;
  for (const auto& queue : queues_) fastest = std::max(fastest, queue->timer.pace());
  return fastest;
}

Clock IntentQueues::horizon_of(Queue& queue, Clock clock, Micros since_round) {
  const Micros lead = lead_.micros();
  queue.reach.store(queue.timer.reach(lead), std::memory_order_relaxed);
  return timing_ ? clock + queue.timer.ahead(lead, since_round) : kForever;
}

void IntentQueues::note_next(Queue& queue, Clock clock, Micros now, Micros last_round) {
  if (!queue.waiting.empty()) {
    const Micros later = queue.timer.until_ahead(queue.waiting.begin()->first - clock, lead_.micros());
    if (later != kNever) due_ = std::min(due_, std::max(last_round + later, now + round_distance_));
  }
  update_next_due(queue, clock);
}

// Computes the next clock at which a round has work: intents to act on, or intents to check because they may
// become due before the clock advances again.
void IntentQueues::update_next_due(Queue& queue, Clock clock) {
  const std::lock_guard guard(mutex_);
  const Clock reach = queue.reach.load(std::memory_order_relaxed);
  const auto due = [&](Clock start) {
    if (!timing_) return Clock{0};
    return std::min(start - queue.timer.window(), std::max(start - reach, clock + 1));
  };
  Clock next = kForever;
  if (!queue.waiting.empty()) next = std::min(next, due(queue.waiting.begin()->first));
  if (!queue.acted_on.empty()) next = std::min(next, queue.acted_on.begin()->first);
  for (const Submitted& submitted : submitted_) {
    if (queues_[static_cast<std::size_t>(submitted.worker)].get() == &queue)
      next = std::min(next, first_check(queue, submitted.start));
  }
  queue.next_due.store(next);
}

}  // namespace adaps
