#include <cmath>
#include <string>
#include <utility>

#include "arrays.h"
#include "node_table.h"
#include "register.h"

namespace adaps::bindings {

NodeTable::NodeTable(std::shared_ptr<NodeHandle> node, std::size_t index)
    : node_(std::move(node)), index_(index) {
  const Table& table = node_->node().tables()[index];
  name_ = table.spec().name;
  first_key_ = table.first_key();
  rows_ = table.spec().rows;
  length_ = table.length();
}

py::object NodeTable::keys(const py::object& ids) const {
  const Array input = Array::of_int64(ids, "ids");
  py::object keys = new_int64(ids, shape_of(ids, input.size()));
  const std::span<const std::int64_t> from = input.int64();
  const std::span<std::int64_t> to = Array::of_int64(keys, "keys", Access::kWrite).mutable_int64();
  const auto first = static_cast<std::int64_t>(first_key_);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (static_cast<std::uint64_t>(from[i]) >= rows_) {
      throw py::index_error("row " + std::to_string(from[i]) + " does not exist in table '" + name_ +
                            "': rows are 0 to " + std::to_string(rows_ - 1));
    }
    to[i] = from[i] + first;
  }
  return keys;
}

double NodeTable::learning_rate() const { return node_->node().tables()[index_].learning_rate(); }

void NodeTable::set_learning_rate(double lr) {
  if (!std::isfinite(lr) || lr < 0) {
    throw py::value_error("learning rate " + std::to_string(lr) + " of table '" + name_ +
                          "': it must be finite and not negative");
  }
  node_->node().tables()[index_].set_learning_rate(static_cast<float>(lr));
}

std::uint64_t NodeTable::step() const { return node_->node().tables()[index_].step(); }

void NodeTable::set_step(std::uint64_t number) { node_->node().tables()[index_].set_step(number); }

void register_node_table(py::module_& module) {
  py::class_<NodeTable>(module, "NodeTable", "A table in its place among the tables of a node.")
      .def_property_readonly("name", &NodeTable::name, "The table's name.")
      .def_property_readonly("first_key", &NodeTable::first_key, "The key of row 0; the others follow.")
      .def_property_readonly("rows", &NodeTable::rows, "Number of rows.")
      .def_property_readonly("length", &NodeTable::length, "Floats in a row.")
      .def("keys", &NodeTable::keys, py::arg("ids"),
           "Keys of the row ids, in an int64 array of the same shape and kind (PyTorch or NumPy).")
      .def_property_readonly("learning_rate", &NodeTable::learning_rate, "The learning rate on this node.")
      .def("set_learning_rate", &NodeTable::set_learning_rate, py::arg("lr"),
           "Changes the learning rate of the gradients applied on this node: call it on every node.")
      .def_property_readonly("step", &NodeTable::step, "The step that set_step told, else 0.")
      .def("set_step", &NodeTable::set_step, py::arg("number"),
           "Has Adam correct its bias for step `number` (from 1) where it applies gradients on this node; "
           "with "
           "0, as at first, each row counts its own gradients.");
}

}  // namespace adaps::bindings
