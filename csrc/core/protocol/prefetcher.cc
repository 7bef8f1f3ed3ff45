#include "protocol/prefetcher.h"

#include <cstring>

namespace adaps {

Prefetcher::Prefetcher(Store& store, const KeyTables& tables, const std::vector<KeyRequest*>& awaiting,
                       std::span<const std::byte> frame)
    : store_(store), tables_(tables), awaiting_(awaiting), rest_(frame) {
  for (Key& key : ahead_) fetch_word(key = read_key());
  for (std::size_t i = 0; i < kPrefetchDistance; ++i) fetch_slot(ahead_[i]);
}

// Also fetches the intent count. An owner reads it for decisions, and a holder when a row has arrived.
void Prefetcher::fetch_word(Key key) const {
  if (key != kNoKey) store_.prefetch_intents(key);
}

void Prefetcher::fetch_slot(Key key) {
  if (key != kNoKey) store_.prefetch_slot(key, slot_hint_);
}

void Prefetcher::fetch_entry(Key key) {
  if (key != kNoKey) tables_.prefetch(store_, key, entry_hint_);
}

void Prefetcher::fetch_changes(Key key) {
  if (key != kNoKey) tables_.prefetch_changes(store_, key, changes_hint_, KeyTables::Changes::kToAdd);
}

Key Prefetcher::read_key() {
  const auto nothing = [](const auto&, const Table&, Key) -> std::size_t { return 0; };
  const auto width_with_value = [](const auto& message, const Table& table, Key key) {
    return payload_floats(message.payload, table, key);
  };
  if (rest_.empty()) return kNoKey;
  switch (static_cast<MessageType>(rest_.front())) {
    case MessageType::kRequest:
      return skip<RequestMessage>([](const RequestMessage& message, const Table& table, Key) {
        return payload_floats(message, table).value_or(0);
      });
    case MessageType::kIntent:
      return skip<IntentMessage>(nothing);
    case MessageType::kAnswer:
      return skip<AnswerMessage>([](const AnswerMessage& message, const Table& table, Key key) {
        return payload_floats(message, table, key);
      });
    case MessageType::kSetup:
      return skip<SetupMessage>(width_with_value);
    case MessageType::kRefresh:
      return skip<RefreshMessage>([](const RefreshMessage& message, const Table& table, Key key) {
        return payload_floats(message.encoded != 0, table, key, table.width());
      });
    case MessageType::kDelta:
    case MessageType::kDrop:
      return skip<DeltaMessage>([](const DeltaMessage& message, const Table& table, Key key) {
        return payload_floats(message, table, key).value_or(0);
      });
    case MessageType::kAck:
    case MessageType::kDropAck:
      return skip<AckMessage>(nothing);
    case MessageType::kTransfer:
      return skip<TransferMessage>(width_with_value);
    case MessageType::kNews:
      return skip<NewsMessage>(nothing);
    default:  // rare messages that are not about one key
      return end();
  }
}

// Skips the next message and returns its key. `floats_of` returns the number of floats that follow it.
template <typename Message, typename Floats>
Key Prefetcher::skip(Floats floats_of) {
  if (rest_.size() < sizeof(Message)) return end();
  Message message;
  std::memcpy(&message, rest_.data(), sizeof(Message));
  Key key = 0;
  if constexpr (requires { message.key; }) {
    key = message.key;
  } else {
    if (message.request >= awaiting_.size() || awaiting_[message.request] == nullptr) return end();
    key = awaiting_[message.request]->key;
  }
  if (key >= store_.tables().num_keys()) return end();
  const std::size_t bytes =
      sizeof(Message) + floats_of(message, store_.tables().find(key, read_hint_), key) * sizeof(float);
  if (rest_.size() < bytes) return end();
  rest_ = rest_.subspan(bytes);
  return key;
}

Key Prefetcher::end() {
  rest_ = {};
  return kNoKey;
}

}  // namespace adaps
