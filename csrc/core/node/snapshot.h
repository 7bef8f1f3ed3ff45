// Reads the rows that a node owns for a checkpoint or an export, and writes them from a checkpoint.
//
// Between freeze() and thaw() no key moves, and no worker may be in any other call: then every row that was
// ever touched is owned by exactly one node. Rows are numbers within their table, values and optimizer states
// lie row after row; what a state means is its update rule's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

// Copies the values that an export of a table has to tell: all, or what has changed since the last one. A
// row's version says which it is. It goes wherever the row goes and only rises, so no node has to know what
// others told: a row that comes back with the version that was told here is as it was then. One that has come
// from elsewhere is told again, if it ever changed.
class ChangedRows {
 public:
  ChangedRows(NodeContext& node, const Table& table);

  // Between freeze() and thaw(): copies rows that this node owns, and returns their number. With `all`, rows
  // at home here that nobody ever touched are among them.
  std::size_t take(bool all);
  // Writes copied rows to `rows`, in rising order from the so-manieth on, and their values row after row;
  // there have to be as many. May be called while the node works, and when it is gone.
  void read(std::size_t first, std::span<std::int64_t> rows, float* values) const;
  // Lets go of what was copied. If it was `told`, it need not be told again until it changes.
  void settle(bool told);

  std::size_t count() const { return rows_.size(); }

 private:
  NodeContext& node_;
  const Table& table_;
  const std::size_t length_;
  std::vector<Version> told_;  // by row; 0, which stands for the initial content, where nothing else was
  std::vector<std::int64_t> rows_;
  std::vector<Version> versions_;
  std::unique_ptr<float[]> values_;
};

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
