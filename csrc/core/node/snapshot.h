// Reads the rows that a node owns for a checkpoint, and writes them from one.
//
// Between freeze() and thaw() no key moves, and no worker may be in any other call: then every row that was
// ever touched is owned by exactly one node. Rows are numbers within their table, values and optimizer states
// lie row after row; what a state means is its update rule's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/context.h"
#include "store/table.h"

namespace adaps {

// Keys stay where they are until thaw(): intents that begin or end are acted on only then. It holds once
// every node has frozen and a wait_sync, a barrier and another wait_sync are over.
void freeze(NodeContext& node);
void thaw(NodeContext& node);

// Number of rows of a table that this node owns.
std::uint64_t count_owned(const NodeContext& node, const Table& table);

struct Taken {
  std::size_t rows;    // how many
  std::uint64_t next;  // the row to go on from; the number of rows of the table at its end
};

// Copies owned rows from row `first` on, in rising order, at most as many as `rows` has room for. For each of
// them `values` has room for length() floats, and `states` for width() - length().
Taken take_owned(NodeContext& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                 float* values, float* states);

// Restores a table: every node puts every row of a checkpoint. As the last of its files may still prove
// wrong, the rows are kept apart and change nothing until finish().
class TableRestore {
 public:
  TableRestore(NodeContext& node, const Table& table);

  // Keeps those of the rows that this node owns, and returns their number. Throws std::out_of_range or
  // std::invalid_argument naming the first row that does not exist or was put before; then it cannot be
  // finished.
  std::size_t put(std::span<const std::int64_t> rows, const float* values, const float* states);
  // Writes what was kept, and gives owned rows that were not put their initial content.
  void finish();

 private:
  NodeContext& node_;
  const Table& table_;
  std::vector<bool> seen_;
  struct Kept {
    std::vector<Key> keys;
    std::vector<float> rows;  // values with their states
  };
  std::vector<Kept> kept_;  // of each put
};

}  // namespace adaps
