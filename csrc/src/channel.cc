#include "adaps/channel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "adaps/invariant.h"
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

constexpr std::uint32_t kAtBarrier = 0;
constexpr std::uint32_t kForGood = 1;

}  // namespace

Channel::Channel(NodeState& node, int index)
    : node_(node),
      index_(index),
      rank_(node.settings.rank),
      technique_(node.settings.technique),
      outbox_(node.settings.nodes),
      round_distance_(static_cast<Micros>(1e6 / node.settings.max_rounds_per_second)),
      last_round_(-round_distance_),
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
    due = node_.settings.timing ? start - interest.window.load(std::memory_order_relaxed) : 0;
    submitted_intents_.push_back({worker, std::move(keys), start, end});
    if (due < interest.next_due.load(std::memory_order_relaxed)) interest.next_due.store(due);
  }
  if (due <= node_.workers[static_cast<std::size_t>(worker)]->clock.load()) request_round();
}

void Channel::on_clock(int worker, Clock clock) {
  if (clock >= interests_[static_cast<std::size_t>(worker)]->next_due.load()) request_round();
}

void Channel::mark_dirty(LockedKey& key) {
  std::uint8_t& flags = key.header().flags;
  if ((flags & kOnDirtyList) != 0) return;
  flags |= kOnDirtyList;
  if (dirty_.add(key.key())) request_round();
}

void Channel::take_submissions() {
  std::vector<Unit*> units;
  std::vector<Operation*> syncs;
  std::vector<Submitted> intents;
  std::vector<bool> gatherings;
  bool goodbye = false;
  {
    const std::lock_guard guard(inbox_mutex_);
    units.swap(submitted_units_);
    syncs.swap(submitted_syncs_);
    intents.swap(submitted_intents_);
    gatherings.swap(submitted_gatherings_);
    goodbye = goodbye_submitted_ && !goodbye_sent_;
  }
  for (Submitted& intent : intents) {
    interests_[static_cast<std::size_t>(intent.worker)]->queued.emplace(
        intent.start, Signal{std::move(intent.keys), intent.end});
  }
  // Who waits for keys to come has signalled them before: that must have had its effect.
  const auto awaits_intent = [](const Unit* unit) { return unit->operation->kind == OperationKind::kLocalize; };
  if (std::any_of(units.begin(), units.end(), awaits_intent)) run_round();
  for (Unit* unit : units) try_operation(*unit);
  for (Operation* operation : syncs) begin_sync(*operation);
  for (const bool for_good : gatherings) on_gathered(for_good);
  if (goodbye) {
    for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
      if (peer != rank_) outbox_.append(peer, NumberMessage{.type = MessageType::kGoodbye});
    }
    goodbye_sent_.store(true, std::memory_order_release);
    node_.announce_ending();
  }
}

// --- driving ---


Micros Channel::on_tick() {
  const Driving driving(this);
  signalled_.store(false);
  take_submissions();
  if (permanent_cursor_ < node_.tables.num_keys()) start_permanent_interest();
  if (round_requested_.load() && now_ >= last_round_ + round_distance_) run_round();
  if (flush_pending_ && now_ >= next_flush_) flush_dirty();
  // A wait_sync does not wait for the next round.
  if (node_.epochs.anyone_waits() && !dirty_.empty()) flush_dirty();
  Micros next = kNever;
  if (round_requested_.load()) next = last_round_ + round_distance_;
  if (flush_pending_) next = std::min(next, next_flush_);
  if (permanent_cursor_ < node_.tables.num_keys()) next = now_;
  return next;
}

void Channel::run_round() {
  round_requested_.store(false);
  const Micros since = now_ - last_round_;
  last_round_ = now_;
  counters_.rounds.add();
  const double distances = static_cast<double>(since) / static_cast<double>(round_distance_);
  for (std::size_t i = 0; i < interests_.size(); ++i) {
    Interest& interest = *interests_[i];
    const Clock clock = node_.workers[i]->clock.load();
    interest.timer.observe(clock - interest.observed_clock, distances);
    interest.observed_clock = clock;
    interest.window.store(interest.timer.window(), std::memory_order_relaxed);
  }
  act_on_intents();
  flush_pending_ = true;
  if (now_ >= next_flush_) flush_dirty();
}

void Channel::flush_dirty() {
  flush_pending_ = false;
  dirty_.take(round_keys_);
  if (round_keys_.empty()) return;
  const std::size_t before = outbox_.size_bytes();
  for (const Key name : round_keys_) {
    LockedKey key(node_.store, name);
    if (!key.has_slot()) continue;
    key.header().flags &= static_cast<std::uint8_t>(~kOnDirtyList);
    flush(key);
  }
  const auto bytes = static_cast<double>(outbox_.size_bytes() - before);
  const auto pause = static_cast<Micros>(bytes / node_.settings.max_round_bytes_per_second * 1e6);
  next_flush_ = now_ + std::max(round_distance_, pause);
}

void Channel::on_frame(NodeId from, std::span<const std::byte> payload) {
  const Driving driving(this);
  Reader reader(payload);
  while (!reader.at_end()) {
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
        // Only a node that knows that every node takes part no more says goodbye.
        become_closed();
        break;
      default:
        throw ProtocolError("unknown message type " + std::to_string(static_cast<int>(reader.peek_type())));
    }
  }
}

void Channel::on_peer_down(NodeId peer, const std::string& reason) {
  if (!said_goodbye_[peer] && !closed()) node_.fail(peer, reason);
}

void Channel::check_key(Key key) const {
  if (key >= node_.tables.num_keys()) throw ProtocolError("a message names key " + std::to_string(key));
}

// --- wait_sync (protocol.md, section 7) ---


void Channel::begin_sync(Operation& operation) {
  flush_dirty();
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

void Channel::on_mark(NodeId from, const NumberMessage& message) {
  const NumberMessage echo{.type = MessageType::kEcho, .number = message.number};
  if (ADAPS_MUTANT(echo_first)) outbox_.append(from, echo);
  if (!ADAPS_MUTANT(echo_without_refresh)) flush_dirty();
  if (!ADAPS_MUTANT(echo_first)) outbox_.append(from, echo);
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
  const NumberMessage message{.type = MessageType::kBarrier, .number = for_good ? kForGood : kAtBarrier};
  if (rank_ == 0) {
    on_barrier(0, message);
  } else {
    outbox_.append(0, message);
  }
}

void Channel::on_barrier(NodeId from, const NumberMessage& message) {
  (message.number == kForGood ? left_ : at_barrier_)[from] = true;
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
  const NumberMessage message{.type = MessageType::kRelease, .number = all_left ? kForGood : kAtBarrier};
  for (NodeId peer = 1; peer < node_.settings.nodes; ++peer) outbox_.append(peer, message);
  on_release(message);
}

void Channel::on_release(const NumberMessage& message) {
  for (Operation* operation : node_.gathering.take()) operation->finish();
  if (message.number == kForGood) become_closed();
}

void Channel::become_closed() {
  closed_.store(true, std::memory_order_release);
  node_.announce_ending();
}

}  // namespace adaps
