#include "adaps/channel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "adaps/mutant.h"

namespace adaps {

namespace {

// The channel that the current thread drives: it looks at requests for a round by itself and needs no waking.
thread_local const Channel* driven = nullptr;

class Driving {
 public:
  explicit Driving(const Channel* channel) : before_(std::exchange(driven, channel)) {}
  ~Driving() { driven = before_; }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  const Channel* before_;
};

// Microseconds; beyond it rounds might as well not be.
constexpr double kRarestRounds = 1e15;

// Numbers of barrier messages; one of a release of kFailed + n says that something failed on node n.
constexpr std::uint32_t kAtBarrier = 0;
constexpr std::uint32_t kForGood = 1;
constexpr std::uint32_t kFailed = 2;

// Added to the rank in a message of a loss: the node lives, but does not come where all others wait for it.
constexpr std::uint32_t kStalled = 1u << 16;
const std::string kStalledReason =
    "it lives, but has not come to where others wait for it within stall_timeout";

}  // namespace

Channel::Channel(NodeState& node, int index)
    : node_(node),
      index_(index),
      rank_(node.settings.rank),
      technique_(node.settings.technique),
      outbox_(node.settings.nodes),
      taken_(node.settings.nodes),
      held_back_(node.settings.nodes),
      echoes_due_(node.settings.nodes),
      round_distance_(
          static_cast<Micros>(std::min(1e6 / node.settings.max_rounds_per_second, kRarestRounds))),
      last_round_(-round_distance_),
      cadence_(node.tables),
      deferred_(node.tables.size()),
      table_due_(node.tables.size()),
      at_barrier_(node.settings.nodes),
      left_(node.settings.nodes),
      said_goodbye_(node.settings.nodes) {
  for (int i = 0; i < node.settings.workers; ++i) interests_.push_back(std::make_unique<Interest>());
  if (technique_ != Technique::kFullReplication || node.settings.nodes == 1)
    permanent_cursor_ = node.tables.num_keys();
}

// --- submissions ---

void Channel::wake() {
  if (driven == this) return;
  if (!signalled_.exchange(true) && waker_) waker_();
}

void Channel::request_round() {
  if (!round_requested_.exchange(true)) wake();
}

void Channel::submit(std::span<Unit* const> units) {
  {
    const std::lock_guard guard(inbox_mutex_);
    submitted_units_.insert(submitted_units_.end(), units.begin(), units.end());
  }
  wake();
}

void Channel::submit_sync(Operation& operation) {
  {
    const std::lock_guard guard(inbox_mutex_);
    submitted_syncs_.push_back(&operation);
  }
  wake();
}

void Channel::submit_gathered(bool for_good) {
  {
    const std::lock_guard guard(inbox_mutex_);
    submitted_gatherings_.push_back(for_good);
  }
  wake();
}

void Channel::submit_goodbye() {
  {
    const std::lock_guard guard(inbox_mutex_);
    goodbye_submitted_ = true;
  }
  wake();
}

void Channel::submit_intent(int worker, std::vector<Key> keys, Clock start, Clock end) {
  Interest& interest = *interests_[static_cast<std::size_t>(worker)];
  Clock due = 0;
  {
    const std::lock_guard guard(inbox_mutex_);
    due = node_.settings.timing ? start - interest.reach.load(std::memory_order_relaxed) : 0;
    submitted_intents_.push_back({worker, std::move(keys), start, end});
    if (due < interest.next_due.load(std::memory_order_relaxed)) interest.next_due.store(due);
  }
  if (due <= node_.workers[static_cast<std::size_t>(worker)]->clock.load()) request_round();
}

void Channel::on_clock(int worker, Clock clock) {
  // Lead times were measured anew, so an intent may be due earlier: look now, not at a later round.
  if (lead_pending_.load(std::memory_order_relaxed)) settle_requested_.store(true);
  if (settle_requested_.load() || clock >= interests_[static_cast<std::size_t>(worker)]->next_due.load())
    request_round();
}

void Channel::mark_dirty(LockedKey& key) {
  std::uint8_t& flags = key.header().flags;
  if ((flags & kOnDirtyList) != 0) return;
  flags |= kOnDirtyList;
  if (dirty_.add(key.key())) request_round();
}

void Channel::take_submissions() {
  std::vector<Submitted> intents;
  {
    const std::lock_guard guard(inbox_mutex_);
    intents.swap(submitted_intents_);
    more_submitted_ = !batch_.done();
    if (!more_submitted_) {
      batch_ = {};
      batch_.units = std::exchange(next_parts_, {});
      batch_.units.insert(batch_.units.end(), submitted_units_.begin(), submitted_units_.end());
      submitted_units_.clear();
      batch_.syncs.swap(submitted_syncs_);
      batch_.gatherings.swap(submitted_gatherings_);
      batch_.goodbye = goodbye_submitted_ && !goodbye_sent_;
      batch_.begins_round = std::any_of(batch_.units.begin(), batch_.units.end(), [](const Unit* unit) {
        return unit->operation->kind == OperationKind::kLocalize;
      });
    }
  }
  for (Submitted& intent : intents) {
    interests_[static_cast<std::size_t>(intent.worker)]->queued.emplace(
        intent.start, Signal{std::move(intent.keys), intent.end});
  }
}

void Channel::work_off_batch() {
  begin_turn();
  if (std::exchange(batch_.begins_round, false)) {
    run_round();
    batch_.follows_intents = true;
    begin_turn();
  }
  if (batch_.follows_intents && acting_ && !node_.frozen.load()) return;
  while (batch_.next < batch_.units.size()) {
    if (turn_is_over()) return;
    Unit& unit = *batch_.units[batch_.next++];
    spend(unit.occurrences * node_.tables.find(unit.key, table_hint_).length());
    try_operation(unit);
  }
  for (Operation* operation : std::exchange(batch_.syncs, {})) begin_sync(*operation);
  for (const bool for_good : std::exchange(batch_.gatherings, {})) on_gathered(for_good);
  if (std::exchange(batch_.goodbye, false)) {
    for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
      if (peer != rank_) outbox_.append(peer, NumberMessage{.type = MessageType::kGoodbye});
    }
    goodbye_sent_.store(true, std::memory_order_release);
    node_.announce_ending();
  }
}

std::size_t Channel::affordable(std::span<const Key> keys) {
  std::size_t count = 0;
  for (; count < keys.size() && !turn_is_over(); ++count)
    spend(node_.tables.find(keys[count], table_hint_).width());
  return count;
}

// --- driving ---

Micros Channel::on_tick() {
  const Driving driving(this);
  signalled_.store(false);
#ifdef ADAPS_SIMULATION
  finish_torn();
#endif
  look_at_links();
  take_submissions();
  work_off_batch();
  // Each kind of work has its turn, or a flood of one would keep the others from theirs.
  const bool frozen = node_.frozen.load();
  begin_turn();
  if (!frozen) take_up_postponed();
  const bool permanent = permanent_cursor_ < node_.tables.num_keys();
  if (!frozen && permanent) start_permanent_interest();
  begin_turn();
  if (round_requested_.load() && now_ >= last_round_ + round_distance_) run_round();
  if (!frozen && (acting_ || now_ >= intents_due_)) act_on_intents();
  begin_turn();
  send_held_back();
  begin_turn();
  if (now_ >= std::max(flush_wanted_, flush_allowed_)) flush_dirty(false);
  if (flushing()) go_on_flushing();
  // A wait_sync does not wait for the next round.
  if (node_.epochs.anyone_waits() && has_dirty()) flush_dirty(true);
  if (now_ >= stall_due()) give_up_on_stalled();
  const bool more_calls = !batch_.done() || more_submitted_ || !next_parts_.empty();
  // If the network takes at once what a refresh waits for, nobody says so.
  const bool held_back = std::exchange(newly_held_back_, false) || more_held_back_;
  if (lost_peer_ || flushing() || more_calls || held_back) return now_;
  if (!frozen && (acting_ || permanent || !postponed_intents_.empty() || !postponed_decisions_.empty()))
    return now_;
  Micros next = stall_due();
  if (round_requested_.load()) next = std::min(next, last_round_ + round_distance_);
  if (!frozen) next = std::min(next, intents_due_);
  if (flush_wanted_ != kNever) next = std::min(next, std::max(flush_wanted_, flush_allowed_));
  return next;
}

void Channel::run_round() {
  round_requested_.store(false);
  const Micros since = now_ - last_round_;
  last_round_ = now_;
  counters_.rounds.add();
  for (std::size_t i = 0; i < interests_.size(); ++i) {
    Interest& interest = *interests_[i];
    const Clock skipped = node_.workers[i]->skipped.exchange(0);
    const Clock clock = node_.workers[i]->clock.load();
    const Clock ticks = std::max<Clock>(clock - interest.observed_clock - skipped, 0);
    interest.timer.observe(ticks, since, 2 * round_distance_);
    interest.observed_clock = clock;
  }
  if (settle_requested_.exchange(false)) {
    lead_.settle();
    lead_pending_.store(false, std::memory_order_relaxed);
  }
  if (!node_.frozen.load()) act_on_intents();
  flush_wanted_ = now_;
  if (now_ >= flush_allowed_) flush_dirty(false);
}

// Changes go out with this round, or later if it is not their table's turn. What a flush that is under way
// has not come to yet goes along.
void Channel::flush_dirty(bool everything) {
  const Clock clock = newest_clock();
  const bool under_way = flushing();
  flush_wanted_ = kNever;
  dirty_.take(newly_dirty_);
  flush_end_ += newly_dirty_.size();
  if (under_way) {
    flush_keys_.insert(flush_keys_.end(), newly_dirty_.begin(), newly_dirty_.end());
  } else {
    flush_keys_.swap(newly_dirty_);
  }
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    table_due_[i] = everything || (under_way ? table_due_[i] : cadence_.due(i, now_, clock));
    if (!table_due_[i]) continue;
    flush_keys_.insert(flush_keys_.end(), deferred_[i].begin(), deferred_[i].end());
    flush_end_ += deferred_[i].size();
    deferred_[i].clear();
  }
  go_on_flushing();
}

void Channel::go_on_flushing() {
  const Tables& tables = node_.tables;
  const Clock clock = newest_clock();
  const std::size_t before = outbox_.size_bytes();
  const std::size_t first = flush_next_;
  const Table* hint = nullptr;
  const bool through = go_on(flush_keys_, flush_next_, [&](Key name) {
    const auto table = static_cast<std::size_t>(&tables.find(name, hint) - &tables[0]);
    if (table_due_[table]) {
      flush_key(name);
      cadence_.flushed(table, now_, clock);
    } else {
      deferred_[table].push_back(name);
    }
  });
  flushed_ += flush_next_ - first;
  flushed_bytes_ += outbox_.size_bytes() - before;
  if (through) end_flush();
  send_flushed();
}

void Channel::end_flush() {
  const Clock clock = newest_clock();
  flush_keys_.clear();
  flush_next_ = 0;
  flush_deferred_ = false;
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    if (deferred_[i].empty()) continue;
    flush_deferred_ = true;
    flush_wanted_ = std::min(flush_wanted_, cadence_.latest(i, clock));
  }
  const auto bytes = static_cast<double>(std::exchange(flushed_bytes_, 0));
  const auto pause = static_cast<Micros>(bytes / node_.settings.max_round_bytes_per_second * 1e6);
  flush_allowed_ = now_ + std::max(round_distance_, pause);
}

void Channel::flush_key(Key name) {
  LockedKey key = lock(name);
  if (!key.has_slot()) return;
  key.header().flags &= static_cast<std::uint8_t>(~kOnDirtyList);
  flush(key);
}

Clock Channel::newest_clock() const {
  Clock newest = 0;
  for (const auto& worker : node_.workers)
    newest = std::max(newest, worker->clock.load(std::memory_order_relaxed));
  return newest;
}

void Channel::on_frame(NodeId from, std::span<const std::byte> payload) {
  const Driving driving(this);
  begin_turn();
  Reader reader(payload);
  Lookahead lookahead(node_.store, awaiting_, payload);
  while (!reader.at_end()) {
    lookahead.step();
    switch (reader.peek_type()) {
      case MessageType::kRequest:
        on_request(reader.read<RequestMessage>(), reader);
        break;
      case MessageType::kIntent:
        on_intent(reader.read<IntentMessage>());
        break;
      case MessageType::kAnswer:
        on_answer(from, reader.read<AnswerMessage>(), reader);
        break;
      case MessageType::kSetup:
        on_setup(from, reader.read<SetupMessage>(), reader);
        break;
      case MessageType::kRefresh:
        on_refresh(reader.read<RefreshMessage>(), reader);
        break;
      case MessageType::kDelta:
        on_delta(from, reader.read<DeltaMessage>(), reader);
        break;
      case MessageType::kAck:
        on_ack(reader.read<AckMessage>());
        break;
      case MessageType::kDrop:
        on_drop(from, reader.read<DeltaMessage>(), reader);
        break;
      case MessageType::kDropAck:
        on_drop_ack(reader.read<AckMessage>());
        break;
      case MessageType::kTransfer:
        on_transfer(from, reader.read<TransferMessage>(), reader);
        break;
      case MessageType::kNews:
        on_news(from, reader.read<NewsMessage>());
        break;
      case MessageType::kMark:
        on_mark(from, reader.read<NumberMessage>());
        break;
      case MessageType::kEcho:
        on_echo(reader.read<NumberMessage>());
        break;
      case MessageType::kBarrier:
        on_barrier(from, reader.read<NumberMessage>());
        break;
      case MessageType::kRelease:
        on_release(reader.read<NumberMessage>());
        break;
      case MessageType::kGoodbye:
        reader.read<NumberMessage>();
        said_goodbye_[from] = true;
        // A node says goodbye only when it knows that every node has left the cluster.
        become_closed();
        break;
      case MessageType::kLost:
        on_lost(from, reader.read<NumberMessage>());
        break;
      default:
        throw ProtocolError("unknown message type " + std::to_string(static_cast<int>(reader.peek_type())));
    }
  }
}

void Channel::on_peer_down(NodeId peer, const std::string& reason) {
  if (said_goodbye_[peer] || closed() || lost_peer_ || node_.failed.load()) return;
  lost_peer_ = {peer, reason};
  announce_loss(peer);
}

void Channel::fail_for_lost_peer() {
  if (lost_peer_) node_.fail(lost_peer_->rank, lost_peer_->reason);
  lost_peer_.reset();
}

void Channel::announce_loss(NodeId lost, bool stalled) {
  const NumberMessage message{.type = MessageType::kLost, .number = lost + (stalled ? kStalled : 0)};
  for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
    if (peer != rank_ && (peer != lost || stalled)) outbox_.append(peer, message);
  }
}

void Channel::on_lost(NodeId from, const NumberMessage& message) {
  const bool stalled = message.number >= kStalled;
  const std::uint32_t number = stalled ? message.number - kStalled : message.number;
  if (number >= node_.settings.nodes) throw ProtocolError("a message names rank " + std::to_string(number));
  if (closed()) return;
  const auto lost = static_cast<NodeId>(number);
  if (lost == rank_) {
    node_.fail(from, stalled ? "it waited for this node longer than stall_timeout"
                             : "it has lost its connection to this node");
  } else {
    node_.fail(lost,
               stalled ? kStalledReason : "node " + std::to_string(from) + " has lost its connection to it");
  }
}

void Channel::check_key(Key key) const {
  if (key >= node_.tables.num_keys()) throw ProtocolError("a message names key " + std::to_string(key));
}

// --- wait_sync (docs/design/protocol.md, section 7) ---

void Channel::begin_sync(Operation& operation) {
  flush_dirty(true);
  after_flush({flush_end_, &operation, 0, 0});
}

void Channel::on_mark(NodeId from, const NumberMessage& message) {
  if (ADAPS_MUTANT(echo_first)) {
    outbox_.append(from, NumberMessage{.type = MessageType::kEcho, .number = message.number});
    flush_dirty(true);
    return;
  }
  ++echoes_due_[from];
  if (!ADAPS_MUTANT(echo_ahead_of_held_back)) flush_held_back(from);
  if (!ADAPS_MUTANT(echo_without_refresh)) flush_dirty(true);
  const std::uint64_t end = ADAPS_MUTANT(echo_in_between) ? flushed_ : flush_end_;
  after_flush({end, nullptr, from, message.number});
}

void Channel::after_flush(const AfterFlush& message) {
  after_flush_.push_back(message);
  send_flushed();
}

void Channel::send_flushed() {
  while (!after_flush_.empty() && after_flush_.front().end <= flushed_) {
    const AfterFlush message = after_flush_.front();
    after_flush_.pop_front();
    if (message.sync != nullptr) {
      send_mark(*message.sync);
    } else {
      outbox_.append(message.to, NumberMessage{.type = MessageType::kEcho, .number = message.number});
      --echoes_due_[message.to];
    }
  }
}

void Channel::send_mark(Operation& operation) {
  if (node_.settings.nodes == 1) {
    operation.finish();
    return;
  }
  if (ADAPS_MUTANT(mark_shared) && !syncs_.empty()) {
    syncs_.push_back({&operation, syncs_.back().number, syncs_.back().echoes_left});
    return;
  }
  const std::uint32_t number = next_mark_++;
  syncs_.push_back({&operation, number, node_.settings.nodes - 1});
  for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
    if (peer != rank_) outbox_.append(peer, NumberMessage{.type = MessageType::kMark, .number = number});
  }
}

void Channel::on_echo(const NumberMessage& message) {
  bool known = false;
  std::erase_if(syncs_, [&](Sync& sync) {
    if (sync.number != message.number) return false;
    known = true;
    if (--sync.echoes_left > 0) return false;
    sync.operation->finish();
    return true;
  });
  if (!known) throw ProtocolError("an echo of mark " + std::to_string(message.number) + ", never sent");
}

// --- barriers and the end: counted by node 0 ---

void Channel::on_gathered(bool for_good) {
  const std::uint32_t number = for_good ? kForGood : node_.gathering.failed() ? kFailed : kAtBarrier;
  const NumberMessage message{.type = MessageType::kBarrier, .number = number};
  if (rank_ == 0) {
    on_barrier(0, message);
  } else {
    outbox_.append(0, message);
  }
}

void Channel::on_barrier(NodeId from, const NumberMessage& message) {
  (message.number == kForGood ? left_ : at_barrier_)[from] = true;
  if (message.number == kFailed) failed_node_ = from;
  waiting_since_ = std::min(waiting_since_, now_);
  release_if_complete();
}

void Channel::release_if_complete() {
  const bool all_left = std::find(left_.begin(), left_.end(), false) == left_.end();
  bool anyone = false;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!left_[i] && !at_barrier_[i]) return;
    anyone = anyone || at_barrier_[i];
  }
  if (!anyone && !all_left) return;
  std::fill(at_barrier_.begin(), at_barrier_.end(), false);
  // Those who left go on waiting for the end.
  const bool anyone_left = std::find(left_.begin(), left_.end(), true) != left_.end();
  waiting_since_ = anyone_left && !all_left ? now_ : kNever;
  const std::uint32_t going_on = failed_node_ ? kFailed + *failed_node_ : kAtBarrier;
  const NumberMessage message{.type = MessageType::kRelease, .number = all_left ? kForGood : going_on};
  failed_node_.reset();
  for (NodeId peer = 1; peer < node_.settings.nodes; ++peer) outbox_.append(peer, message);
  on_release(message);
}

Micros Channel::stall_due() const {
  const Micros timeout = node_.settings.stall_timeout;
  return waiting_since_ == kNever || timeout == kNever ? kNever : waiting_since_ + timeout;
}

// A node whose own code hangs answers everybody and keeps its connections: only here it is missed.
void Channel::give_up_on_stalled() {
  waiting_since_ = kNever;
  NodeId missing = 0;
  while (left_[missing] || at_barrier_[missing]) ++missing;
  if (lost_peer_ || node_.failed.load()) return;
  lost_peer_ = {missing, kStalledReason};
  announce_loss(missing, true);
}

void Channel::on_release(const NumberMessage& message) {
  std::optional<NodeId> failed_node;
  if (message.number >= kFailed) failed_node = static_cast<NodeId>(message.number - kFailed);
  for (Operation* operation : node_.gathering.take(failed_node)) operation->finish();
  if (message.number == kForGood) become_closed();
}

void Channel::become_closed() {
  closed_.store(true, std::memory_order_release);
  node_.announce_ending();
}

}  // namespace adaps
