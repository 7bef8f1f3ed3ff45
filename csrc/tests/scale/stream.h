// What the nodes of a training access, step after step, as tools/measure_scale.py records it.
#pragma once

#include <cstdint>
#include <istream>
#include <vector>

#include "common/types.h"

namespace adaps::scale {

struct StreamTable {
  std::uint64_t rows = 0;
  std::uint32_t length = 0;  // floats of a row
  bool dense = false;        // all rows in every step: the blocks of a model's dense parameters
};

struct NodeStream {
  std::vector<Key> placed;              // these begin on the node
  std::vector<std::vector<Key>> steps;  // the distinct rows of each step, without dense tables
};

struct AccessStream {
  std::vector<StreamTable> tables;
  std::vector<NodeStream> nodes;
};

// The file's numbers are little-endian and unsigned, of 32 bits but for a table's rows of 64: kStreamMagic;
// nodes, steps and tables; for each table rows, length, dense; for each node how many keys are placed and
// these, then for each step how many keys it reads and these. Keys count on from table to table.
//
// Throws std::invalid_argument naming what is wrong with it.
AccessStream read_stream(std::istream& in);

inline constexpr std::uint32_t kStreamMagic = 0x31537041;  // "ApS1"

}  // namespace adaps::scale
