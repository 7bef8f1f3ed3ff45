#include "protocol/ownership.h"

#include <span>
#include <string>
#include <vector>

#include "protocol/invariant.h"
#include "protocol/message_values.h"

namespace adaps {

// --- requesting and giving away keys ---

// NONE -> PENDING.
void Ownership::ask_for(LockedKey& key, Micros until_start, bool for_good) {
  if (!key.has_slot()) {
    if (!stored_.reserve_for_copy(key)) return;
    key.allocate(State::kPending);
  }
  key.header().state = State::kPending;
  key.header().set_asked_at(static_cast<std::uint32_t>(channel_.now));
  channel_.outbox.append_in_place<IntentMessage>(key.key(), key.location(), [&](IntentMessage& message) {
    message.origin = channel_.rank;
    message.key = key.key();
    message.for_good = for_good ? 1 : 0;
  });
  // The INTENT may wait for half of the remaining time. The other half is for the answer.
  channel_.outbox.leave_by(key.location(), channel_.now + until_start / 2);
}

// Executes the owner's decision on an intent.
void Ownership::grant(LockedKey& key, const IntentMessage& intent) {
  const NodeId to = intent.origin;
  ADAPS_INVARIANT(to != channel_.rank, "a node asks itself for a key");
  switch (decisions().respond_to_intent(channel_.node.technique_of(key.key()), channel_.intents(key) > 0,
                                        key.header().has_holders())) {
    case IntentResponse::kRelocate:
      if (leaves_for(key, to, decisions().times_needed(intent, times_alone_, times_for_good_))) {
        channel_.backlog.add(to, transfer(key, to));
        return;
      }
      break;
    case IntentResponse::kReplicate:
      decisions().note_several(key.header());
      break;
  }
  replicas_.set_up(key, to);
}

void Ownership::reconsider(LockedKey& key, int times_needed) {
  if (!key.header().has_holders() || decisions().keeps_for_itself(channel_.intents(key))) return;
  if (!decisions().may_give_to_last_holder(channel_.node.technique_of(key.key()))) return;
  const Holder* last = decisions().last_holder(channel_.holders_of(key));
  if (last == nullptr) return;
  if (channel_.node.frozen.load()) {
    postponed_decisions_.push_back(key.key());
    return;
  }
  if (leaves_for(key, last->node, times_needed)) transfer(key, last->node);
}

// Whether the key moves to the only interested node. A key that is kept at home does so when this was the
// case several times in a row.
bool Ownership::leaves_for(LockedKey& key, NodeId to, int times_needed) {
  const bool at_home = channel_.node.directory.home(key.key()) == channel_.rank;
  return !decisions().is_kept_at_home(channel_.node.technique_of(key.key()), at_home) ||
         decisions().leaves_home(key.header().note_alone(to), times_needed);
}

// OWNER -> NONE. A holder with the current version needs no value.
std::size_t Ownership::transfer(LockedKey& key, NodeId to) {
  const SlotHeader& header = key.header();
  TransferMessage message;
  message.key = key.key();
  message.rc = next_relocation(header.rc);
  message.version = header.version();
  message.payload = payload_of(header);
  if (header.has_holders()) {
    Holders holders = channel_.holders_of(key);
    const Holder* holder = holders.only();
    ADAPS_INVARIANT(holder != nullptr && holder->node == to, "a key moves while another node holds it");
    if (decisions().has_exact_copies(key.table(), key.key()) &&
        decisions().has_value(*holder, header.version()))
      message.payload = Payload::kNone;
    holders.remove(to);
  }
  const std::size_t bytes = channel_.append_with_value(key, to, message);
  channel_.trace(key.key(), TraceKind::kRelocatedAway);
  decisions().give_up(key, to, message.rc);
  return bytes;
}

// STORED -> NONE.
void Ownership::transfer_stored(LockedKey& key, NodeId to) {
  std::vector<float> words;
  const StoredState state = stored_.read_now(key, words).state;
  TransferMessage message;
  message.key = key.key();
  message.rc = next_relocation(state.rc);
  message.version = state.version;
  message.payload = decisions().is_initial(state.version) ? Payload::kInitial : Payload::kValue;
  if (message.payload != Payload::kValue) words.clear();
  channel_.outbox.append(to, message, {words});
  channel_.trace(key.key(), TraceKind::kRelocatedAway);
  decisions().give_up(key, to, message.rc);
}

// NONE -> STORED, for a row that is given back while no memory is free.
void Ownership::put_returned(LockedKey& key, const TransferMessage& message, Reader& reader) {
  std::span<const float> words;
  if (message.payload == Payload::kValue) {
    words = reader.floats(key.table().stored_words(key.width()));
  } else if (message.payload != Payload::kInitial) {
    throw ProtocolError("a row is given back without a value");
  }
  stored_.put(key, {message.version, message.rc, 0}, words);
  channel_.counters.relocations.add();
  channel_.trace(message.key, TraceKind::kRelocatedHere);
}

// PENDING, REPLICA, DROPPING -> OWNER. If the row is being retired, also NONE -> OWNER.
void Ownership::on_transfer(NodeId from, const TransferMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  const bool is_given_back = channel_.is_retiring(message.key);
  LockedKey key = channel_.lock(message.key);
  const bool was_asked_for = key.has_slot();
  if (is_given_back && key.state() == State::kNone && !key.untouched_here()) {
    if (!stored_.reserve_for_return(key)) {
      put_returned(key, message, reader);
      return;
    }
    key.allocate(State::kPending);
  }
  const State state = key.state();
  ADAPS_INVARIANT(state == State::kPending || state == State::kReplica || state == State::kDropping,
                  "a key is transferred to a node that neither asked for it nor holds it");
  SlotHeader& header = key.header();
  const bool was_copy = state != State::kPending;
  ADAPS_INVARIANT(is_from_owner(header, from), "a key is transferred by a node that does not own it");
  const bool has_value = message.payload != Payload::kNone;
  if (!was_copy && was_asked_for) channel_.note_lead(header);
  if (message.payload == Payload::kEncoded) throw ProtocolError("a key is transferred with a rounded value");
  if (has_value) {
    read_value(key, message.payload, reader);
  } else {
    ADAPS_INVARIANT(was_copy && header.version() == message.version,
                    "a transfer without value to a replica that is not up to date");
  }
  const Version version =
      was_copy ? replicas_.absorb_changes(key, message.version, has_value) : message.version;
  header.state = State::kOwner;
  header.set_version(version);
  header.rc = message.rc;
  header.note_several();
  decisions().keep(key);
  header.flags &= static_cast<std::uint8_t>(~kUnreadable);
  channel_.counters.relocations.add();
  channel_.trace(message.key, TraceKind::kRelocatedHere);
  const NodeId home = decisions().node_to_notify(channel_.node.directory, message.key);
  if (home != channel_.rank && home != from) {
    channel_.outbox.append(home, NewsMessage{.key = message.key, .rc = message.rc});
  }
}

void Ownership::on_intent(NodeId from, const IntentMessage& message) {
  channel_.check_key(message.key);
  channel_.check_origin(from, message.route, message.origin);
  ADAPS_INVARIANT(decisions().uses_intent(channel_.node, message.key),
                  "an intent for a key that never moves");
  decide(message);
}

// Grants an intent, postpones it, or forwards it to the owner.
void Ownership::decide(const IntentMessage& message) {
  LockedKey key = channel_.lock(message.key);
  if (channel_.node.frozen.load() && (decisions().is_owned_by_node(key.state()) || key.untouched_here())) {
    postponed_intents_.push_back(message);
    return;
  }
  if (!stored_.bring(key, StoredRows::Need::kNow)) {
    if (decisions().is_kept_for_row(message.type)) stored_.keep(message.key, {message.origin, message, {}});
    return;
  }
  channel_.materialize(key);
  if (key.state() != State::kOwner) {
    ADAPS_INVARIANT(message.origin != channel_.rank || key.state() == State::kPending,
                    "an intent of this node comes back although it has been granted");
    channel_.forward(key, message);
  } else if (payload_of(key.header()) == Payload::kValue && channel_.backlog.is_full(message.origin)) {
    decisions().keep_intent(kept_back_[message.origin], message);
    channel_.backlog.note_waiting(message.origin);
  } else {
    grant(key, message);
  }
}

void Ownership::take_up_kept_back() {
  more_kept_back_ = false;
  for (auto& [origin, intents] : kept_back_) {
    for (std::size_t i = intents.size(); i > 0 && !channel_.backlog.is_full(origin); --i) {
      if (channel_.slice.is_used_up()) {
        more_kept_back_ = true;
        return;
      }
      const IntentMessage message = intents.front();
      intents.pop_front();
      channel_.spend(message.key);
      decide(message);
    }
  }
}

void Ownership::on_delta(NodeId from, const DeltaMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  // The only holder may want the key for good, so the larger number counts.
  if (replicas_.on_delta(key, from, message, reader) && decisions().reconsiders_after_change())
    reconsider(key, times_for_good_);
}

void Ownership::on_drop(NodeId from, const DeltaMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  if (replicas_.on_drop(key, from, message, reader) && decisions().reconsiders_after_drop(key.header()))
    reconsider(key);
}

// If a new intent began while the replica was being dropped, it is sent now.
void Ownership::on_drop_ack(const AckMessage& message) {
  channel_.check_key(message.key);
  LockedKey key = channel_.lock(message.key);
  ADAPS_INVARIANT(key.state() == State::kDropping, "a drop is acknowledged that was not sent");
  replicas_.finish_drop(key);
  if (channel_.intents(key) > 0) ask_for(key, 0, false);
}

void Ownership::take_up_postponed() {
  for (std::size_t i = postponed_intents_.size(); i > 0 && !channel_.slice.is_used_up(); --i) {
    const IntentMessage message = postponed_intents_.front();
    postponed_intents_.pop_front();
    channel_.spend(message.key);
    decide(message);
  }
  for (std::size_t i = postponed_decisions_.size(); i > 0 && !channel_.slice.is_used_up(); --i) {
    const Key number = postponed_decisions_.front();
    postponed_decisions_.pop_front();
    channel_.spend(number);
    LockedKey key = channel_.lock(number);
    if (key.state() == State::kOwner) reconsider(key);
  }
}

void Ownership::on_news(NodeId from, const NewsMessage& message) {
  channel_.check_key(message.key);
  ADAPS_INVARIANT(decisions().node_to_notify(channel_.node.directory, message.key) == channel_.rank,
                  "news of a key whose home is another node");
  LockedKey key = channel_.lock(message.key);
  ADAPS_INVARIANT(!key.untouched_here(), "news of a key that this node has not given away");
  const State state = key.state();
  if (decisions().is_owned_by_node(state) || state == State::kReplica) return;
  if (decisions().is_newer_location(message.rc, key.location_count()))
    channel_.learn_location(key, from, message.rc);
}

}  // namespace adaps
