// Reads the rows that a node owns, for a checkpoint or an export, and writes them from a checkpoint.
//
// Between freeze() and thaw(), no key moves, and no worker may be in any other call. Every row that was ever
// used is then owned by exactly one node. Rows are identified by their index in the table. Values and
// optimizer states are stored row after row. The format of a state depends on the table's update rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/context.h"
#include "store/table.h"

namespace adaps {

// Keys stay on their nodes until thaw(): the begin and end of intents take effect only then. This is
// guaranteed after every node has called freeze(), and then a wait_sync, a barrier and another wait_sync.
void freeze(NodeContext& node);
void thaw(NodeContext& node);

// Number of rows of a table that this node owns.
std::uint64_t count_owned(const NodeContext& node, const Table& table);

struct Taken {
  std::size_t rows;    // number of rows taken
  std::uint64_t next;  // first row of the next call; the table's number of rows at the end
};

// Copies owned rows in ascending order, starting at row `first`. Copies at most rows.size() rows. For each
// row, `values` has space for length() floats, and `states` for width() - length() floats.
Taken take_owned(NodeContext& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                 float* values, float* states);

// Copies the values for an export of a table: all rows, or the rows that changed after the last export. A row
// has changed if its version differs from the exported version. The version moves with the row and never
// decreases, so nodes need not inform each other of the rows that they exported. A row that returns to this
// node with the version that this node exported is unchanged. A row that comes from another node is exported
// again if it was ever changed.
class ChangedRows {
 public:
  ChangedRows(NodeContext& node, const Table& table);

  // Copies changed rows that this node owns, and returns their number. Must be called between freeze() and
  // thaw(). With `all`, copies all owned rows, including rows that were never used and have this node as
  // their home.
  std::size_t take(bool all);
  // Copies a part of the copied rows to the caller: as many as `rows` has elements, in ascending order, from
  // the copied row with index `first` on. Writes their numbers to `rows` and their values to `values`. May be
  // called while the node works, and after it was closed.
  void read(std::size_t first, std::span<std::int64_t> rows, float* values) const;
  // Frees the copied rows. `told` is true if they were exported. In this case they are exported again only
  // after they have changed.
  void settle(bool told);

  std::size_t count() const { return rows_.size(); }

 private:
  NodeContext& node_;
  const Table& table_;
  const std::size_t length_;
  std::vector<Version> told_;  // last exported version by row; 0, the initial value's version, if none
  std::vector<std::int64_t> rows_;
  std::vector<Version> versions_;
  std::unique_ptr<float[]> values_;
};

// Restores a table. Every node calls put() for every row of a checkpoint. The rows are stored separately and
// change nothing before finish(), because a later file of the checkpoint may turn out to be invalid.
class TableRestore {
 public:
  TableRestore(NodeContext& node, const Table& table);

  // Stores those of the rows that this node owns, and returns their number. Throws std::out_of_range or
  // std::invalid_argument that names the first row that does not exist or was put before. After such an
  // error, the restore cannot be finished.
  std::size_t put(std::span<const std::int64_t> rows, const float* values, const float* states);
  // Writes the stored rows. All other owned rows get their initial value.
  void finish();

 private:
  NodeContext& node_;
  const Table& table_;
  std::vector<bool> seen_;
  struct Kept {
    std::vector<Key> keys;
    std::vector<float> rows;  // values, each followed by its state
  };
  std::vector<Kept> kept_;  // one for each call of put()
};

}  // namespace adaps
