// The Python object of a node's table.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "node_handle.h"
#include "protocol/local_access.h"
#include "store/update_rule.h"

namespace adaps::bindings {

class NodeTable {
 public:
  NodeTable(std::shared_ptr<NodeHandle> node, std::size_t index);

  const std::string& name() const { return name_; }
  std::uint64_t first_key() const { return first_key_; }
  std::uint64_t rows() const { return rows_; }
  std::size_t length() const { return length_; }
  std::size_t state_length() const { return state_length_; }

  // Returns the table on `node`. Throws ValueError if it belongs to another node.
  const Table& of(NodeHandle& node) const;
  // Returns the keys of row ids. Throws IndexError that names the first row id that the table does not have.
  py::object keys(const py::object& ids) const;
  std::vector<Key> keys_of(std::span<const std::int64_t> ids) const;

  std::map<std::string, double> stats() const;
  double learning_rate() const;
  void set_learning_rate(double lr);
  // Throws ValueError if the rule is of another kind, or needs state that the table's rows do not have.
  void set_hyperparameters(const UpdateRule& rule);
  std::uint64_t step() const;
  // Throws ValueError if more than one node would apply the missed steps to its rows.
  void set_step(std::uint64_t number, bool idle_rows);
  // Applies missed steps to the rows of the keys, or without keys to all rows. Throws IndexError that names
  // the first key that does not belong to the table.
  void catch_up(const py::object& keys);
  void forget_missed();
  // Records that this node has used no row of a table with ids.
  void forget_used();
  bool retires_rows() const;

 private:
  void for_all_rows(MissedSteps missed);

  const std::shared_ptr<NodeHandle> node_;
  const std::size_t index_;
  std::string name_;
  std::uint64_t first_key_ = 0;
  std::uint64_t rows_ = 0;
  std::size_t length_ = 0, state_length_ = 0;
};

}  // namespace adaps::bindings
