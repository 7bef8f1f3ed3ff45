// The Python object of a node's table.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "node_handle.h"

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
  std::vector<Key> keys_of(std::span<const std::int64_t> ids) const;

  NodeHandle& node() const { return *node_; }
  std::size_t index() const { return index_; }
  // The table on its node. Throws Failure if the node is closed.
  Table& table() const { return node_->node().tables()[index_]; }

 private:
  const std::shared_ptr<NodeHandle> node_;
  const std::size_t index_;
  std::string name_;
  std::uint64_t first_key_ = 0;
  std::uint64_t rows_ = 0;
  std::size_t length_ = 0, state_length_ = 0;
};

}  // namespace adaps::bindings
