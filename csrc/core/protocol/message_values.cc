#include "protocol/message_values.h"

namespace adaps {

void read_encoded(const LockedKey& key, Reader& reader, std::span<float> out) {
  const Table& table = key.table();
  if (!decisions().rounds(table, key.key()))
    throw ProtocolError("a row of table '" + table.spec().name + "' is encoded, but its wire is float32");
  const Wire wire = decisions().wire_of(table, key.key());
  decisions().decode(table, wire, reader.floats(encoded_floats(table, wire, out.size())), out);
}

}  // namespace adaps
