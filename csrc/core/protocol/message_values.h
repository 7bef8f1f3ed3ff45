// Values and changes in the format of messages.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"
#include "protocol/decisions.h"
#include "protocol/dirty_list.h"
#include "protocol/message.h"
#include "protocol/prefetcher.h"
#include "protocol/wire_encoding.h"
#include "store/store.h"
#include "store/table.h"

namespace adaps {

inline Payload payload_of(const SlotHeader& header) {
  return decisions().is_initial(header.version()) ? Payload::kInitial : Payload::kValue;
}

// Decodes the first out.size() floats of a row from its wire.
void read_encoded(const LockedKey& key, Reader& reader, std::span<float> out);
// Encodes the first `floats` floats of a row. Returns false if the row's wire is not lossy or cannot
// represent them. Then they must be sent in their storage format.
inline bool encode_row(LockedKey& key, std::size_t floats, std::vector<float>& words) {
  const Table& table = key.table();
  return decisions().rounds(table, key.key()) &&
         encode(table, decisions().wire_of(table, key.key()), {key.value(), floats}, words);
}

// Writes the value of a message, or the initial value if the message requires it, to the key's unpacked row.
// After the caller has set the version in the key's header, it stores the row (see Decisions::keep). Storing
// does not round, because each wire maps numbers of bfloat16 to numbers of bfloat16.
inline void read_value(LockedKey& key, Payload payload, Reader& reader) {
  switch (payload) {
    case Payload::kValue:
      decisions().take_stored(key, reader);
      return;
    case Payload::kEncoded:
      read_encoded(key, reader, {key.value(), key.width()});
      return;
    case Payload::kInitial:
      decisions().make_initial(key);
      return;
    case Payload::kNone:
      break;
  }
  throw ProtocolError("a value of unknown kind " + std::to_string(static_cast<int>(payload)));
}

// Returns the floats of a delta's message: its gradient or its change.
inline std::span<const float> content(const LockedKey& key, const Delta& delta) {
  if (delta.change == Change::kGradient)
    return {delta.floats.get() + key.table().change_length(), kGradientHeader + key.length()};
  return {delta.floats.get(), key.table().change_length()};
}

inline std::span<const float> read_change(const DeltaMessage& message, const LockedKey& key, Reader& reader) {
  const std::optional<std::size_t> floats = payload_floats(message, key.table(), key.key());
  if (!floats)
    throw ProtocolError("a change of unknown kind " + std::to_string(static_cast<int>(message.change)));
  return reader.floats(*floats);
}

}  // namespace adaps
