#include "scale/stream.h"

#include <bit>
#include <stdexcept>
#include <string>

namespace adaps::scale {

namespace {

static_assert(std::endian::native == std::endian::little);

template <typename Number>
Number read(std::istream& in) {
  Number number{};
  if (!in.read(reinterpret_cast<char*>(&number), sizeof number))
    throw std::invalid_argument("the stream ends too early: record it again");
  return number;
}

std::vector<Key> read_keys(std::istream& in, std::uint64_t num_keys) {
  const auto count = read<std::uint32_t>(in);
  if (count > num_keys) {
    throw std::invalid_argument("the stream lists " + std::to_string(count) + " distinct keys of " +
                                std::to_string(num_keys));
  }
  std::vector<Key> keys(count);
  for (Key& key : keys) {
    key = read<std::uint32_t>(in);
    if (key >= num_keys) {
      throw std::invalid_argument("the stream names key " + std::to_string(key) + " of " +
                                  std::to_string(num_keys));
    }
  }
  return keys;
}

}  // namespace

AccessStream read_stream(std::istream& in) {
  if (read<std::uint32_t>(in) != kStreamMagic)
    throw std::invalid_argument("the file is no access stream: tools/measure_scale.py records one");
  const auto nodes = read<std::uint32_t>(in);
  const auto steps = read<std::uint32_t>(in);
  const auto tables = read<std::uint32_t>(in);
  if (nodes < 1 || nodes > kMaxNodes)
    throw std::invalid_argument("the stream has " + std::to_string(nodes) + " nodes; 1 to " +
                                std::to_string(kMaxNodes) + " are possible");
  AccessStream stream;
  std::uint64_t num_keys = 0;
  for (std::uint32_t i = 0; i < tables; ++i) {
    StreamTable table;
    table.rows = read<std::uint64_t>(in);
    table.length = read<std::uint32_t>(in);
    table.dense = read<std::uint32_t>(in) != 0;
    num_keys += table.rows;
    stream.tables.push_back(table);
  }
  stream.nodes.resize(nodes);
  for (NodeStream& node : stream.nodes) {
    node.placed = read_keys(in, num_keys);
    for (std::uint32_t i = 0; i < steps; ++i) node.steps.push_back(read_keys(in, num_keys));
  }
  return stream;
}

}  // namespace adaps::scale
