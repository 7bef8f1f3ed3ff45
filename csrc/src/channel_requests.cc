// Operations that a worker could not do itself, and requests on their way to a key's owner
// (docs/design/protocol.md, section 5).

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "adaps/add.h"
#include "adaps/channel.h"
#include "adaps/invariant.h"
#include "adaps/local.h"
#include "adaps/lookahead.h"
#include "adaps/mutant.h"

namespace adaps {

namespace {

constexpr std::uint8_t kMaxHops = 127;

std::size_t known_floats(const RequestMessage& message, std::size_t length) {
  const std::optional<std::size_t> floats = payload_floats(message, length);
  if (!floats)
    throw ProtocolError("unknown kind of request " + std::to_string(static_cast<int>(message.kind)));
  return *floats;
}

}  // namespace

// --- operations of this node's workers ---

void Channel::try_operation(Unit& unit) {
  {
    LockedKey key = lock(unit.key);
    materialize(key);
    if (!serve(key, unit) && defer(key, unit)) return;
  }
  complete(unit);
}

// Parks or sends what the key's state does not allow now; false if there is nothing to wait for.
bool Channel::defer(LockedKey& key, Unit& unit) {
  const OperationKind kind = unit.operation->kind;
  const State state = key.state();
  const bool reads = kind == OperationKind::kPull || kind == OperationKind::kLocalize;
  // A pending key is on its way here already: asking for it once more would not bring it sooner.
  if (reads && (state == State::kDropping || state == State::kPending)) {
    park(unit);
    return true;
  }
  if (kind == OperationKind::kLocalize) return false;
  if (state == State::kReplica) {
    ADAPS_INVARIANT(kind == OperationKind::kSet, "a replica refuses what is not a set");
    // The set must come behind what this node pushed before; while a delta is in flight no other can be sent.
    const std::uint32_t side = key.header().side;
    if (side != 0 && sides_.unapplied.at(side).unsent && !ADAPS_MUTANT(set_without_flush)) {
      if (sides_.unapplied.at(side).in_flight) {
        park(unit);
        return true;
      }
      flush(key);
    }
  }
  send_request(key, unit);
  return true;
}

bool Channel::serve(LockedKey& key, Unit& unit) {
  Operation& operation = *unit.operation;
  const std::lock_guard guard(operation.arrays);
  return operation.abandoned || try_local(node_, key, unit);
}

void Channel::send_request(LockedKey& key, Unit& unit) {
  if (free_names_.empty()) {
    free_names_.push_back(static_cast<std::uint32_t>(awaiting_.size()));
    awaiting_.push_back(nullptr);
  }
  const std::uint32_t name = free_names_.back();
  free_names_.pop_back();
  awaiting_[name] = &unit;

  const Operation& operation = *unit.operation;
  RequestMessage message;
  message.origin = rank_;
  message.unit = name;
  message.key = unit.key;
  message.kind = static_cast<std::uint64_t>(operation.kind);
  message.count = operation.kind == OperationKind::kPushGradients ? unit.occurrences : 1;
  const std::size_t length = key.length();
  scratch_.clear();
  const std::lock_guard guard(unit.operation->arrays);
  if (operation.kind == OperationKind::kPull) {
    outbox_.append(key.location(), message);
    return;
  }
  if (operation.abandoned) {  // whether it takes effect is open to the worker, but the message must be whole
    scratch_.assign(known_floats(message, length), 0.0F);
    message.kind = static_cast<std::uint64_t>(OperationKind::kPush);
    message.count = 1;
    outbox_.append(key.location(), message, {std::span<const float>(scratch_).first(length)});
    return;
  }
  if (operation.kind == OperationKind::kPush) {
    outbox_.append(key.location(), message, {summed(unit, length, scratch_)});
  } else if (operation.kind == OperationKind::kSet) {
    const float* last =
        operation.in +
        operation.occurrences[ADAPS_MUTANT(first_duplicate_wins) ? unit.first : unit.last].offset;
    outbox_.append(key.location(), message, {std::span<const float>(last, length)});
  } else {
    for (std::uint32_t i = unit.first; i != Occurrence::kEnd; i = operation.occurrences[i].next) {
      const float* gradient = operation.in + operation.occurrences[i].offset;
      scratch_.insert(scratch_.end(), gradient, gradient + length);
    }
    outbox_.append(key.location(), message, {std::span<const float>(scratch_)});
  }
}

// The operation may be gone afterwards.
void Channel::complete(Unit& unit) {
  Operation& operation = *unit.operation;
  Unit* next = nullptr;
  if (unit.next_part != Unit::kNoPart && !ADAPS_MUTANT(parts_at_once))
    next = &operation.units[unit.next_part];
  if (is_write(operation.kind)) node_.epochs.remove(unit.epoch);
  operation.finish();
  // Only now: on another route, or applied here, it would overtake the part before it.
  if (next != nullptr) next_parts_.push_back(next);
}

Unit& Channel::take_awaiting(std::uint32_t name) {
  if (name >= awaiting_.size() || awaiting_[name] == nullptr) {
    throw ProtocolError("an answer to request " + std::to_string(name) + ", which is not open");
  }
  free_names_.push_back(name);
  return *std::exchange(awaiting_[name], nullptr);
}

void Channel::on_answer(NodeId from, const AnswerMessage& message, Reader& reader) {
  Unit& unit = take_awaiting(message.unit);
  Operation& operation = *unit.operation;
  {
    LockedKey key = lock(unit.key);
    const State state = key.state();
    const bool elsewhere = state == State::kNone || state == State::kPending || state == State::kDropping;
    if (state == State::kReplica || state == State::kDropping) {
      const bool is_newer = newer(message.version, key.header().version);
      ADAPS_INVARIANT(!(is_newer && state == State::kReplica), "an answer is newer than a live replica");
      // A later owner's answer may overtake the earlier owner's word that this replica is dropped.
      if (is_newer && state == State::kDropping && !ADAPS_MUTANT(zombie_stays_readable))
        key.header().flags |= kUnreadable;
    }
    if (elsewhere && newer_entry(message.rc, key.location_count())) key.set_location(from, message.rc);
    if (operation.kind == OperationKind::kPull) {
      if (message.has_value == 0) throw ProtocolError("an answer to a pull has no value");
      const std::span<const float> value = reader.floats(key.length());
      const std::lock_guard guard(operation.arrays);
      for (std::uint32_t i = unit.first; !operation.abandoned && i != Occurrence::kEnd;
           i = operation.occurrences[i].next) {
        std::memcpy(operation.out + operation.occurrences[i].offset, value.data(), value.size_bytes());
      }
    }
  }
  complete(unit);
}

void Channel::park(Unit& unit) { parked_[unit.key].push_back(&unit); }

void Channel::retry_parked(Key key) {
  const auto found = parked_.find(key);
  if (found == parked_.end()) return;
  const std::deque<Unit*> units = std::move(found->second);
  parked_.erase(found);
  for (Unit* unit : units) try_operation(*unit);
}

bool Channel::has_parked_set(Key key) const {
  const auto found = parked_.find(key);
  return found != parked_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [](const Unit* unit) { return unit->operation->kind == OperationKind::kSet; });
}

// --- requests of any node ---

// After the second stale hop, once, by way of the home node, without telling it anything.
NodeId Channel::next_hop(LockedKey& key, Route& route) const {
  if (route.hops < kMaxHops) ++route.hops;
  const NodeId home = node_.directory.home(key.key());
  if (route.hops == 2 && home != rank_ && route.via_home == 0) {
    route.via_home = 1;
    return home;
  }
  ADAPS_INVARIANT(key.location() != rank_, "a location entry names its own node");
  return key.location();
}

void Channel::on_request(RequestMessage message, Reader& reader) {
  check_key(message.key);
  if (message.origin >= node_.settings.nodes) {
    throw ProtocolError("a request from rank " + std::to_string(message.origin));
  }
  Unit* mine = nullptr;
  {
    LockedKey key = lock(message.key);
    materialize(key);
    const std::span<const float> payload = reader.floats(known_floats(message, key.length()));
    if (key.state() != State::kOwner) {
      counters_.requests_forwarded.add();
      const NodeId to = next_hop(key, message.route);
      outbox_.append(to, message, {payload});
      return;
    }
    if (message.origin == rank_) {  // the key came here meanwhile
      mine = &take_awaiting(message.unit);
      if (mine->key != message.key) throw ProtocolError("a request came back with another key");
      serve(key, *mine);
    } else {
      apply_request(key, message, payload);
    }
  }
  if (mine != nullptr) complete(*mine);
}

void Channel::apply_request(LockedKey& key, const RequestMessage& message, std::span<const float> payload) {
  const auto kind = static_cast<OperationKind>(message.kind);
  SlotHeader& header = key.header();
  if (kind == OperationKind::kPush) {
    add_to(key.value(), payload.data(), payload.size());
    header.version = next_version(header.version);
  } else if (kind == OperationKind::kSet) {
    std::memcpy(key.value(), payload.data(), payload.size_bytes());
    header.version = next_version(header.version);
  } else if (kind == OperationKind::kPushGradients) {
    for (std::size_t at = 0; at < payload.size(); at += key.length()) {
      key.table().apply_gradient(key.value(), payload.data() + at, nullptr);
      header.version = next_version(header.version);
    }
  }
  AnswerMessage answer;
  answer.unit = message.unit;
  answer.version = header.version;
  answer.rc = header.rc;
  answer.has_value = kind == OperationKind::kPull ? 1 : 0;
  if (header.side != 0) {
    if (kind != OperationKind::kPull) mark_dirty(key);
    // A holder must not be told that its operation is done while its replica still shows the older value.
    Holder* holder = Holders(sides_, header.side).find(message.origin);
    if (holder != nullptr && !ADAPS_MUTANT(no_refresh_before_answer)) refresh(key, *holder);
  }
  if (kind == OperationKind::kPull) {
    outbox_.append(message.origin, answer, {std::span<const float>(key.value(), key.length())});
  } else {
    outbox_.append(message.origin, answer);
  }
}

void Channel::on_intent(IntentMessage message) {
  check_key(message.key);
  if (message.origin >= node_.settings.nodes) {
    throw ProtocolError("an intent from rank " + std::to_string(message.origin));
  }
  LockedKey key = lock(message.key);
  if (node_.frozen.load() && (key.state() == State::kOwner || key.untouched_here())) {
    postponed_intents_.push_back(message);
    return;
  }
  materialize(key);
  if (key.state() != State::kOwner) {
    counters_.requests_forwarded.add();
    const NodeId to = next_hop(key, message.route);
    outbox_.append(to, message);
    return;
  }
  grant(key, message.origin);
}

}  // namespace adaps
