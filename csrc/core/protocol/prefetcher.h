// Prefetches data of keys into the processor's cache. The address of each item is in the previous item: the
// key word contains the slot, the slot's header contains the changes' entry or the first holder, and that
// entry contains the address of the changes. Therefore there are four stages. The word is fetched 2 *
// kPrefetchDistance keys ahead, header and value kPrefetchDistance keys ahead, the entry kEntryDistance keys
// ahead, and a copy's changes kChangesDistance keys ahead.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "common/types.h"
#include "protocol/decisions.h"
#include "protocol/dirty_list.h"
#include "protocol/message.h"
#include "protocol/operation.h"
#include "protocol/wire_encoding.h"
#include "store/store.h"
#include "store/table.h"

namespace adaps {

inline constexpr std::size_t kPrefetchDistance = 16;
inline constexpr std::size_t kEntryDistance = 8;
inline constexpr std::size_t kChangesDistance = 4;

// Calls function(key) for each of the keys.
template <typename Function>
void for_each_prefetched(Store& store, const KeyTables& tables, std::span<const Key> keys,
                         Function function) {
  const Table* slot_hint = nullptr;
  const Table* entry_hint = nullptr;
  const Table* changes_hint = nullptr;
  for (std::size_t i = 0; i < std::min(2 * kPrefetchDistance, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + 2 * kPrefetchDistance < keys.size()) store.prefetch_word(keys[i + 2 * kPrefetchDistance]);
    if (i + kPrefetchDistance < keys.size()) store.prefetch_slot(keys[i + kPrefetchDistance], slot_hint);
    if (i + kEntryDistance < keys.size()) tables.prefetch(store, keys[i + kEntryDistance], entry_hint);
    if (i + kChangesDistance < keys.size())
      tables.prefetch_changes(store, keys[i + kChangesDistance], changes_hint, KeyTables::Changes::kToSend);
    function(keys[i]);
  }
}

// Like for_each_prefetched, for a function that mostly reads words and intent counts. It reads the header
// only if other nodes also hold the key.
template <typename Function>
void for_each_counted(Store& store, std::span<const Key> keys, Function function) {
  const Table* hint = nullptr;
  for (std::size_t i = 0; i < std::min(2 * kPrefetchDistance, keys.size()); ++i)
    store.prefetch_intents(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + 2 * kPrefetchDistance < keys.size()) store.prefetch_intents(keys[i + 2 * kPrefetchDistance]);
    if (i + kPrefetchDistance < keys.size()) store.prefetch_if_shared(keys[i + kPrefetchDistance], hint);
    function(keys[i]);
  }
}

// How many floats follow a request; nothing if its kind is unknown.
inline std::optional<std::size_t> payload_floats(const RequestMessage& message, const Table& table) {
  switch (static_cast<OperationKind>(message.kind)) {
    case OperationKind::kPull:
    case OperationKind::kPullState:
      return 0;
    case OperationKind::kPush:
    case OperationKind::kSet:
      return table.length();
    case OperationKind::kPushGradients:
      return message.count * table.length();
    case OperationKind::kSetState:
      return table.state_length();
    default:
      return std::nullopt;
  }
}
// Number of floats after a DELTA or DROP; nothing if its kind of change is unknown.
inline std::optional<std::size_t> payload_floats(const DeltaMessage& message, const Table& table, Key key) {
  switch (message.change) {
    case Change::kNone:
      return 0;
    case Change::kDelta:
      return table.change_length();
    case Change::kGradient:
      return kGradientHeader + table.length();
    case Change::kEncoded:
      if (!decisions().rounds(table, key)) return std::nullopt;
      return encoded_floats(table, decisions().wire_of(table, key), table.change_length());
  }
  return std::nullopt;
}
// Number of words of a row's first `floats` floats, either encoded in the row's wire or in storage format.
inline std::size_t payload_floats(bool encoded, const Table& table, Key key, std::size_t floats) {
  return encoded ? encoded_floats(table, decisions().wire_of(table, key), floats)
                 : table.stored_words(floats);
}
inline std::size_t payload_floats(Payload payload, const Table& table, Key key) {
  if (payload != Payload::kValue && payload != Payload::kEncoded) return 0;
  return payload_floats(payload == Payload::kEncoded, table, key, table.width());
}

// How many floats follow an answer: a value, or an optimizer state, which is never encoded.
inline std::size_t payload_floats(const AnswerMessage& message, const Table& table, Key key) {
  switch (message.content) {
    case Answered::kValue:
      return payload_floats(message.encoded != 0, table, key, table.length());
    case Answered::kState:
      return table.state_length();
    default:
      return 0;
  }
}

// Prefetches the keys that the next messages of a frame name. It reports no errors: at a malformed message it
// stops, and the code that handles the message refuses it.
class Prefetcher {
 public:
  // `awaiting` has the channel's requests by number, because an answer contains its request's number instead
  // of a key.
  Prefetcher(Store& store, const KeyTables& tables, const std::vector<KeyRequest*>& awaiting,
             std::span<const std::byte> frame);

  // Must be called before each message is handled.
  void step() {
    // Fetches one item of each stage per message, because a processor supports few pending memory accesses,
    // and further ones stall it.
    fetch_slot(ahead_[(handled_ + kPrefetchDistance) % kRingSize]);
    fetch_entry(ahead_[(handled_ + kEntryDistance) % kRingSize]);
    fetch_changes(ahead_[(handled_ + kChangesDistance) % kRingSize]);
    Key& furthest = ahead_[handled_ % kRingSize];
    ++handled_;
    furthest = read_key();
    fetch_word(furthest);
  }

 private:
  static constexpr std::size_t kRingSize = 2 * kPrefetchDistance;
  static constexpr Key kNoKey = ~Key{0};

  void fetch_word(Key key) const;
  void fetch_slot(Key key);
  void fetch_entry(Key key);
  void fetch_changes(Key key);
  Key read_key();
  template <typename Message, typename Floats>
  Key skip(Floats floats_of);
  Key end();

  Store& store_;
  const KeyTables& tables_;
  const std::vector<KeyRequest*>& awaiting_;
  std::span<const std::byte> rest_;
  const Table* read_hint_ = nullptr;
  const Table* slot_hint_ = nullptr;
  const Table* entry_hint_ = nullptr;
  const Table* changes_hint_ = nullptr;
  std::size_t handled_ = 0;
  std::array<Key, kRingSize> ahead_;  // keys of the next messages, in a ring
};

}  // namespace adaps
