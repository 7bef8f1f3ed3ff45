#include "protocol/requests.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "protocol/invariant.h"
#include "protocol/local_access.h"
#include "protocol/message_values.h"
#include "protocol/prefetcher.h"
#include "protocol/wire_encoding.h"
#include "store/add.h"

namespace adaps {

namespace {

std::size_t known_floats(const RequestMessage& message, const Table& table) {
  const std::optional<std::size_t> floats = payload_floats(message, table);
  if (!floats)
    throw ProtocolError("unknown kind of request " + std::to_string(static_cast<int>(message.kind)));
  return *floats;
}

Answered answered(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPull:
      return Answered::kValue;
    case OperationKind::kPullState:
      return Answered::kState;
    default:
      return Answered::kNothing;
  }
}

}  // namespace

// --- operations of this node's workers ---

void Requests::attempt(KeyRequest& request) {
  {
    LockedKey key = channel_.lock(request.key);
    if (!stored_.bring(key, StoredRows::Need::kNow)) {
      channel_.counters.disk_waits.add();
      parked_.park(request);
      return;
    }
    channel_.materialize(key);
    if (!serve(key, request) && defer(key, request)) return;
  }
  complete(request);
}

// Parks or sends a request that the key's state does not allow now. Returns false if it need not wait.
bool Requests::defer(LockedKey& key, KeyRequest& request) {
  const OperationKind kind = request.operation->kind;
  const State state = key.state();
  const bool reads = kind == OperationKind::kPull || kind == OperationKind::kLocalize;
  // A pending key was already requested. Another request would not deliver its value sooner.
  if (reads && (state == State::kDropping || state == State::kPending)) {
    channel_.send_request_now(key);
    parked_.park(request);
    return true;
  }
  if (kind == OperationKind::kLocalize) return false;
  if (state == State::kReplica) {
    ADAPS_INVARIANT(kind == OperationKind::kSet || is_about_state(kind), "a replica refuses a pull or push");
    // The request must come after all earlier pushes of this node. While a delta is in flight, no other delta
    // can be sent.
    const Unapplied* changes = channel_.changes_of(key);
    if (changes != nullptr && decisions().is_to_be_flushed_before(kind, *changes)) {
      if (changes->in_flight) {
        channel_.send_request_now(key);
        parked_.park(request);
        return true;
      }
      replicas_.flush(key, true);
    }
  }
  send(key, request);
  return true;
}

bool Requests::serve(LockedKey& key, KeyRequest& request) {
  // The request will be sent and not served here, so the lock of the operation's arrays is not needed.
  if (key.state() == State::kNone) return false;
  Operation& operation = *request.operation;
  const std::lock_guard guard(operation.arrays);
  return operation.abandoned || try_local(channel_.node, channel_.partition, key, request);
}

std::uint32_t Requests::await(KeyRequest& request) {
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<std::uint32_t>(awaiting_.size()));
    awaiting_.push_back(nullptr);
  }
  const std::uint32_t number = free_numbers_.back();
  free_numbers_.pop_back();
  awaiting_[number] = &request;
  return number;
}

void Requests::send(LockedKey& key, KeyRequest& request) {
  const Operation& operation = *request.operation;
  RequestMessage message;
  message.origin = channel_.rank;
  message.request = await(request);
  message.key = request.key;
  message.kind = static_cast<std::uint64_t>(operation.kind);
  message.count = operation.kind == OperationKind::kPushGradients ? request.occurrences : 1;
  const std::size_t length = key.length();
  if (!is_write(operation.kind)) {
    channel_.outbox.append(key.location(), message);
    return;
  }
  scratch_.clear();
  const std::lock_guard guard(request.operation->arrays);
  if (operation.abandoned) {  // its values may no longer exist, so a push of zeros is sent instead
    scratch_.assign(length, 0.0F);
    message.kind = static_cast<std::uint64_t>(OperationKind::kPush);
    message.count = 1;
    channel_.outbox.append(key.location(), message, {std::span<const float>(scratch_)});
    return;
  }
  if (operation.kind == OperationKind::kPush) {
    channel_.outbox.append(key.location(), message, {summed(request, length, scratch_)});
  } else if (operation.kind == OperationKind::kSet || operation.kind == OperationKind::kSetState) {
    const float* last =
        operation.in + operation.occurrences[decisions().occurrence_that_counts(request)].offset;
    channel_.outbox.append(key.location(), message,
                           {std::span<const float>(last, known_floats(message, key.table()))});
  } else {
    for (std::uint32_t i = request.first; i != Occurrence::kEnd; i = operation.occurrences[i].next) {
      const float* gradient = operation.in + operation.occurrences[i].offset;
      scratch_.insert(scratch_.end(), gradient, gradient + length);
    }
    channel_.outbox.append(key.location(), message, {std::span<const float>(scratch_)});
  }
}

// Completes a request. The operation may be destroyed afterwards.
void Requests::complete(KeyRequest& request) {
  Operation& operation = *request.operation;
  KeyRequest* next = nullptr;
  if (request.next_part != KeyRequest::kNoPart) next = &operation.requests[request.next_part];
  if (is_write(operation.kind)) channel_.node.epochs.remove(request.epoch);
  channel_.node.unpin(request.key);
  operation.finish();
  // The next part is sent only now. Otherwise it could take another route and overtake this part.
  if (next != nullptr && decisions().waits_for_part_before(*next)) next_parts_.push_back(next);
}

KeyRequest& Requests::open_request(std::uint32_t number) {
  if (number >= awaiting_.size() || awaiting_[number] == nullptr)
    throw ProtocolError("a message about request " + std::to_string(number) + ", which is not open");
  return *awaiting_[number];
}

KeyRequest& Requests::take_awaiting(std::uint32_t number) {
  KeyRequest& request = open_request(number);
  free_numbers_.push_back(number);
  awaiting_[number] = nullptr;
  return request;
}

void Requests::on_answer(NodeId from, const AnswerMessage& message, Reader& reader) {
  KeyRequest& request = take_awaiting(message.request);
  Operation& operation = *request.operation;
  if (message.content != answered(operation.kind))
    throw ProtocolError("an answer has other contents than its request is for");
  {
    LockedKey key = channel_.lock(request.key);
    const State state = key.state();
    const bool elsewhere = state == State::kNone || state == State::kPending || state == State::kDropping;
    if (state == State::kReplica || state == State::kDropping) {
      const bool is_newer = newer(message.version, key.header().version());
      ADAPS_INVARIANT(!(is_newer && state == State::kReplica), "an answer is newer than a live replica");
      if (decisions().makes_unreadable(is_newer, state)) key.header().flags |= kUnreadable;
    }
    if (elsewhere && newer_entry(message.rc, key.location_count()))
      channel_.learn_location(key, from, message.rc);
    if (message.content != Answered::kNothing) {
      std::span<const float> value;
      if (message.content == Answered::kState) {
        value = reader.floats(key.table().state_length());
      } else if (message.encoded != 0) {
        scratch_.resize(key.length());
        read_encoded(key, reader, scratch_);
        value = scratch_;
      } else {
        value = reader.floats(key.table().value_words());
        if (key.table().is_packed()) {
          scratch_.resize(key.length());
          key.table().read_value(value.data(), scratch_.data());
          value = scratch_;
        }
      }
      const std::lock_guard guard(operation.arrays);
      for (std::uint32_t i = request.first; !operation.abandoned && i != Occurrence::kEnd;
           i = operation.occurrences[i].next) {
        if (!value.empty())  // a state can have 0 floats, and then there may be no array
          std::memcpy(operation.out + operation.occurrences[i].offset, value.data(), value.size_bytes());
      }
    }
  }
  complete(request);
}

void Requests::retry(Key key) {
  for (KeyRequest* request : parked_.take(key)) attempt(*request);
}

// --- requests of any node ---

void Requests::on_request(NodeId from, const RequestMessage& message, Reader& reader) {
  channel_.check_key(message.key);
  channel_.check_origin(from, message.route, message.origin);
  if (message.origin == channel_.rank && open_request(message.request).key != message.key)
    throw ProtocolError("a request came back with another key");
  KeyRequest* mine = nullptr;
  {
    LockedKey key = channel_.lock(message.key);
    const std::span<const float> payload = reader.floats(known_floats(message, key.table()));
    if (!stored_.bring(key, StoredRows::Need::kNow)) {
      channel_.counters.disk_waits.add();
      if (decisions().is_kept_for_row(message.type))
        stored_.keep(message.key, {from, message, {payload.begin(), payload.end()}});
      return;
    }
    channel_.materialize(key);
    if (key.state() != State::kOwner) {
      channel_.forward(key, message, payload);
      return;
    }
    if (message.origin == channel_.rank) {  // the key has arrived at this node in between
      mine = &take_awaiting(message.request);
      serve(key, *mine);
    } else {
      apply(key, message, payload);
    }
  }
  if (mine != nullptr) complete(*mine);
}

void Requests::apply(LockedKey& key, const RequestMessage& message, std::span<const float> payload) {
  const auto kind = static_cast<OperationKind>(message.kind);
  SlotHeader& header = key.header();
  if (kind == OperationKind::kPush) {
    add_to(key.value(), payload.data(), payload.size());
    header.advance_version();
    decisions().keep(key);
  } else if (kind == OperationKind::kSet) {
    std::memcpy(key.value(), payload.data(), payload.size_bytes());
    header.advance_version();
    decisions().keep(key);
  } else if (kind == OperationKind::kPushGradients) {
    for (std::size_t at = 0; at < payload.size(); at += key.length()) {
      key.table().apply_gradient(key.value(), payload.data() + at, nullptr);
      header.advance_version();
      decisions().keep(key);
    }
  } else if (kind == OperationKind::kSetState) {
    write_state(key, payload.data());
  }
  AnswerMessage answer;
  answer.request = message.request;
  answer.version = header.version();
  answer.rc = header.rc;
  answer.content = answered(kind);
  if (header.has_holders()) {
    if (is_write(kind)) channel_.partition.mark_dirty(key);
    Holder* holder = channel_.holders_of(key).find(message.origin);
    if (decisions().is_refreshed_before_answer(holder)) refreshes_.send(key, *holder);
  }
  if (kind == OperationKind::kPull) {
    std::span<const float> value = key.stored(key.length());
    if (encode_row(key, key.length(), scratch_)) {
      answer.encoded = 1;
      value = scratch_;
    }
    channel_.outbox.append_of(key.key(), message.origin, answer, {value});
  } else if (kind == OperationKind::kPullState) {
    channel_.outbox.append_of(key.key(), message.origin, answer, {stored_state(key)});
  } else {
    channel_.outbox.append_of(key.key(), message.origin, answer, {});
  }
}

}  // namespace adaps
