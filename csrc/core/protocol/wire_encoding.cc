#include "protocol/wire_encoding.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "protocol/context.h"
#include "protocol/decisions.h"
#include "store/codec.h"

namespace adaps {

namespace {

constexpr Wire kStateWire = Wire::kBfloat16;

// Numbers of floats of a row or a change: its value, and the part of the state with one float per float of
// the value.
struct Parts {
  std::size_t value, state;
  std::size_t plain_from() const { return value + state; }
};

Parts parts_of(const Table& table, std::size_t floats) {
  const std::size_t length = table.length();
  const std::size_t state = table.width() - length - table.spec().rule.state_scalars();
  return {length, floats == length ? 0 : state};
}

// Bits of the key word of any copy. If kSet is not set, this node does not own the key, so the copy may have
// a rest.
constexpr std::uint32_t kOfCopies = word::kSlot | word::kReadable;

}  // namespace

std::size_t encoded_floats(const Table& table, Wire wire, std::size_t floats) {
  const Parts parts = parts_of(table, floats);
  return encoded_words(wire, parts.value) + encoded_words(kStateWire, parts.state) + floats -
         parts.plain_from();
}

bool encode(const Table& table, Wire wire, std::span<const float> floats, std::vector<float>& words) {
  const Parts parts = parts_of(table, floats.size());
  words.resize(encoded_floats(table, wire, floats.size()));
  float* out = words.data();
  if (!encode(wire, floats.first(parts.value), out)) return false;
  out += encoded_words(wire, parts.value);
  if (!encode(kStateWire, floats.subspan(parts.value, parts.state), out)) return false;
  out += encoded_words(kStateWire, parts.state);
  std::copy(floats.begin() + static_cast<std::ptrdiff_t>(parts.plain_from()), floats.end(), out);
  return true;
}

void decode(const Table& table, Wire wire, std::span<const float> words, std::span<float> floats) {
  const Parts parts = parts_of(table, floats.size());
  const std::size_t value_words = encoded_words(wire, parts.value);
  const std::size_t state_words = encoded_words(kStateWire, parts.state);
  decode(wire, words.first(value_words), floats.first(parts.value));
  decode(kStateWire, words.subspan(value_words, state_words), floats.subspan(parts.value, parts.state));
  const std::span<const float> plain = words.subspan(value_words + state_words);
  std::copy(plain.begin(), plain.end(), floats.begin() + static_cast<std::ptrdiff_t>(parts.plain_from()));
}

bool keep_rest(const Table& table, Wire wire, Unapplied& changes, std::vector<float>& words) {
  const std::span<float> sent(changes.in_flight.floats.get(), table.change_length());
  if (!encode(table, wire, sent, words)) return false;
  BlockPool::Block rest = changes.in_flight.floats.get_deleter().pool().allocate();
  table.spec().rule.init_change(rest.get(), table.length());
  std::copy_n(sent.data(), table.width(), rest.get());
  decode(table, wire, words, sent);
  bool any = false;
  for (std::size_t i = 0; i < table.width(); ++i) {
    rest[i] = decisions().rest(rest[i], sent[i]);
    any = any || rest[i] != 0.0F;
  }
  if (!any) return true;
  changes.unsent.floats = std::move(rest);
  changes.unsent.change = Change::kNone;
  return true;
}

void leave_no_rests(NodeContext& node) {
  node.exact.store(true);
  if (!decisions().merges_rests()) return;
  for (std::size_t i = 0; i < node.tables.size(); ++i) {
    const Table& table = node.tables[i];
    if (!decisions().may_have_rests(table)) continue;
    for (Key name = table.first_key(); name < table.end_key(); ++name) {
      if ((node.store.peek(name) & (kOfCopies | word::kSet)) != kOfCopies) continue;
      // From now on, changes are sent without rounding, so a change that is sent after this lock is released
      // leaves no rest.
      LockedKey key(node.store, name);
      if (key.state() != State::kReplica || !key.header().has_changes()) continue;
      Partition& partition = node.partition_of(name);
      Delta& unsent = partition.tables.unapplied.at(key.header().changes()).unsent;
      if (!unsent.is_rest()) continue;
      merge_rest(node.epochs, unsent);
      partition.mark_dirty(key);
    }
  }
}

}  // namespace adaps
