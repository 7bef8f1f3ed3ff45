#include "node/worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "common/deduplicate.h"
#include "common/log.h"
#include "node/interruptible_wait.h"
#include "protocol/context.h"
#include "protocol/id_listings.h"
#include "protocol/local_access.h"
#include "protocol/row_assignment.h"
#include "store/finite.h"

namespace adaps {

namespace {

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

[[noreturn]] void no_id(const Table& table, Key key) {
  throw std::out_of_range("row " + std::to_string(key - table.first_key()) + " of table '" +
                          table.spec().name + "' has no id on this node: use rows of rows_of()");
}

[[noreturn]] void not_in_use(const Table& table, Key key) {
  throw std::out_of_range("row " + std::to_string(key - table.first_key()) + " of table '" +
                          table.spec().name +
                          "' is from an earlier clock and may have another id now: call rows_of() in each "
                          "clock, or signal intent for the row");
}

void require_ids(const Table& table) {
  if (table.ids() == nullptr)
    throw std::invalid_argument("table '" + table.spec().name +
                                "' has no ids: its keys are the numbers of its rows");
}

void require_clocks(const std::string& what, Clock start, Clock end) {
  if (start > kMaxClock)
    throw std::invalid_argument(what + " for clock " + std::to_string(start) + "; clocks go to " +
                                std::to_string(kMaxClock));
  if (end <= start) {
    throw std::invalid_argument(what + " for the clocks [" + std::to_string(start) + ", " +
                                std::to_string(end) + ") is empty: end must be greater than start");
  }
}

void require_keys(std::size_t count) {
  if (count >= Occurrence::kEnd)
    throw std::invalid_argument("a call with " + std::to_string(count) + " keys; at most " +
                                std::to_string(Occurrence::kEnd - 1) + " are possible");
}

void require_floats(std::size_t given, std::size_t keys, std::size_t needed) {
  if (given != needed)
    throw std::invalid_argument("the array holds " + std::to_string(given) + " values, but " +
                                std::to_string(keys) + " keys need " + std::to_string(needed));
}

// Divides gradients into blocks of consecutive rows that fit into a cache. If the parts are in order, no key
// word of a block shares a stamp with a later block.
class GradientBlocks {
 public:
  GradientBlocks(const Table& table, std::span<const RowStep> parts, float scale)
      : length_(table.length()),
        rows_at_once_(KeyWords::kOfLine * std::max<std::size_t>(kFloats / (KeyWords::kOfLine * length_), 1)),
        scale_(scale),
        parts_(parts) {}

  // Prepares the next block. Returns false if there is none.
  bool next() {
    keys_.clear();
    gradients_.clear();
    while (!parts_.empty() && takes(parts_.front())) {
    }
    return !keys_.empty();
  }
  std::span<const Key> keys() const { return keys_; }
  std::span<const float> gradients() const { return gradients_; }

 private:
  static constexpr std::size_t kFloats = 16'384;

  // Adds a row of the part to the block, or continues with the next part. Returns false if the block must end
  // before the row.
  bool takes(const RowStep& part) {
    if (taken_ >= part.floats) {
      taken_ = 0;
      parts_ = parts_.subspan(1);
      return true;
    }
    const Key key = part.first + taken_ / length_;
    const bool follows = keys_.empty() || (key == keys_.back() + 1 && key % rows_at_once_ != 0);
    if (!follows) return false;
    const float* gradient = part.gradients + taken_;
    const std::size_t given = std::min(length_, part.floats - taken_);
    const std::size_t at = gradients_.size();
    gradients_.resize(at + length_, 0.0F);
    for (std::size_t i = 0; i < given; ++i) gradients_[at + i] = gradient[i] * scale_;
    keys_.push_back(key);
    taken_ += length_;
    return true;
  }

  const std::size_t length_;
  const std::size_t rows_at_once_;
  const float scale_;
  std::span<const RowStep> parts_;
  std::size_t taken_ = 0;  // floats of the first part that were taken
  std::vector<Key> keys_;
  std::vector<float> gradients_;
};

// Computes the change that the user's code wrote into a row. Returns whether there is a change. A NaN that
// was NaN before is no change.
bool find_written(const float* value, const float* pulled, std::span<float> delta) {
  if (std::memcmp(value, pulled, delta.size_bytes()) == 0) return false;
  bool any = false;
  for (std::size_t i = 0; i < delta.size(); ++i) {
    any |= value[i] != pulled[i] && !(std::isnan(value[i]) && std::isnan(pulled[i]));
    delta[i] = value[i] - pulled[i];
  }
  return any;
}

}  // namespace

Worker::Worker(NodeContext& node, int index) : node_(node), index_(index) {}

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

Ticket Worker::pull_state(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous) {
  return run(OperationKind::kPullState, keys, out, nullptr, floats, asynchronous);
}

Ticket Worker::set_state(std::span<const Key> keys, const float* states, std::size_t floats,
                         bool asynchronous) {
  return run(OperationKind::kSetState, keys, nullptr, states, floats, asynchronous);
}

Ticket Worker::run(OperationKind kind, std::span<const Key> keys, float* out, const float* in,
                   std::size_t floats, bool asynchronous) {
  std::size_t expected = 0;
  keys = checked(keys, expected, kind);
  require_floats(floats, keys.size(), expected);
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  auto operation = std::make_shared<Operation>(kind, index_, state.completion);
  operation->out = out;
  operation->in = in;
  FiniteRows finite;
  if (kind == OperationKind::kPushGradients && must_skip(keys, in, floats)) {
    finite = finite_rows(node_.tables, keys, in);
    state.counters.gradients_skipped.add(keys.size() - finite.keys.size());
    keys = finite.keys;
    operation->kept = std::move(finite.values);  // kept until the last message is sent
    operation->in = operation->kept.data();
  }
  start(node_, *operation, keys);
  if (operation->requests.empty()) return kDone;
  if (!may_queue_more(node_, index_)) wait_until_queue_drains();
  submit_requests(node_, *operation);
  if (asynchronous) {
    const Ticket ticket = next_ticket_++;
    outstanding_.emplace(ticket, std::move(operation));
    return ticket;
  }
  const Stopwatch stopwatch(state.counters.blocked_micros);
  block(operation);
  return kDone;
}

Ticket Worker::rows_of(const Table& table, std::span<const std::int64_t> ids, std::span<std::int64_t> rows,
                       bool asynchronous, bool creates) {
  require_keys(ids.size());
  require_ids(table);
  if (rows.size() != ids.size())
    throw std::invalid_argument("the array has room for " + std::to_string(rows.size()) + " rows, but " +
                                std::to_string(ids.size()) + " ids need one each");
  check_usable();
  rows_.resize(ids.size());
  if (find_rows(node_, table, ids, rows_.data(), index_, creates) == 0) {
    std::ranges::copy(rows_, rows.begin());
    return kDone;
  }
  std::shared_ptr<Operation> operation = request_rows(table, ids, rows.data(), creates);
  if (asynchronous && !operation->id_call->requests.empty()) {
    const Ticket ticket = next_ticket_++;
    outstanding_.emplace(ticket, std::move(operation));
    return ticket;
  }
  const Stopwatch stopwatch(node_.workers[static_cast<std::size_t>(index_)]->counters.blocked_micros);
  block_for_rows(std::move(operation));
  return kDone;
}

std::shared_ptr<Operation> Worker::request_rows(const Table& table, std::span<const std::int64_t> ids,
                                                std::int64_t* rows, bool creates) {
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  auto operation = std::make_shared<Operation>(OperationKind::kRowsOf, index_, state.completion);
  operation->id_call = std::make_unique<IdCall>(table, ids, rows, creates);
  start_rows_of(node_, *operation);
  if (operation->id_call->requests.empty()) return operation;
  if (!may_queue_more(node_, index_)) wait_until_queue_drains();
  submit_id_requests(node_, *operation);
  return operation;
}

// A row may be retired again before the worker finds it, if its clock has advanced during the call.
void Worker::block_for_rows(std::shared_ptr<Operation> operation) {
  for (;;) {
    block(operation);
    if (finish_rows_of(node_, *operation)) return;
    const IdCall& call = *operation->id_call;
    operation = request_rows(*call.table, call.ids, call.rows, call.creates);
  }
}

std::vector<std::int64_t> Worker::used_ids(const Table& table) {
  require_ids(table);
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const auto operation = std::make_shared<Operation>(OperationKind::kUsedIds, index_, state.completion);
  operation->id_listing = std::make_unique<IdListing>(&table);
  start_used_ids(node_, *operation);
  if (!operation->done.load(std::memory_order_acquire)) {
    const Stopwatch stopwatch(state.counters.blocked_micros);
    node_.partitions[0]->submit_id_listing(*operation);
    block(operation);
  }
  std::vector<std::int64_t> ids = std::move(operation->id_listing->ids);
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

bool Worker::changed(std::span<const Key> keys, std::span<std::int64_t> seen) {
  std::size_t floats = 0;
  keys = checked(keys, floats);
  if (seen.size() != keys.size())
    throw std::invalid_argument("seen holds " + std::to_string(seen.size()) + " values, but " +
                                std::to_string(keys.size()) + " keys need one each");
  check_usable();
  return is_changed(node_, keys, seen);
}

bool Worker::must_skip(std::span<const Key> keys, const float* gradients, std::size_t floats) const {
  if (node_.settings.nonfinite == NonFinite::kPass || all_finite(gradients, floats)) return false;
  if (node_.settings.nonfinite == NonFinite::kRaise)
    throw std::invalid_argument(
        describe_nonfinite(node_.tables, keys, gradients) +
        ": nothing was applied; nonfinite=\"skip\" would leave such rows as they are");
  return true;
}

void Worker::push_sums(const Table& table, std::span<const Key> keys, const float* gradients,
                       std::size_t floats) {
  require_floats(floats, keys.size(), keys.size() * table.length());
  const auto not_next = [](Key one, Key next) { return next != one + 1; };
  if (std::ranges::adjacent_find(keys, not_next) == keys.end()) {  // a range contains each key once
    push_gradients(keys, gradients, floats, false);
    return;
  }
  const std::span ids(reinterpret_cast<const std::int64_t*>(keys.data()), keys.size());
  const RowSums sums = sum_by_key(ids, gradients, table.length());
  const std::span distinct(reinterpret_cast<const Key*>(sums.keys.data()), sums.keys.size());
  push_gradients(distinct, sums.rows.data(), sums.rows.size(), false);
}

void Worker::step_rows(std::span<const RowStep> parts) {
  check_usable();
  if (node_.settings.nodes != 1 || node_.settings.workers != 1)
    throw std::logic_error("only a single worker can step rows in place; there are other workers");
  bool skips = false;
  for (const RowStep& part : parts) {
    if (part.first >= node_.tables.num_keys()) bad_key(part.first, node_.tables.num_keys());
    const Table& table = node_.tables.find(part.first);
    if (table.ids() != nullptr)
      throw std::invalid_argument("rows of table '" + table.spec().name +
                                  "' cannot be stepped in place, because its keys are ids");
    if (table.is_limited())
      throw std::invalid_argument("rows of table '" + table.spec().name +
                                  "' cannot be stepped in place, because its memory is limited");
    const std::size_t rows = (part.floats + table.length() - 1) / table.length();
    if (rows > table.end_key() - part.first) bad_key(table.end_key(), table.end_key());
    if (node_.settings.nonfinite == NonFinite::kPass || all_finite(part.gradients, part.floats)) continue;
    std::vector<float> whole(part.gradients, part.gradients + part.floats);
    whole.resize(rows * table.length(), 0.0F);
    std::vector<Key> keys(rows);
    std::iota(keys.begin(), keys.end(), part.first);
    skips = must_skip(keys, whole.data(), whole.size());
  }
  Counter& skipped = node_.workers[static_cast<std::size_t>(index_)]->counters.gradients_skipped;
  for (const RowStep& part : parts)
    skipped.add(step_in_place(node_, index_, part.first, {part.values, part.floats}, part.gradients, skips));
}

void Worker::step_copies(const RowCopies& copies, std::span<const RowStep> parts, float scale) {
  check_usable();
  const Table& table = copies.table;
  if (table.ids() != nullptr)
    throw std::invalid_argument("table '" + table.spec().name +
                                "' cannot have copies of all rows, because its keys are ids");
  if (node_.settings.nonfinite == NonFinite::kRaise) {
    for (GradientBlocks blocks(table, parts, scale); blocks.next();)
      must_skip(blocks.keys(), blocks.gradients().data(), blocks.gradients().size());
  }
  for (GradientBlocks blocks(table, parts, scale); blocks.next();) {
    const std::span<const Key> keys = blocks.keys();
    const std::size_t row = keys.front() - table.first_key();
    const std::size_t floats = keys.size() * table.length();
    push_written(copies, keys);
    push_gradients(keys, blocks.gradients().data(), floats, false);
    is_changed(node_, keys, {copies.seen + row, keys.size()});
    float* values = copies.values + row * table.length();
    pull(keys, values, floats, false);
    std::copy_n(values, floats, copies.pulled + row * table.length());
  }
}

void Worker::push_written(const RowCopies& copies, std::span<const Key> keys) {
  std::vector<float> delta(copies.table.length());
  for (const Key& key : keys) {
    const std::size_t at = (key - copies.table.first_key()) * delta.size();
    if (find_written(copies.values + at, copies.pulled + at, delta))
      push({&key, 1}, delta.data(), delta.size(), false);
  }
}

std::span<const Key> Worker::checked(std::span<const Key> keys, std::size_t& floats, OperationKind kind) {
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
    floats = keys.size() * floats_per_key(kind, table);
  } else {
    for (const Key key : keys) floats += floats_per_key(kind, tables.find(key, hint));
  }
  if (!tables.any_ids() || (table.contains(largest) && table.ids() == nullptr)) return keys;
  const std::uint64_t begin = node_.workers[static_cast<std::size_t>(index_)]->tick.load();
  const std::uint64_t tick = node_.tick.load();
  for (const Key key : keys) {
    const Table& of = tables.find(key, hint);
    if (!of.is_usable(key)) [[unlikely]]
      no_id(of, key);
    if (of.uses() == nullptr) continue;
    const std::uint64_t row = key - of.first_key();
    const RowUse use = of.uses()->last_use(row, tick);
    const bool is_mine = static_cast<int>(use.worker) == index_ || use.worker == RowUse::kSeveral;
    if (is_mine && use.last >= begin) continue;
    // The intent that needs the row may be another worker's and end during the call. The row may then be
    // given to another id.
    const std::int64_t id = of.ids()->id(row);
    const bool is_pinned = of.uses()->pins(row) > 0;
    if (is_pinned) {
      node_.use(*of.uses(), row, index_);
      KeyWords::fence(std::memory_order_seq_cst);  // see Retirement::give_up
    }
    if (!is_pinned || !of.ids()->has(row, id)) [[unlikely]]
      not_in_use(of, key);
  }
  return keys;
}

// No part of the call has been sent yet, so an exception during the wait only ends the call.
void Worker::wait_until_queue_drains() {
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.queue_full_micros);
  std::unique_lock lock(state.completion.mutex);
  wait_interruptibly(node_, lock, state.completion.changed, interrupt_check_,
                     [this] { return may_queue_more(node_, index_); });
}

void Worker::hurry(Ticket ticket) {
  if (const std::shared_ptr<Operation>* operation = find(ticket)) hurry_sync(node_, **operation);
}

// A failed or interrupted operation is abandoned. It stays in memory, because channels may still refer to it,
// but they do not access its arrays any more.
void Worker::block(const std::shared_ptr<Operation>& operation) {
  hurry_sync(node_, *operation);
  Completion& completion = operation->completion;
  std::unique_lock lock(completion.mutex);
  try {
    wait_interruptibly(node_, lock, completion.changed, interrupt_check_,
                       [&] { return operation->done.load(std::memory_order_acquire); });
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
  require_clocks("an intent", start, end);
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
                      ": it has no effect; signal it before its end (logged once; stats() counts "
                      "intents_late)");
    }
    return;
  }
  // An intent for rows that may be retired keeps them, also if it has no other effect.
  std::erase_if(keys_,
                [this](Key key) { return !node_.counts_intent(key) && node_.uses_of(key) == nullptr; });
  if (keys_.empty()) return;
  keys = keys_;
  for (const Key key : keys) node_.pin(key);
  start = std::max<Clock>(start, 0);  // 0 is the first clock
  // The rows that stay in memory are chosen by intent, so an intent for a limited table begins at once.
  const Tables& tables = node_.tables;
  if (tables.any_limited() &&
      std::ranges::any_of(keys, [&](Key key) { return tables.find(key).is_limited(); }))
    start = std::min(start, std::max<Clock>(clock, 0));
  if (node_.partitions.size() == 1) {
    node_.partitions[0]->submit_intent(index_, std::exchange(keys_, {}), start, end);
    return;
  }
  std::vector<std::vector<Key>> by_channel(node_.partitions.size());
  for (const Key key : keys)
    by_channel[static_cast<std::size_t>(node_.directory.channel(key))].push_back(key);
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty())
      node_.partitions[i]->submit_intent(index_, std::move(by_channel[i]), start, end);
  }
}

void Worker::wait_intent(std::span<const Key> keys) {
  std::size_t floats = 0;
  keys = checked(keys, floats);
  check_usable();
  std::erase_if(keys_, [this](Key key) { return !node_.counts_intent(key); });
  keys = keys_;
  if (keys.empty()) return;
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Stopwatch stopwatch(state.counters.blocked_micros);
  auto operation = std::make_shared<Operation>(OperationKind::kLocalize, index_, state.completion);
  start(node_, *operation, keys);
  if (operation->requests.empty()) return;
  submit_requests(node_, *operation);
  block(operation);
}

Ticket Worker::prepare_sample(const Table& table, std::size_t size, Clock start, Clock end) {
  require_keys(size);
  require_clocks("a sample", start, end);
  check_usable();
  std::vector<Announcement> announcements;
  Sampler& sampler = this->sampler(table);
  Sample sample = sampler.prepare(size, start, end, announcements);
  for (const Announcement& announced : announcements) intent(announced.keys, announced.start, announced.end);
  const Ticket number = next_sample_++;
  prepared_.emplace(number, PreparedSample{&sampler, std::move(sample)});
  return number;
}

Ticket Worker::pull_sample(Ticket number, std::span<std::int64_t> rows, float* values, std::size_t floats,
                           bool asynchronous) {
  const auto found = prepared_.find(number);
  if (found == prepared_.end())
    throw std::invalid_argument(
        "sample " + std::to_string(number) + " was " +
        (number >= 0 && number < next_sample_ ? "read already; each is read once" : "never prepared"));
  const Sampler& of = *found->second.sampler;
  const Table& table = of.table();
  const std::size_t size = found->second.sample.size;
  if (rows.size() != size)
    throw std::invalid_argument("the array has room for " + std::to_string(rows.size()) +
                                " rows, but the sample has " + std::to_string(size));
  if (values != nullptr && floats != size * table.length()) {
    throw std::invalid_argument("the array holds " + std::to_string(floats) + " values, but " +
                                std::to_string(size) + " rows need " + std::to_string(size * table.length()));
  }
  check_usable();
  const PreparedSample taken = std::move(found->second);
  prepared_.erase(found);
  TableAccesses& accesses =
      node_.workers[static_cast<std::size_t>(index_)]->accesses[node_.tables.number_of(table)];
  const AccessCounters& pulled = accesses.pulled;
  const std::uint64_t local = pulled.local.get();
  const std::uint64_t replica = pulled.replica.get();
  const std::uint64_t remote = pulled.remote.get();
  std::vector<Key> keys(size);
  const std::size_t here = taken.sampler->take(taken.sample, keys, values);
  for (std::size_t i = 0; i < size; ++i) rows[i] = static_cast<std::int64_t>(keys[i] - table.first_key());
  if (values == nullptr) return kDone;
  const std::size_t read = here * table.length();
  const Ticket ticket = run(OperationKind::kPull, std::span<const Key>(keys).subspan(here), values + read,
                            nullptr, floats - read, asynchronous);
  accesses.sampled.local.add(pulled.local.get() - local);
  accesses.sampled.replica.add(pulled.replica.get() - replica);
  accesses.sampled.remote.add(pulled.remote.get() - remote);
  return ticket;
}

Sampler& Worker::sampler(const Table& table) {
  samplers_.resize(node_.tables.size());
  std::unique_ptr<Sampler>& sampler = samplers_[node_.tables.number_of(table)];
  if (sampler == nullptr) sampler = Sampler::make(node_, index_, table);
  return *sampler;
}

void Worker::advance_clock() {
  const Clock clock = node_.workers[static_cast<std::size_t>(index_)]->clock.fetch_add(1) + 1;
  node_.end_uses(index_);
  for (const auto& partition : node_.partitions) partition->on_clock(index_, clock);
}

void Worker::end_uses() { node_.end_uses(index_); }

void Worker::skip_to_clock(Clock clock) {
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const Clock now = state.clock.load(std::memory_order_relaxed);
  if (clock > kMaxClock)
    throw std::invalid_argument("clock " + std::to_string(clock) + " is too late; clocks go to " +
                                std::to_string(kMaxClock));
  if (clock <= now) return;
  state.skipped.fetch_add(clock - now);
  state.clock.store(clock);
  node_.end_uses(index_);
  for (const auto& partition : node_.partitions) partition->on_clock(index_, clock);
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
  // The thread that completed the operation may still hold the completion's mutex.
  {
    const std::lock_guard guard((*operation)->completion.mutex);
  }
  // wait() reports the failure of a call for rows.
  const bool has_failed = (*operation)->id_call && (*operation)->id_call->full.load() != IdCall::kNone;
  if (has_failed) return true;
  if (const auto& call = (*operation)->id_call; call && !finish_rows_of(node_, **operation)) {
    // A full queue would block, so a later call makes the request.
    if (may_queue_more(node_, index_))
      outstanding_[ticket] = request_rows(*call->table, call->ids, call->rows, call->creates);
    return false;
  }
  outstanding_.erase(ticket);
  return true;
}

void Worker::wait(Ticket ticket) {
  if (ticket == kDone) return;
  const std::shared_ptr<Operation>* operation = find(ticket);
  if (operation == nullptr) return;
  const std::shared_ptr<Operation> kept = *operation;
  WorkerCounters& counters = node_.workers[static_cast<std::size_t>(index_)]->counters;
  const Stopwatch stopwatch(kept->kind == OperationKind::kSync ? counters.sync_micros
                                                               : counters.blocked_micros);
  outstanding_.erase(ticket);
  if (kept->id_call) {
    block_for_rows(kept);
  } else {
    block(kept);
  }
}

void Worker::waitall() {
  while (!outstanding_.empty()) wait(outstanding_.begin()->first);
}

Ticket Worker::wait_sync(bool asynchronous) {
  check_usable();
  WorkerState& state = *node_.workers[static_cast<std::size_t>(index_)];
  const auto operation = std::make_shared<Operation>(OperationKind::kSync, index_, state.completion);
  operation->left.store(static_cast<std::uint32_t>(node_.partitions.size()) + 1);
  operation->clock = state.clock.load();
  operation->patient.store(asynchronous && node_.settings.nodes > 1);
  node_.epochs.wait(*operation);
  for (const auto& partition : node_.partitions) partition->submit_sync(*operation);
  if (asynchronous) {
    const Ticket ticket = next_ticket_++;
    outstanding_.emplace(ticket, operation);
    return ticket;
  }
  const Stopwatch stopwatch(state.counters.sync_micros);
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
  if (node_.barrier.arrive(*operation, !well)) node_.partitions[0]->submit_arrival(false);
  block(operation);
  return node_.barrier.failed_node();
}

void Worker::finalize() {
  if (finalized_) return;
  // No one waits for the results of these calls, so a call for rows may have failed.
  while (!outstanding_.empty()) block(outstanding_.extract(outstanding_.begin()).mapped());
  finalized_ = true;
  node_.end_all_uses(index_);
  if (node_.barrier.leave(index_)) node_.partitions[0]->submit_arrival(false);
}

void Worker::check_usable() const {
  node_.check();
  if (finalized_) throw std::logic_error("worker " + std::to_string(index_) + " is finalized");
}

void Worker::set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

}  // namespace adaps
