#include <cstring>

#include "adaps/lookahead.h"

namespace adaps {

std::optional<std::size_t> payload_floats(const RequestMessage& message, std::size_t length) {
  switch (static_cast<OperationKind>(message.kind)) {
    case OperationKind::kPull:
      return 0;
    case OperationKind::kPush:
    case OperationKind::kSet:
      return length;
    case OperationKind::kPushGradients:
      return message.count * length;
    default:
      return std::nullopt;
  }
}

std::optional<std::size_t> payload_floats(const DeltaMessage& message, const Table& table) {
  switch (message.change) {
    case Change::kNone:
      return 0;
    case Change::kDelta:
      return table.width();
    case Change::kGradient:
      return kGradientHeader + table.length();
  }
  return std::nullopt;
}

Lookahead::Lookahead(Store& store, const std::vector<Unit*>& awaiting, std::span<const std::byte> frame)
    : store_(store), awaiting_(awaiting), rest_(frame) {
  for (std::size_t i = 0; i < keys_.size(); ++i) read_one();
  for (std::size_t i = 0; i < kLookahead; ++i) {
    if (keys_[i]) store_.prefetch_slot(*keys_[i], slot_hint_);
  }
}

void Lookahead::step() {
  const std::optional<Key> next = keys_[(oldest_ + kLookahead) % keys_.size()];
  if (next) store_.prefetch_slot(*next, slot_hint_);
  read_one();
}

// In the place of the oldest message, which is handled now.
void Lookahead::read_one() {
  const std::optional<Key> key = read_key();
  if (key) store_.prefetch_word(*key);
  keys_[oldest_] = key;
  oldest_ = (oldest_ + 1) % keys_.size();
}

std::optional<Key> Lookahead::read_key() {
  const auto nothing = [](const auto&, const Table&) -> std::size_t { return 0; };
  const auto width_with_value = [](const auto& message, const Table& table) {
    return message.payload == Payload::kValue ? table.width() : 0;
  };
  const auto width = [](const auto&, const Table& table) { return table.width(); };
  if (rest_.empty()) return std::nullopt;
  switch (static_cast<MessageType>(rest_.front())) {
    case MessageType::kRequest:
      return skip<RequestMessage>([](const RequestMessage& message, const Table& table) {
        return payload_floats(message, table.length()).value_or(0);
      });
    case MessageType::kIntent:
      return skip<IntentMessage>(nothing);
    case MessageType::kAnswer:
      return skip<AnswerMessage>([](const AnswerMessage& message, const Table& table) {
        return message.has_value != 0 ? table.length() : 0;
      });
    case MessageType::kSetup:
      return skip<SetupMessage>(width_with_value);
    case MessageType::kRefresh:
      return skip<RefreshMessage>(width);
    case MessageType::kDelta:
    case MessageType::kDrop:
      return skip<DeltaMessage>([](const DeltaMessage& message, const Table& table) {
        return payload_floats(message, table).value_or(0);
      });
    case MessageType::kAck:
    case MessageType::kDropAck:
      return skip<AckMessage>(nothing);
    case MessageType::kTransfer:
      return skip<TransferMessage>(width_with_value);
    case MessageType::kNews:
      return skip<NewsMessage>(nothing);
    default:  // the rare ones that name no key
      return end();
  }
}

// The key of the message that is next; `floats_of` says how many floats follow it.
template <typename Message, typename Floats>
std::optional<Key> Lookahead::skip(Floats floats_of) {
  if (rest_.size() < sizeof(Message)) return end();
  Message message;
  std::memcpy(&message, rest_.data(), sizeof(Message));
  Key key = 0;
  if constexpr (requires { message.key; }) {
    key = message.key;
  } else {
    if (message.unit >= awaiting_.size() || awaiting_[message.unit] == nullptr) return end();
    key = awaiting_[message.unit]->key;
  }
  if (key >= store_.tables().num_keys()) return end();
  const std::size_t bytes =
      sizeof(Message) + floats_of(message, store_.tables().find(key, read_hint_)) * sizeof(float);
  if (rest_.size() < bytes) return end();
  rest_ = rest_.subspan(bytes);
  return key;
}

std::optional<Key> Lookahead::end() {
  rest_ = {};
  return std::nullopt;
}

}  // namespace adaps
