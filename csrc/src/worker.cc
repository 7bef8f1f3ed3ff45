#include "adaps/worker.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "adaps/channel.h"
#include "adaps/finite.h"
#include "adaps/local.h"
#include "adaps/log.h"
#include "adaps/node_state.h"

namespace adaps {

namespace {

// How often a blocked call looks for interrupts.
constexpr std::chrono::milliseconds kInterruptPeriod{100};

class Stopwatch {
 public:
  explicit Stopwatch(Counter& micros) : micros_(micros) {}
  ~Stopwatch() {
    const auto elapsed = std::chrono::steady_clock::now() - begin_;
    micros_.add(
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count()));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Counter& micros_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

[[noreturn]] void bad_key(Key key, std::uint64_t num_keys) {
  throw std::out_of_range("key " + std::to_string(static_cast<std::int64_t>(key)) + " is not in [0, " +
                          std::to_string(num_keys) + ")");
}

void require_keys(std::size_t count) {
  if (count >= Occurrence::kEnd)
    throw std::invalid_argument("a call with " + std::to_string(count) + " keys; at most " +
                                std::to_string(Occurrence::kEnd - 1) + " are possible");
}

}  // namespace

Worker::Worker(NodeState& node, int index) : node_(node), index_(index) {}

Worker::~Worker() = default;

Ticket Worker::pull(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous) {
  return run(OperationKind::kPull, keys, out, nullptr, floats, asynchronous);
}

Ticket Worker::push(std::span<const Key> keys, const float* deltas, std::size_t floats, bool asynchronous) {
  return run(OperationKind::kPush, keys, nullptr, deltas, floats, asynchronous);
}

Ticket Worker::push_gradients(std::span<const Key> keys, const float* gradients, std::size_t floats,
                              bool asynchronous) {
  return run(OperationKind::kPushGradients, keys, nullptr, gradients, floats, asynchronous);
}

Ticket Worker::set(std::span<const Key> keys, const float* values, std::size_t floats, bool asynchronous) {
  return run(OperationKind::kSet, keys, nullptr, values, floats, asynchronous);
}

Ticket Worker::run(OperationKind kind, std::span<const Key> keys, float* out, const float* in,
                   std::size_t floats, bool asynchronous) {
  std::size_t expected = 0;
  keys = checked(keys, expected);
  if (floats != expected) {
    throw std::invalid_argument("the array holds " + std::to_string(floats) + " values, but " +
                                std::to_string(keys.size()) + " keys need " + std::to_string(expected));
  }
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  auto operation = std::make_shared<Operation>(kind, index_, state.completion);
  operation->out = out;
  operation->in = in;
  FiniteRows finite;
  if (kind == OperationKind::kPushGradients && node_.settings.nonfinite != NonFinite::kPass &&
      !all_finite(in, floats)) {
    if (node_.settings.nonfinite == NonFinite::kRaise)
      throw std::invalid_argument(
          describe_nonfinite(node_.tables, keys, in) +
          ": nothing was applied; nonfinite=\"skip\" would leave such rows as they are");
    finite = finite_rows(node_.tables, keys, in);
    state.counters.gradients_skipped.add(keys.size() - finite.keys.size());
    keys = finite.keys;
    operation->kept = std::move(finite.values);  // until the last of it is sent
    operation->in = operation->kept.data();
  }
  start(node_, *operation, keys);
  if (operation->units.empty()) return kDone;
  if (!has_room(node_, index_)) wait_for_room();
  submit_units(node_, *operation);
  if (asynchronous) {
    const Ticket ticket = next_ticket_++;
    outstanding_.emplace(ticket, std::move(operation));
    return ticket;
  }
  const Stopwatch stopwatch(state.counters.blocked_micros);
  block(operation);
  return kDone;
}

std::span<const Key> Worker::checked(std::span<const Key> keys, std::size_t& floats) {
  require_keys(keys.size());
  const Tables& tables = node_.tables;
  keys_.assign(keys.begin(), keys.end());
  keys = keys_;
  floats = 0;
  if (keys.empty()) return keys;
  Key largest = 0;
  Key smallest = ~Key{0};
  for (const Key key : keys) {
    largest = std::max(largest, key);
    smallest = std::min(smallest, key);
  }
  if (largest >= tables.num_keys()) {
    bad_key(*std::find_if(keys.begin(), keys.end(), [&](Key key) { return key >= tables.num_keys(); }),
            tables.num_keys());
  }
  const Table* hint = nullptr;
  const Table& table = tables.find(smallest, hint);
  if (table.contains(largest)) {
    floats = keys.size() * table.length();
  } else {
    for (const Key key : keys) floats += tables.find(key, hint).length();
  }
  return keys;
}

// Nothing of the call is under way yet: whatever ends the waiting ends the call.
void Worker::wait_for_room() {
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.queue_full_micros);
  std::unique_lock lock(state.completion.mutex);
  while (!has_room(node_, index_)) {
    node_.check();
    const bool woken =
        state.completion.changed.wait_for(lock, kInterruptPeriod) == std::cv_status::no_timeout;
    if (woken || !interrupt_check_) continue;
    lock.unlock();
    interrupt_check_();
    lock.lock();
  }
}

// A failure or an interrupt abandons the operation: it lives on, as channels may still name it, but they
// leave its arrays alone.
void Worker::block(const std::shared_ptr<Operation>& operation) {
  Completion& completion = operation->completion;
  std::unique_lock lock(completion.mutex);
  try {
    while (!operation->done.load(std::memory_order_acquire)) {
      node_.check();
      const bool woken = completion.changed.wait_for(lock, kInterruptPeriod) == std::cv_status::no_timeout;
      if (woken || !interrupt_check_) continue;
      lock.unlock();
      interrupt_check_();
      lock.lock();
    }
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();
    const std::lock_guard guard(operation->arrays);
    operation->abandoned = true;
    abandoned_.push_back(operation);
    throw;
  }
}

void Worker::intent(std::span<const Key> keys, Clock start, Clock end) {
  std::size_t floats = 0;
  keys = checked(keys, floats);
  if (start > kMaxClock)
    throw std::invalid_argument("an intent for clock " + std::to_string(start) + "; clocks go to " +
                                std::to_string(kMaxClock));
  if (end <= start) {
    throw std::invalid_argument("an intent for clocks [" + std::to_string(start) + ", " +
                                std::to_string(end) + ") is empty; its end must be above its start");
  }
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  state.counters.intents.add(keys.size());
  const Clock clock = state.clock.load(std::memory_order_relaxed);
  if (end <= clock) {
    state.counters.intents_late.add(keys.size());
    if (!std::exchange(told_late_, true)) {
      log_message(LogLevel::kWarning,
                  "worker " + std::to_string(index_) + " signalled intent for clocks [" +
                      std::to_string(start) + ", " + std::to_string(end) + ") at clock " +
                      std::to_string(clock) +
                      ": it has no effect; signal it before its end (said once; stats() counts "
                      "intents_late)");
    }
    return;
  }
  if (!node_.settings.uses_intent() || keys.empty()) return;
  start = std::max<Clock>(start, 0);  // where clocks begin
  if (node_.channels.size() == 1) {
    node_.channels[0]->submit_intent(index_, std::exchange(keys_, {}), start, end);
    return;
  }
  std::vector<std::vector<Key>> by_channel(node_.channels.size());
  for (const Key key : keys)
    by_channel[static_cast<std::size_t>(node_.directory.channel(key))].push_back(key);
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty())
      node_.channels[i]->submit_intent(index_, std::move(by_channel[i]), start, end);
  }
}

void Worker::wait_intent(std::span<const Key> keys) {
  std::size_t floats = 0;
  keys = checked(keys, floats);
  check_usable();
  if (!node_.settings.uses_intent()) return;
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.blocked_micros);
  auto operation = std::make_shared<Operation>(OperationKind::kLocalize, index_, state.completion);
  start(node_, *operation, keys);
  if (operation->units.empty()) return;
  submit_units(node_, *operation);
  block(operation);
}

void Worker::advance_clock() {
  const Clock clock = node_.workers[static_cast<std::size_t>(index_)]->clock.fetch_add(1) + 1;
  for (const auto& channel : node_.channels) channel->on_clock(index_, clock);
}

void Worker::skip_to_clock(Clock clock) {
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Clock now = state.clock.load(std::memory_order_relaxed);
  if (clock > kMaxClock)
    throw std::invalid_argument("clock " + std::to_string(clock) + " is too late; clocks go to " +
                                std::to_string(kMaxClock));
  if (clock <= now) return;
  state.skipped.fetch_add(clock - now);
  state.clock.store(clock);
  for (const auto& channel : node_.channels) channel->on_clock(index_, clock);
}

Clock Worker::current_clock() const {
  return node_.workers[static_cast<std::size_t>(index_)]->clock.load(std::memory_order_relaxed);
}

const std::shared_ptr<Operation>* Worker::find(Ticket ticket) const {
  if (ticket < 0 || ticket >= next_ticket_) {
    throw std::invalid_argument("ticket " + std::to_string(ticket) + " was never issued");
  }
  const auto found = outstanding_.find(ticket);
  return found == outstanding_.end() ? nullptr : &found->second;
}

bool Worker::is_done(Ticket ticket) {
  if (ticket == kDone) return true;
  const std::shared_ptr<Operation>* operation = find(ticket);
  if (operation == nullptr) return true;
  if (!(*operation)->done.load(std::memory_order_acquire)) {
    node_.check();
    return false;
  }
  // The thread that finished it may still hold the completion's mutex.
  {
    const std::lock_guard guard((*operation)->completion.mutex);
  }
  outstanding_.erase(ticket);
  return true;
}

void Worker::wait(Ticket ticket) {
  if (ticket == kDone) return;
  const std::shared_ptr<Operation>* operation = find(ticket);
  if (operation == nullptr) return;
  const Stopwatch stopwatch(node_.workers[static_cast<std::size_t>(index_)]->counters.blocked_micros);
  const std::shared_ptr<Operation> kept = *operation;
  outstanding_.erase(ticket);
  block(kept);
}

void Worker::waitall() {
  while (!outstanding_.empty()) wait(outstanding_.begin()->first);
}

Ticket Worker::wait_sync(bool asynchronous) {
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.sync_micros);
  const auto operation = std::make_shared<Operation>(OperationKind::kSync, index_, state.completion);
  operation->left.store(static_cast<std::uint32_t>(node_.channels.size()) + 1);
  node_.epochs.wait(*operation);
  for (const auto& channel : node_.channels) channel->submit_sync(*operation);
  if (asynchronous) {
    const Ticket ticket = next_ticket_++;
    outstanding_.emplace(ticket, operation);
    return ticket;
  }
  block(operation);
  return kDone;
}

void Worker::barrier() { agree(true); }

std::optional<NodeId> Worker::agree(bool well) {
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.barrier_micros);
  const auto operation = std::make_shared<Operation>(OperationKind::kBarrier, index_, state.completion);
  operation->left.store(1);
  if (node_.gathering.arrive(*operation, !well)) node_.channels[0]->submit_gathered(false);
  block(operation);
  return node_.gathering.failed_node();
}

void Worker::finalize() {
  if (finalized_) return;
  waitall();
  finalized_ = true;
  if (node_.gathering.leave()) node_.channels[0]->submit_gathered(false);
}

void Worker::check_usable() const {
  node_.check();
  if (finalized_) throw std::logic_error("worker " + std::to_string(index_) + " is finalized");
}

void Worker::set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

}  // namespace adaps
