#include "protocol/message_values.h"

#include "protocol/encoded.h"

namespace adaps {

void read_encoded(const Table& table, Reader& reader, std::span<float> out) {
  if (!table.is_lossy())
    throw ProtocolError("a row of table '" + table.spec().name + "' is encoded, but its wire is float32");
  rules().decode(table, reader.floats(encoded_floats(table, out.size())), out);
}

}  // namespace adaps
