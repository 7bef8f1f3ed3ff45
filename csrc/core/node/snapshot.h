// Reads the rows that a node owns, for a checkpoint or an export, and writes them from a checkpoint.
//
// Between freeze() and thaw(), no key moves, and no worker may be in any other call. Every row that was ever
// used is then owned by exactly one node. Rows are identified by their id or, if they have none, by their
// index in the table. Values and optimizer states are stored row after row. The format of a state depends on
// the table's update rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
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

// Copies owned rows in ascending order of their index, starting at row `first`. Copies at most rows.size()
// rows. For each row, `values` has space for length() floats, and `states` for width() - length() floats.
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
  // their home. If rows have ids, rows with an id that was never exported also count as changed.
  std::size_t take(bool all);
  // Copies a part of the copied rows to the caller: as many as `rows` has elements, from the copied row with
  // index `first` on. Writes their ids or ascending indices to `rows` and their values to `values`. May be
  // called while the node works, and after it was closed.
  void read(std::size_t first, std::span<std::int64_t> rows, float* values) const;
  // Frees the copied rows. `told` is true if they were exported. In this case they are exported again only
  // after they have changed.
  void settle(bool told);

  std::size_t count() const { return rows_.size(); }
  // Ids that were exported, and whose rows this node has retired since. take() sets them; settle() clears
  // them.
  const std::vector<std::int64_t>& deleted() const { return deleted_; }

 private:
  void find_deleted();
  // Whether take() copies a row.
  bool is_wanted(Key number, bool all) const;

  NodeContext& node_;
  const Table& table_;
  const std::size_t length_;
  std::vector<Version> told_;      // last exported version by row; 0, the initial value's version, if none
  std::vector<bool> has_told_id_;  // by row; only if rows have ids
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> ids_;  // of the copied rows; only if rows have ids
  std::vector<Version> versions_;
  std::unique_ptr<float[]> values_;
  // The ids to which this node assigns rows; only if rows are retired.
  std::vector<std::int64_t> told_ids_;  // in the last export
  std::vector<std::int64_t> now_ids_;   // when the rows were copied
  std::vector<std::int64_t> deleted_;
};

// Restores a table. Every node calls put() for every row of a checkpoint. The rows are stored separately and
// change nothing before finish(), because a later file of the checkpoint may turn out to be invalid.
class TableRestore {
 public:
  TableRestore(NodeContext& node, const Table& table);

  // Stores those of the rows that this node owns, and returns their number. If rows have ids, these include
  // new ids to which this node assigns rows. Throws std::out_of_range or std::invalid_argument that names the
  // first row that does not exist or was put before, or the table if it is full. After such an error, the
  // restore cannot be finished.
  std::size_t put(std::span<const std::int64_t> rows, const float* values, const float* states);
  // Writes the stored rows. All other owned rows get their initial value. If rows have ids, the used rows are
  // then the stored rows whose value is not the initial value.
  void finish();

 private:
  // Whether this node writes the row in finish(). Checks and marks it as put.
  bool takes_row(std::int64_t index);
  bool takes_id(std::int64_t id);
  bool owns(std::uint64_t row);

  NodeContext& node_;
  const Table& table_;
  std::vector<bool> seen_;                     // by row
  std::unordered_set<std::int64_t> seen_ids_;  // that this node writes
  std::uint64_t new_ids_ = 0;                  // to which this node has to assign rows
  struct Kept {
    std::vector<std::int64_t> names;  // ids or indices of the rows
    std::vector<float> rows;          // values, each followed by its state
  };
  // Records which of the rows, named by their numbers, are used.
  void mark_used(const Kept& kept);
  std::vector<Kept> kept_;  // one for each call of put()
};

}  // namespace adaps
