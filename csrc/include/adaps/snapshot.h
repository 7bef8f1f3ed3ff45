// The rows that a node owns, taken out for a checkpoint and put back from one.
//
// Between freeze() and thaw() no key moves, and no worker may be in any other call: then every row that was
// ever touched is owned by exactly one node. Rows are numbers within their table, values and optimizer states
// lie row after row; what a state means is its update rule's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "adaps/node_state.h"
#include "adaps/table.h"

namespace adaps {

// Keys stay where they are until thaw(): intents that begin or end are acted on only then. It holds once
// every node has frozen and a wait_sync, a barrier and another wait_sync are over.
void freeze(NodeState& node);
void thaw(NodeState& node);

// Number of rows of a table that this node owns.
std::uint64_t count_owned(const NodeState& node, const Table& table);

struct Taken {
  std::size_t rows;    // how many
  std::uint64_t next;  // the row to go on from; the number of rows of the table at its end
};

// Copies owned rows from row `first` on, in rising order, as many as `rows` has room for. `values` has room
// for as many times length() floats, `states` for as many times width() - length().
Taken take_owned(NodeState& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                 float* values, float* states);

// Makes a table's content that of a checkpoint, of which every node puts every row. What comes from files may
// prove wrong to the last of them: it is kept in memory of its own until finish(), and changes nothing
// before.
class TableRestore {
 public:
  TableRestore(NodeState& node, const Table& table);

  // Keeps those of the rows that this node owns, and returns their number. Throws std::out_of_range or
  // std::invalid_argument naming the first row that does not exist or was put before; then it cannot be
  // finished.
  std::size_t put(std::span<const std::int64_t> rows, const float* values, const float* states);
  // Writes what was kept, and gives owned rows that were not put their initial content.
  void finish();

 private:
  NodeState& node_;
  const Table& table_;
  std::vector<bool> seen_;
  struct Kept {
    std::vector<Key> keys;
    std::vector<float> rows;  // values with their states
  };
  std::vector<Kept> kept_;  // of each put
};

}  // namespace adaps
