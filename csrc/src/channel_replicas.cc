// Who owns a key, who holds a replica of it, and how their changes meet (docs/design/protocol.md, section 4).

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "adaps/channel.h"
#include "adaps/invariant.h"
#include "adaps/lookahead.h"
#include "adaps/mutant.h"

namespace adaps {

namespace {

Payload payload_of(const SlotHeader& header) {
  return header.version == 0 || ADAPS_MUTANT(initial_always) ? Payload::kInitial : Payload::kValue;
}

// Writes the value that comes with a message, or the initial one that it stands for.
void read_value(LockedKey& key, Payload payload, Reader& reader) {
  switch (payload) {
    case Payload::kValue: {
      const std::span<const float> value = reader.floats(key.width());
      std::memcpy(key.value(), value.data(), value.size_bytes());
      return;
    }
    case Payload::kInitial:
      if (!ADAPS_MUTANT(initial_not_made)) key.table().init(key.key(), key.value());
      return;
    case Payload::kNone:
      break;
  }
  throw ProtocolError("a value of unknown kind " + std::to_string(static_cast<int>(payload)));
}

// What a message with the delta carries.
std::span<const float> content(const LockedKey& key, const Delta& delta) {
  if (delta.change == Change::kGradient)
    return {delta.floats.get() + key.table().change_length(), kGradientHeader + key.length()};
  return {delta.floats.get(), key.table().change_length()};
}

std::span<const float> read_change(const DeltaMessage& message, const Table& table, Reader& reader) {
  const std::optional<std::size_t> floats = payload_floats(message, table);
  if (!floats)
    throw ProtocolError("a change of unknown kind " + std::to_string(static_cast<int>(message.change)));
  return reader.floats(*floats);
}

}  // namespace

// --- asking for a key, and giving it away ---

// A key that was asked for has come.
void Channel::note_lead(const SlotHeader& header) {
  const auto lead = static_cast<std::uint32_t>(static_cast<Version>(now_) - header.version);
  counters_.lead_micros.add(lead);
  counters_.lead_keys.add();
  lead_.observe(lead);
  lead_pending_.store(true, std::memory_order_relaxed);
}

// NONE -> PENDING.
void Channel::want(LockedKey& key) {
  key.header().state = State::kPending;
  key.header().version =
      static_cast<Version>(now_);  // a pending key has no version: the time serves the statistics
  IntentMessage message;
  message.origin = rank_;
  message.key = key.key();
  outbox_.append(key.location(), message);
}

// The owner's decision on an intent.
void Channel::grant(LockedKey& key, NodeId to) {
  SlotHeader& header = key.header();
  ADAPS_INVARIANT(to != rank_, "a node asks itself for a key");
  const bool shared = header.intents > 0 || (header.side != 0 && !ADAPS_MUTANT(not_pinned));
  if (technique_ == Technique::kRelocation || (technique_ == Technique::kAdaptive && !shared)) {
    transfer(key, to);
    return;
  }
  Holders holders(sides_, header.side);
  ADAPS_INVARIANT(holders.find(to) == nullptr, "a holder asks for what it holds");
  if (!ADAPS_MUTANT(setup_not_registered)) holders.add(to, header.version);
  SetupMessage message;
  message.key = key.key();
  message.rc = header.rc;
  message.version = header.version;
  message.payload = payload_of(header);
  append_with_value(key, to, message);
}

// Without intent of its own the owner gives the key to the only node that is interested.
void Channel::reconsider(LockedKey& key) {
  SlotHeader& header = key.header();
  if (technique_ != Technique::kAdaptive || header.intents > 0 || header.side == 0) return;
  if (node_.frozen.load()) {
    postponed_decisions_.push_back(key.key());
    return;
  }
  const Holder* only = Holders(sides_, header.side).only();
  if (only != nullptr) transfer(key, only->node);
}

// OWNER -> NONE. A holder that is up to date needs no value.
void Channel::transfer(LockedKey& key, NodeId to) {
  SlotHeader& header = key.header();
  TransferMessage message;
  message.key = key.key();
  message.rc = next_relocation(header.rc);
  message.version = header.version;
  message.payload = payload_of(header);
  if (header.side != 0) {
    Holders holders(sides_, header.side);
    const Holder* holder = holders.only();
    ADAPS_INVARIANT(holder != nullptr && holder->node == to, "a key moves while another node holds it");
    if (holder->sent == header.version || ADAPS_MUTANT(light_always)) message.payload = Payload::kNone;
    holders.remove(to);
  }
  append_with_value(key, to, message);
  trace(key.key(), TraceKind::kRelocatedAway);
#ifdef ADAPS_SIMULATION
  if (ADAPS_MUTANT(torn_transfer)) {
    key.header().side = 0;
    torn_.push_back({key.key(), to, message.rc});
    return;
  }
#endif
  become_none(key, to, message.rc);
}

#ifdef ADAPS_SIMULATION
void Channel::finish_torn() {
  for (const Torn& torn : torn_) {
    LockedKey key = lock(torn.key);
    if (key.state() == State::kOwner) become_none(key, torn.to, torn.rc);
  }
  torn_.clear();
}
#endif

void Channel::become_none(LockedKey& key, NodeId owner, RelocationCount rc) {
  if (key.header().intents == 0 || ADAPS_MUTANT(intents_lost)) {
    key.release(owner, rc);
    return;
  }
  // Under relocation a node may lose a key that it has intent for; the count must not be lost with it.
  const std::uint32_t intents = key.header().intents;
  key.header() = SlotHeader{.rc = rc, .intents = intents, .location = owner, .state = State::kNone};
}

void Channel::on_transfer(NodeId from, const TransferMessage& message, Reader& reader) {
  check_key(message.key);
  {
    LockedKey key = lock(message.key);
    const State state = key.state();
    ADAPS_INVARIANT(state == State::kPending || state == State::kReplica || state == State::kDropping,
                    "a key is transferred to a node that neither asked for it nor holds it");
    SlotHeader& header = key.header();
    if (state == State::kPending) {
      note_lead(header);
    }
    Unapplied* unapplied =
        state != State::kPending && header.side != 0 ? &sides_.unapplied.at(header.side) : nullptr;
    bool absorbed = false;
    if (message.payload != Payload::kNone) {
      read_value(key, message.payload, reader);
    } else {
      ADAPS_INVARIANT(state != State::kPending && header.version == message.version,
                      "a transfer without value to a replica that is not up to date");
    }
    if (unapplied != nullptr) {
      // Neither part is in the owner's value: a delta that crosses the transfer is discarded there.
      for (Delta* delta : {&unapplied->in_flight, &unapplied->unsent}) {
        if (!*delta) continue;
        absorbed = !ADAPS_MUTANT(absorb_no_bump);
        const bool forgotten = delta == &unapplied->unsent ? ADAPS_MUTANT(upgrade_forgets_unsent)
                                                           : ADAPS_MUTANT(upgrade_forgets_inflight);
        if (message.payload != Payload::kNone && !forgotten)
          key.table().merge(key.value(), delta->floats.get());
        forget(*delta);
      }
      sides_.unapplied.release(header.side);
    }
    header.side = 0;
    header.state = State::kOwner;
    header.version = absorbed ? next_version(message.version) : message.version;
    header.rc = message.rc;
    header.location = rank_;
    header.flags &= static_cast<std::uint8_t>(~kUnreadable);
    counters_.relocations.add();
    trace(message.key, TraceKind::kRelocatedHere);
    const NodeId home = node_.directory.home(message.key);
    if (home != rank_ && home != from) {
      outbox_.append(home, NewsMessage{.key = message.key, .rc = message.rc});
    }
  }
  retry_parked(message.key);
}

void Channel::on_news(NodeId from, const NewsMessage& message) {
  check_key(message.key);
  LockedKey key = lock(message.key);
  const State state = key.state();
  if (state == State::kOwner || state == State::kReplica) return;
  if (newer_entry(message.rc, key.location_count()) || ADAPS_MUTANT(news_unordered)) {
    key.set_location(from, message.rc);
  }
}

// --- replicas ---

// PENDING -> REPLICA.
void Channel::on_setup(NodeId from, const SetupMessage& message, Reader& reader) {
  check_key(message.key);
  {
    LockedKey key = lock(message.key);
    ADAPS_INVARIANT(key.state() == State::kPending, "a replica is set up that nobody asked for");
    if (message.payload == Payload::kNone) throw ProtocolError("a replica is set up without a value");
    SlotHeader& header = key.header();
    note_lead(header);
    read_value(key, message.payload, reader);
    header.state = State::kReplica;
    header.version = message.version;
    header.rc = message.rc;
    header.location = from;
    ages_.renew(message.key, now_);
    counters_.replicas_set_up.add();
    trace(message.key, TraceKind::kReplicaSetUp);
  }
  retry_parked(message.key);
  LockedKey key = lock(message.key);
  if (!ADAPS_MUTANT(setup_ignores_end)) try_drop(key);  // the intent may have ended meanwhile
}

void Channel::on_refresh(const RefreshMessage& message, Reader& reader) {
  check_key(message.key);
  LockedKey key = lock(message.key);
  const std::span<const float> value = reader.floats(key.width());
  ADAPS_INVARIANT(key.state() == State::kReplica || key.state() == State::kDropping,
                  "a refresh for a key without replica");
  SlotHeader& header = key.header();
  ADAPS_INVARIANT(newer(message.version, header.version), "a refresh is not newer than the replica");
  std::memcpy(key.value(), value.data(), value.size_bytes());
  header.version = message.version;
  ages_.renew(message.key, now_);
  if (header.side == 0) return;
  const Unapplied& unapplied = sides_.unapplied.at(header.side);
  if (unapplied.in_flight && !ADAPS_MUTANT(refresh_forgets_inflight))
    key.table().merge(key.value(), unapplied.in_flight.floats.get());
  if (unapplied.unsent && !ADAPS_MUTANT(refresh_forgets_unsent))
    key.table().merge(key.value(), unapplied.unsent.floats.get());
}

// REPLICA -> DROPPING, if nothing speaks against it.
bool Channel::try_drop(LockedKey& key) {
  SlotHeader& header = key.header();
  if (key.state() != State::kReplica || header.intents > 0 || has_parked_set(key.key())) return false;
  Unapplied* unapplied = header.side != 0 ? &sides_.unapplied.at(header.side) : nullptr;
  if (unapplied != nullptr && unapplied->in_flight) {
    if (!ADAPS_MUTANT(drop_with_two)) return false;
    forget(unapplied->in_flight);
  }
  DeltaMessage message;
  message.type = MessageType::kDrop;
  message.key = key.key();
  message.rc = header.rc;
  header.state = State::kDropping;
  counters_.replicas_dropped.add();
  if (unapplied != nullptr && unapplied->unsent) {
    unapplied->in_flight = std::move(unapplied->unsent);
    message.change = unapplied->in_flight.change;
    message.hyperparameters = unapplied->in_flight.hyperparameters;
    outbox_.append(header.location, message, {content(key, unapplied->in_flight)});
  } else {
    message.change = Change::kNone;
    outbox_.append(header.location, message);
  }
  if (ADAPS_MUTANT(drop_at_once)) finish_drop(key);
  return true;
}

// DROPPING -> NONE; an intent that came meanwhile is sent now.
void Channel::on_drop_ack(const AckMessage& message) {
  check_key(message.key);
  {
    LockedKey key = lock(message.key);
    if (key.state() != State::kDropping) return;
    finish_drop(key);
    if (key.has_slot()) want(key);
  }
  retry_parked(message.key);
}

void Channel::finish_drop(LockedKey& key) {
  const SlotHeader& header = key.header();
  if (header.side != 0) {
    forget(sides_.unapplied.at(header.side).in_flight);
    sides_.unapplied.release(header.side);
  }
  trace(key.key(), TraceKind::kReplicaDropped);
  become_none(key, header.location, header.rc);
}

// --- changes ---

// One key's part of a round.
void Channel::flush(LockedKey& key) {
  SlotHeader& header = key.header();
  if (header.side == 0) return;
  if (key.state() == State::kOwner) {
    Holders(sides_, header.side).for_each([&](Holder& holder) { refresh_or_hold_back(key, holder); });
    return;
  }
  if (key.state() != State::kReplica) return;
  Unapplied& unapplied = sides_.unapplied.at(header.side);
  if (!unapplied.unsent) return;
  if (unapplied.in_flight) {
    if (!ADAPS_MUTANT(two_in_flight)) return;  // its answer puts the key on the list again
    forget(unapplied.in_flight);
  }
  unapplied.in_flight = std::move(unapplied.unsent);
  if (ADAPS_MUTANT(sync_ignores_inflight)) {
    node_.epochs.remove(std::exchange(unapplied.in_flight.epoch, node_.epochs.add()));
  }
  DeltaMessage message;
  message.key = key.key();
  message.rc = header.rc;
  message.change = unapplied.in_flight.change;
  message.hyperparameters = unapplied.in_flight.hyperparameters;
  outbox_.append(header.location, message, {content(key, unapplied.in_flight)});
  counters_.deltas_sent.add();
}

void Channel::refresh(LockedKey& key, Holder& holder) {
  const Version version = key.header().version;
  holder.held_back = false;
  if (holder.sent == version) return;
  holder.sent = version;
  RefreshMessage message;
  message.key = key.key();
  message.version = version;
  outbox_.append(holder.node, message, {std::span<const float>(key.value(), key.width())});
  holder.frame = outbox_.last_frame(holder.node);
  counters_.refreshes_sent.add();
}

// --- refreshes that the network does not take as fast as keys are written ---

void Channel::look_at_links() {
  if (!backlog_) return;
  for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
    if (peer != rank_) taken_[peer] = outbox_.last_drained(peer) - static_cast<std::uint32_t>(backlog_(peer));
  }
}

// A number from before 2^32 frames may pass for a new one: what waits for it is sent somewhat later.
bool Channel::untaken(NodeId to, std::uint32_t frame) const {
  if (!backlog_) return false;
  const std::uint32_t last = outbox_.last_frame(to);
  return last - frame < last - taken_[to];
}

// One refresh of a key waits on a link at most: a later one carries the changes of all that were left out.
// Where an echo waits for it, it goes at once; of those only as many are under way as the holder has calls.
void Channel::refresh_or_hold_back(LockedKey& key, Holder& holder) {
  if (echoes_due_[holder.node] > 0 || !untaken(holder.node, holder.frame)) {
    refresh(key, holder);
    return;
  }
  if (holder.sent == key.header().version || holder.held_back) return;
  holder.held_back = true;
  newly_held_back_ = true;
  counters_.refreshes_held_back.add();
  if (!ADAPS_MUTANT(held_back_forgotten)) held_back_[holder.node].push_back({key.key(), holder.frame});
}

// What was refreshed, dropped or given away since has left its entry behind.
void Channel::send_held_back() {
  more_held_back_ = false;
  for (NodeId peer = 0; peer < node_.settings.nodes; ++peer) {
    std::deque<HeldBack>& waiting = held_back_[peer];
    while (!waiting.empty() && !untaken(peer, waiting.front().frame)) {
      if (turn_is_over()) {
        more_held_back_ = true;
        return;
      }
      const HeldBack first = waiting.front();
      waiting.pop_front();
      LockedKey key = lock(first.key);
      spend(key.width());
      if (key.state() != State::kOwner || key.header().side == 0) continue;
      Holder* holder = Holders(sides_, key.header().side).find(peer);
      if (holder != nullptr && holder->held_back && holder->frame == first.frame) refresh(key, *holder);
    }
  }
}

// All that is held back for the peer goes with the next flush of everything.
void Channel::flush_held_back(NodeId to) {
  const Tables& tables = node_.tables;
  const Table* hint = nullptr;
  for (const HeldBack& held_back : held_back_[to])
    deferred_[static_cast<std::size_t>(&tables.find(held_back.key, hint) - &tables[0])].push_back(
        held_back.key);
  held_back_[to].clear();
}

// Gives whether the owner has now what a holder has that was at the version before.
bool Channel::apply_change(LockedKey& key, const DeltaMessage& message, std::span<const float> floats) {
  Version& version = key.header().version;
  bool same = true;
  if (message.change == Change::kGradient) {
    GradientHeader applied;
    std::memcpy(&applied, floats.data(), sizeof(applied));
    UpdateStep step = key.table().now();
    step.with.learning_rate = applied.learning_rate;
    step.number = applied.number;
    key.table().apply_gradient(key.value(), floats.data() + kGradientHeader, nullptr, step);
    const bool alike = message.hyperparameters == step.with.fingerprint();
    same = (applied.base == version && alike) || ADAPS_MUTANT(gradient_always_exact);
  } else {
    key.table().merge(key.value(), floats.data());
  }
  version = next_version(version);
  return same;
}

// The sender of a change, if it is a holder in this tenure. If not, it has become owner since and has
// absorbed what it sent.
Holder* Channel::find_holder(LockedKey& key, NodeId from, RelocationCount rc) {
  if (key.state() != State::kOwner || key.header().side == 0) return nullptr;
  if (rc != key.header().rc && !ADAPS_MUTANT(no_rc_check)) return nullptr;
  return Holders(sides_, key.header().side).find(from);
}

void Channel::on_delta(NodeId from, const DeltaMessage& message, Reader& reader) {
  check_key(message.key);
  LockedKey key = lock(message.key);
  const std::span<const float> change = read_change(message, key.table(), reader);
  if (change.empty()) throw ProtocolError("a change without content");
  Holder* holder = find_holder(key, from, message.rc);
  if (holder == nullptr) {
    if (ADAPS_MUTANT(forward_crossed)) outbox_.append(key.location(), message, {change});
    return;
  }
  SlotHeader& header = key.header();
  const bool up_to_date = holder->sent == header.version;
  const bool exact = apply_change(key, message, change) && up_to_date;
  if (exact || ADAPS_MUTANT(ack_always_exact)) holder->sent = header.version;
  if (Holders(sides_, header.side).any_behind(header.version)) mark_dirty(key);
  AckMessage answer;
  answer.key = message.key;
  answer.exact = exact || ADAPS_MUTANT(ack_always_exact) ? 1 : 0;
  outbox_.append(from, answer);
}

void Channel::on_ack(const AckMessage& message) {
  check_key(message.key);
  {
    LockedKey key = lock(message.key);
    ADAPS_INVARIANT(key.state() == State::kReplica && key.header().side != 0 &&
                        sides_.unapplied.at(key.header().side).in_flight,
                    "an acknowledgement of a delta that was not sent");
    SlotHeader& header = key.header();
    Unapplied& unapplied = sides_.unapplied.at(header.side);
    if (message.exact != 0) {
      header.version = next_version(header.version);
      ages_.renew(message.key, now_);
      // A gradient on top of one that is exact, so that no refresh came since, was applied to what the owner
      // has now.
      if (unapplied.in_flight.change == Change::kGradient && unapplied.unsent &&
          unapplied.unsent.change == Change::kGradient) {
        unapplied.unsent.set_base(key.table().change_length(), header.version);
      }
    }
    forget(unapplied.in_flight);
    if (unapplied.unsent) {
      mark_dirty(key);
    } else {
      sides_.unapplied.release(header.side);
      header.side = 0;
    }
  }
  retry_parked(message.key);
  LockedKey key = lock(message.key);
  if (key.has_slot()) try_drop(key);
}

void Channel::on_drop(NodeId from, const DeltaMessage& message, Reader& reader) {
  check_key(message.key);
  LockedKey key = lock(message.key);
  const std::span<const float> change = read_change(message, key.table(), reader);
  if (find_holder(key, from, message.rc) == nullptr) return;
  SlotHeader& header = key.header();
  Holders holders(sides_, header.side);
  if (!change.empty()) apply_change(key, message, change);
  holders.remove(from);
  if (holders.any_behind(header.version)) mark_dirty(key);
  AckMessage answer;
  answer.type = MessageType::kDropAck;
  answer.key = message.key;
  outbox_.append(from, answer);
  if (!ADAPS_MUTANT(no_move_after_drop)) reconsider(key);
}

// A delta is applied at its owner (or absorbed): nobody waits for it any more.
void Channel::forget(Delta& delta) {
  if (!delta) return;
  const std::uint64_t epoch = delta.epoch;
  delta.floats.reset();
  node_.epochs.remove(epoch);
}

}  // namespace adaps
