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
  for (std::size_t i = 0; i < std::min(kLookahead, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + 2 * kLookahead < keys.size()) store.prefetch_word(keys[i + 2 * kLookahead]);
    if (i + kLookahead < keys.size()) store.prefetch_slot(keys[i + kLookahead], hint);
    function(keys[i]);
  }
}

// How many floats follow a request; nothing if its kind is unknown.
std::optional<std::size_t> payload_floats(const RequestMessage& message, std::size_t length);
// And a change.
std::optional<std::size_t> payload_floats(const DeltaMessage& message, const Table& table);

// Reads ahead in a frame for the keys that its next messages name. Nothing is judged here: what is malformed
// ends the reading ahead, and whoever handles the messages finds it.
class Lookahead {
 public:
  // `awaiting`: the channel's units by name, as answers name a unit instead of a key.
  Lookahead(Store& store, const std::vector<Unit*>& awaiting, std::span<const std::byte> frame);

  // To be called before each message is handled.
  void step();

 private:
  void read_one();
  std::optional<Key> read_key();
  template <typename Message, typename Floats>
  std::optional<Key> skip(Floats floats_of);
  std::optional<Key> end();

  Store& store_;
  const std::vector<Unit*>& awaiting_;
  std::span<const std::byte> rest_;
  const Table* read_hint_ = nullptr;
  const Table* slot_hint_ = nullptr;
  std::array<std::optional<Key>, 2 * kLookahead> keys_;  // a ring: of messages read and not yet handled
  std::size_t oldest_ = 0;
};

}  // namespace adaps
