// Asks for the memory of keys ahead of their turn. A key's slot is found by its word, so there are two
// stages: the word 2 * kLookahead keys ahead, header and value kLookahead ahead.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "adaps/message.h"
#include "adaps/operation.h"
#include "adaps/store.h"
#include "adaps/table.h"
#include "adaps/types.h"

namespace adaps {

inline constexpr std::size_t kLookahead = 16;

// Calls function(key) for each of the keys.
template <typename Function>
void for_each_prefetched(Store& store, std::span<const Key> keys, Function function) {
  const Table* hint = nullptr;
  for (std::size_t i = 0; i < std::min(2 * kLookahead, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + 2 * kLookahead < keys.size()) store.prefetch_word(keys[i + 2 * kLookahead]);
    if (i + kLookahead < keys.size()) store.prefetch_slot(keys[i + kLookahead], hint);
    function(keys[i]);
  }
}

// How many floats follow a request; nothing if its kind is unknown.
inline std::optional<std::size_t> payload_floats(const RequestMessage& message, std::size_t length) {
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
// And a change.
inline std::optional<std::size_t> payload_floats(const DeltaMessage& message, const Table& table) {
  switch (message.change) {
    case Change::kNone:
      return 0;
    case Change::kDelta:
      return table.change_length();
    case Change::kGradient:
      return kGradientHeader + table.length();
  }
  return std::nullopt;
}

// Reads ahead in a frame for the keys that its next messages name. Nothing is judged here: what is malformed
// ends the reading ahead, and whoever handles the messages finds it.
class Lookahead {
 public:
  // `awaiting`: the channel's units by name, as answers name a unit instead of a key.
  Lookahead(Store& store, const std::vector<Unit*>& awaiting, std::span<const std::byte> frame);

  // To be called before each message is handled.
  void step() {
    if (handled_++ % kLookahead == 0) next_block();
  }

 private:
  static constexpr Key kNoKey = ~Key{0};

  void next_block();
  void read_block();
  Key read_key();
  template <typename Message, typename Floats>
  Key skip(Floats floats_of);
  Key end();

  Store& store_;
  const std::vector<Unit*>& awaiting_;
  std::span<const std::byte> rest_;
  const Table* read_hint_ = nullptr;
  const Table* slot_hint_ = nullptr;
  std::size_t handled_ = 0;
  std::array<Key, kLookahead> block_;  // keys of the next block, whose words were asked for
  std::size_t block_size_ = 0;
};

}  // namespace adaps
