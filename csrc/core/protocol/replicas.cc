#include "protocol/replicas.h"

#include <cstring>
#include <utility>

#include "protocol/invariant.h"
#include "protocol/message_values.h"
#include "protocol/wire_encoding.h"

namespace adaps {

// --- life cycle of a replica ---

// Makes the node a holder.
void Replicas::set_up(LockedKey& key, NodeId to) {
  const SlotHeader& header = key.header();
  const Holders holders = channel_.holders_of(key);
  ADAPS_INVARIANT(holders.find(to) == nullptr, "a holder asks for what it holds");
  SetupMessage message;
  message.key = key.key();
  message.rc = header.rc;
  message.version = header.version();
  message.payload = payload_of(header);
  decisions().add_holder(holders, to, message.version);
  std::span<const float> row;
  if (message.payload == Payload::kValue) {
    row = key.stored(key.width());
    if (encode_row(key, key.width(), channel_.encoded)) {
      message.payload = Payload::kEncoded;
      row = channel_.encoded;
    }
  }
  channel_.backlog.add(to, channel_.outbox.append(to, message, {row}));
}

// PENDING -> REPLICA.
void Replicas::on_setup(NodeId from, const SetupMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  ADAPS_INVARIANT(key.state() == State::kPending, "a replica is set up that nobody asked for");
  if (message.payload == Payload::kNone) throw ProtocolError("a replica is set up without a value");
  SlotHeader& header = key.header();
  channel_.note_lead(header);
  read_value(key, message.payload, reader);
  header.state = State::kReplica;
  header.set_version(message.version);
  header.rc = message.rc;
  header.location = from;
  decisions().keep(key);
  channel_.partition.ages.renew(message.key, channel_.now);
  channel_.counters.replicas_set_up.add();
  channel_.trace(message.key, TraceKind::kReplicaSetUp);
}

void Replicas::drop_if_unwanted(Key number) {
  if (!decisions().is_unwanted(channel_.node.store.intents(number))) return;
  LockedKey key = channel_.lock(number);
  try_drop(key);
}

void Replicas::on_refresh(NodeId from, const RefreshMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  ADAPS_INVARIANT(key.state() == State::kReplica || key.state() == State::kDropping,
                  "a refresh for a key without replica");
  SlotHeader& header = key.header();
  ADAPS_INVARIANT(is_from_owner(header, from), "a refresh by a node that does not own the key");
  ADAPS_INVARIANT(newer(message.version, header.version()), "a refresh is not newer than the replica");
  read_value(key, message.encoded != 0 ? Payload::kEncoded : Payload::kValue, reader);
  header.set_version(message.version);
  channel_.partition.ages.renew(message.key, channel_.now);
  const Unapplied* changes = channel_.changes_of(key);
  if (changes != nullptr && !key.table().is_packed()) decisions().add_again(key, *changes);
  decisions().keep(key);
}

// REPLICA -> DROPPING, unless there is intent, a waiting set, or a change in flight.
void Replicas::try_drop(LockedKey& key) {
  if (key.state() != State::kReplica || channel_.intents(key) > 0 || parked_.has_one_for_owner(key.key()))
    return;
  Unapplied* changes = channel_.changes_of(key);
  if (changes != nullptr && !decisions().may_send_drop(key, *changes)) return;
  SlotHeader& header = key.header();
  DeltaMessage message;
  message.type = MessageType::kDrop;
  message.key = key.key();
  message.rc = header.rc;
  header.state = State::kDropping;
  channel_.counters.replicas_dropped.add();
  if (changes != nullptr && decisions().goes_with_drop(changes->unsent)) {
    // The change is not rounded, because no replica remains on this node that could keep a rest.
    const std::span<const float> content = take_off(key, *changes, message, true);
    channel_.outbox.append(header.location, message, {content});
  } else {
    message.change = Change::kNone;
    channel_.outbox.append(header.location, message);
  }
  if (!decisions().stays_until_drop_ack()) finish_drop(key);
}

// DROPPING -> NONE.
void Replicas::finish_drop(LockedKey& key) {
  if (Unapplied* changes = channel_.changes_of(key)) {
    forget(changes->in_flight);
    channel_.release_changes(key);
  }
  channel_.trace(key.key(), TraceKind::kReplicaDropped);
  key.release(key.header().location, key.header().rc);
}

// --- changes ---

// Moves the unsent change to `in_flight`. Returns the floats of its message. Unless `exact` is true, a lossy
// wire rounds them and leaves a rest.
std::span<const float> Replicas::take_off(LockedKey& key, Unapplied& changes, DeltaMessage& message,
                                          bool exact) {
  Delta& sent = changes.in_flight = std::move(changes.unsent);
  merge_rest(channel_.node.epochs, sent);
  message.change = sent.change;
  message.hyperparameters = sent.hyperparameters;
  const bool may_round =
      decisions().rounds(key.table(), key.key()) && !exact && sent.change == Change::kDelta;
  if (!may_round ||
      !keep_rest(key.table(), decisions().wire_of(key.table(), key.key()), changes, channel_.encoded))
    return content(key, sent);
  message.change = Change::kEncoded;
  return channel_.encoded;
}

// Returns a replica's changes if one may be sent now, otherwise nullptr.
Unapplied* Replicas::change_to_send(LockedKey& key, bool exact) const {
  if (key.state() != State::kReplica) return nullptr;
  Unapplied* changes = channel_.changes_of(key);
  if (changes == nullptr || !changes->unsent || (changes->unsent.is_rest() && !exact)) return nullptr;
  // If it may not be sent, the key becomes dirty again when the ACK of the change in flight arrives.
  return decisions().may_send_delta(key, *changes) ? changes : nullptr;
}

// Sends the changes of one key in a round.
std::size_t Replicas::flush(LockedKey& key, bool exact) {
  if (key.state() == State::kOwner) {
    channel_.holders_of(key).for_each([&](Holder& holder) { refreshes_.send_or_hold_back(key, holder); });
    return 0;
  }
  Unapplied* changes = change_to_send(key, exact);
  if (changes == nullptr) return 0;
  const SlotHeader& header = key.header();
  DeltaMessage message;
  message.key = key.key();
  message.rc = header.rc;
  const std::span<const float> content = take_off(key, *changes, message, exact);
  channel_.counters.deltas_sent.add();
  return channel_.outbox.append(header.location, message, {content});
}

// Applies a holder's change. Returns whether the owner's row now equals the row of a holder that applied the
// change to the owner's previous version.
bool Replicas::apply_change(LockedKey& key, const DeltaMessage& message, std::span<const float> floats) {
  SlotHeader& header = key.header();
  bool gave_same_row = true;
  if (message.change == Change::kGradient) {
    GradientHeader applied;
    std::memcpy(&applied, floats.data(), sizeof(applied));
    decisions().apply_sent(key, floats.data());
    const bool same_hyperparameters = message.hyperparameters == key.table().now().with.fingerprint();
    // A step makes the rounding error of a copy larger or smaller. A delta leaves it as it is.
    gave_same_row = decisions().has_exact_copies(key.table(), key.key()) &&
                    decisions().gives_same_row(applied.base, header.version(), same_hyperparameters);
  } else if (message.change == Change::kEncoded) {
    channel_.encoded.resize(key.table().change_length());
    decisions().decode(key.table(), decisions().wire_of(key.table(), key.key()), floats, channel_.encoded);
    key.table().merge(key.value(), channel_.encoded.data());
  } else {
    key.table().merge(key.value(), floats.data());
  }
  header.advance_version();
  decisions().keep(key);
  return gave_same_row;
}

// Returns the holder that sent a change. Returns null if the sender is not a holder in this ownership period:
// then it became the owner in between and has absorbed its change.
Holder* Replicas::find_holder(LockedKey& key, NodeId from, RelocationCount rc) {
  if (key.state() != State::kOwner || !decisions().is_of_period(rc, key.header().rc)) return nullptr;
  return channel_.holders_of(key).find(from);
}

void Replicas::mark_dirty_if_behind(LockedKey& key) {
  if (channel_.holders_of(key).any_behind(key.header().version())) channel_.partition.mark_dirty(key);
}

bool Replicas::on_delta(LockedKey& key, NodeId from, const DeltaMessage& message, Reader& reader) {
  const std::span<const float> change = read_change(message, key, reader);
  if (change.empty()) throw ProtocolError("a change without content");
  Holder* holder = find_holder(key, from, message.rc);
  if (holder == nullptr) {
    decisions().discard(channel_.outbox, key, message, change);
    return false;
  }
  const SlotHeader& header = key.header();
  const bool was_up_to_date = holder->sent == header.version();
  const bool exact = decisions().is_exact(apply_change(key, message, change), was_up_to_date);
  if (exact) holder->sent = header.version();
  mark_dirty_if_behind(key);
  AckMessage answer;
  answer.key = message.key;
  answer.exact = exact ? 1 : 0;
  channel_.outbox.append(from, answer);
  return true;
}

void Replicas::on_ack(NodeId from, const AckMessage& message) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  Unapplied* changes = key.state() == State::kReplica ? channel_.changes_of(key) : nullptr;
  ADAPS_INVARIANT(changes != nullptr && changes->in_flight,
                  "an acknowledgement of a delta that was not sent");
  SlotHeader& header = key.header();
  ADAPS_INVARIANT(is_from_owner(header, from), "an acknowledgement by a node that does not own the key");
  if (key.table().is_packed()) decisions().settle(key, changes->in_flight);
  if (message.exact != 0) {
    header.set_version(next_version(header.version()));
    channel_.partition.ages.renew(message.key, channel_.now);
    // The next gradient was applied to the replica after the change that this exact ACK confirms, so the base
    // of the gradient is the owner's current version.
    if (changes->in_flight.change == Change::kGradient && changes->unsent &&
        changes->unsent.change == Change::kGradient) {
      changes->unsent.set_base(key.table().change_length(), header.version());
    }
  }
  decisions().keep(key);
  forget(changes->in_flight);
  if (!changes->unsent) {
    channel_.release_changes(key);
  } else if (!changes->unsent.is_rest()) {
    channel_.partition.mark_dirty(key);
  }
}

bool Replicas::on_drop(LockedKey& key, NodeId from, const DeltaMessage& message, Reader& reader) {
  const std::span<const float> change = read_change(message, key, reader);
  if (find_holder(key, from, message.rc) == nullptr) return false;
  if (!change.empty()) apply_change(key, message, change);
  channel_.holders_of(key).remove(from);
  mark_dirty_if_behind(key);
  AckMessage answer;
  answer.type = MessageType::kDropAck;
  answer.key = message.key;
  channel_.outbox.append(from, answer);
  return true;
}

Version Replicas::absorb_changes(LockedKey& key, Version version, bool has_value) {
  Unapplied* changes = channel_.changes_of(key);
  if (changes == nullptr) return version;
  // If the TRANSFER has no value, the replica's own value is used. It already contains the changes, unless it
  // is packed.
  if (decisions().lacks_changes(key.table(), has_value)) decisions().absorb(key, *changes);
  if (changes->in_flight || changes->unsent) version = decisions().absorbed(version);
  forget(changes->in_flight);
  forget(changes->unsent);
  channel_.release_changes(key);
  return version;
}

// Forgets a delta that was applied at its owner or absorbed, so that no wait_sync waits for it any more.
void Replicas::forget(Delta& delta) {
  if (!delta) return;
  const bool counts = !delta.is_rest();
  const std::uint64_t epoch = delta.epoch;
  delta.floats.reset();
  if (counts) channel_.node.epochs.remove(epoch);
}

}  // namespace adaps
