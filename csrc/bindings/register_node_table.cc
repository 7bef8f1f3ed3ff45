#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "node_table.h"
#include "protocol/local_access.h"
#include "register.h"
#include "store/row_ids.h"

namespace adaps::bindings {

NodeTable::NodeTable(std::shared_ptr<NodeHandle> node, std::size_t index)
    : node_(std::move(node)), index_(index) {
  const Table& table = node_->node().tables()[index];
  name_ = table.spec().name;
  first_key_ = table.first_key();
  rows_ = table.spec().rows;
  length_ = table.length();
  state_length_ = table.state_length();
}

const Table& NodeTable::of(NodeHandle& node) const {
  if (node_.get() != &node)
    throw py::value_error("table '" + name_ +
                          "' belongs to another node: use the table of this worker's node");
  return node.node().tables()[index_];
}

std::vector<Key> NodeTable::keys_of(std::span<const std::int64_t> ids) const {
  std::vector<Key> keys(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= rows_) {
      throw py::index_error("row " + std::to_string(ids[i]) + " does not exist in table '" + name_ +
                            "': rows are 0 to " + std::to_string(rows_ - 1));
    }
    keys[i] = first_key_ + static_cast<Key>(ids[i]);
  }
  return keys;
}

namespace {

py::object keys(const NodeTable& of, const py::object& ids) {
  const Array input = Array::of_int64(ids, "ids");
  py::object keys = new_int64(ids, shape_of(ids, input.size()));
  std::ranges::copy(of.keys_of(input.int64()),
                    Array::of_int64(keys, "keys", Access::kWrite).mutable_int64().begin());
  return keys;
}

[[noreturn]] void refuse(const std::string& what, const NodeTable& of, const std::string& why) {
  throw py::value_error(what + " of table '" + of.name() + "': " + why);
}

void set_learning_rate(const NodeTable& of, double lr) {
  if (!std::isfinite(static_cast<float>(lr)) || lr < 0)
    refuse("learning rate " + std::to_string(lr), of, "it must be finite in float32 and not negative");
  Table& table = of.table();
  Hyperparameters with = table.hyperparameters();
  with.learning_rate = static_cast<float>(lr);
  table.set_hyperparameters(with);
}

void set_hyperparameters(const NodeTable& of, const UpdateRule& rule) {
  Table& table = of.table();
  const UpdateRule& own = table.spec().rule;
  const bool alike = rule.kind == own.kind && rule.decoupled == own.decoupled &&
                     rule.nesterov == own.nesterov && rule.centered == own.centered && rule.eps == own.eps;
  if (!alike)
    throw py::value_error(
        "the optimizer of table '" + of.name() +
        "' can change its lr, momentum, betas and weight decay, but not its kind or its eps");
  if (rule.weight_decay != 0.0F && own.weight_decay == 0.0F && !own.moves_idle_rows())
    refuse(
        "weight decay " + std::to_string(rule.weight_decay), of,
        "it was 0 at first, so rows have no record of missed steps; start with a small one, such as 1e-12");
  if (rule.momentum != 0.0F && own.momentum == 0.0F)
    refuse("momentum " + std::to_string(rule.momentum), of,
           "it was 0 at first, so rows have no space for it; start with a small one, such as 1e-12");
  table.set_hyperparameters(rule.hyperparameters());
}

void set_step(const NodeTable& of, std::uint64_t number, bool idle_rows) {
  constexpr std::uint32_t kLargest = std::numeric_limits<std::uint32_t>::max();
  Table& table = of.table();
  const std::string what = "step " + std::to_string(number);
  const NodeId nodes = of.node().settings().nodes;
  const bool catches_up = number != 0 && idle_rows && table.spec().rule.moves_idle_rows();
  if (catches_up && nodes > 1)
    refuse(what, of,
           "rows catch up with steps on a single node only, and there are " + std::to_string(nodes) +
               "; set idle_rows=False");
  if (catches_up && table.is_limited())
    refuse(what, of,
           "rows catch up with steps only if all of them are in memory; set idle_rows=False, or create the "
           "table without memory");
  if (number > kLargest) refuse(what, of, "steps go to " + std::to_string(kLargest));
  table.set_step(number, idle_rows);
}

void for_all_rows(const NodeTable& of, MissedSteps missed) {
  constexpr std::size_t kAtOnce = 4096;
  Node& node = of.node().node();
  const Table& table = of.table();
  if (table.now().history == nullptr) return;  // no row has missed anything
  const NodeHandle::Call call(of.node());
  const py::gil_scoped_release release;
  std::vector<Key> some(kAtOnce);
  for (Key first = table.first_key(); first < table.end_key(); first += some.size()) {
    some.resize(std::min<Key>(kAtOnce, table.end_key() - first));
    std::iota(some.begin(), some.end(), first);
    adaps::catch_up(node.context(), table, some, missed);
  }
}

// Without keys, all rows catch up.
void catch_up(const NodeTable& of, const py::object& keys) {
  if (keys.is_none()) return for_all_rows(of, MissedSteps::kApply);
  Node& node = of.node().node();
  const Table& table = of.table();
  const Array array = Array::of_int64(keys, "keys");
  for (const Key key : array.keys()) {
    if (!table.contains(key))
      throw py::index_error("key " + std::to_string(static_cast<std::int64_t>(key)) +
                            " does not belong to table '" + of.name() + "': its keys are " +
                            std::to_string(of.first_key()) + " to " + std::to_string(table.end_key() - 1));
  }
  const NodeHandle::Call call(of.node());
  const py::gil_scoped_release release;
  adaps::catch_up(node.context(), table, array.keys());
}

void forget_used(const NodeTable& of) {
  RowIds* ids = of.table().ids();
  if (ids == nullptr)
    throw py::value_error("table '" + of.name() + "' has no ids: its rows are numbered from 0");
  const NodeHandle::Call call(of.node());
  const py::gil_scoped_release release;
  ids->used().clear();
}

constexpr char kForgetUsed[] =
    R"(Forget which rows this node has used, so that `Worker.used_ids` does not list them.

Other nodes still list the rows that they have used. The rows keep their ids and their content.

Raises
------
ValueError
    If the table has no ids.)";

constexpr char kNodeTable[] = R"(A table on a node; `adaps.Node.table` returns it.

Changes of its settings apply to gradients that this node applies afterwards, to the rows that it owns.
Therefore make such changes on every node.)";

constexpr char kKeys[] = R"(Keys of row ids.

Parameters
----------
ids : int64 array, CPU tensor or sequence of int
    Row ids in ``[0, rows)``, C-contiguous, of any shape. Duplicates are kept.

Returns
-------
int64 array or CPU tensor
    New array ``first_key + ids``, of the kind and shape of `ids`.

Raises
------
IndexError
    If a row does not exist. The error names the first one.
TypeError, ValueError
    If `ids` has another dtype or layout, or is not on the CPU.)";

constexpr char kStats[] = R"(Return this node's counters of this table.

The counters are the keys by the place that served them (``pulled_local``, …), as in `Node.stats` for all
tables, and ``messages_sent_KIND`` and ``bytes_sent_KIND`` for each kind of message about a key. They show
whether the rows were managed as declared. After the node was closed, the last values are returned.

Returns
-------
dict of str to float
    Sums over the node's workers and channels since the node was created.)";

constexpr char kSetLearningRate[] = R"(Change the learning rate on this node; never blocks.

Parameters
----------
lr : float
    New learning rate, finite and not negative.

Raises
------
ValueError
    If `lr` is negative or not finite.)";

constexpr char kSetHyperparameters[] =
    R"(Change the hyperparameters that may change during training; never blocks.

These are the learning rate, momentum, betas and weight decay.

Parameters
----------
rule : adaps._core.UpdateRule
    Result of ``rule()`` of an optimizer of the table's kind.

Raises
------
ValueError
    If it is of another kind or has another `eps`, or if it needs state that the rows do not have: momentum or
    weight decay, if it was 0 when the table was created.)";

constexpr char kSetStep[] =
    R"(Set the optimizer step of the gradients that this node applies from now on; never blocks.

Adam uses the step to correct its bias. If the rule changes rows without a gradient, a row also catches up
with the steps in which it had none.

Parameters
----------
number : int
    Step number, at least 1. With 0, the initial value, each row counts its own gradients.
idle_rows : bool
    Whether rows catch up with steps that they missed. Only possible on a single node.

Raises
------
ValueError
    If rows would catch up with steps on several nodes, or if the number does not fit into 32 bits.)";

constexpr char kCatchUp[] =
    R"(Let rows catch up with the steps that they missed, so that a pull returns their current values.

This has an effect only if steps are numbered and the rule changes rows without a gradient. Blocks until it is
done, without a message.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int, optional
    Keys of this table, not row ids. Duplicates have no effect. By default, all rows catch up.

Raises
------
IndexError
    If a key does not belong to the table. The error names the first one, and nothing is changed.)";

constexpr char kForgetMissed[] =
    R"(Mark all rows as up to date at the current step, as if they had missed no step.

This is for rows whose steps had other numbers or none. Blocks until it is done, without a message.)";

}  // namespace

void register_node_table(py::module_& module) {
  py::class_<NodeTable>(module, "NodeTable", kNodeTable)
      .def_property_readonly("name", &NodeTable::name, "str: The table's name.")
      .def_property_readonly("first_key", &NodeTable::first_key,
                             "int: The key of row 0. The keys of the other rows follow.")
      .def_property_readonly("rows", &NodeTable::rows, "int: Number of rows.")
      .def_property_readonly("length", &NodeTable::length, "int: Floats in a row.")
      .def_property_readonly("state_length", &NodeTable::state_length,
                             "int: Floats of optimizer state of a row; see `Worker.pull_state`.")
      .def_property_readonly(
          "retires_rows", [](const NodeTable& of) { return of.table().uses() != nullptr; },
          "bool: Whether the rows of a full table are given to other ids.")
      .def("keys", &keys, py::arg("ids"), kKeys)
      .def(
          "stats", [](const NodeTable& of) { return of.node().table_stats(of.index()); }, kStats)
      .def_property_readonly(
          "learning_rate", [](const NodeTable& of) { return of.table().hyperparameters().learning_rate; },
          "float: The learning rate on this node.")
      .def("set_learning_rate", &set_learning_rate, py::arg("lr"), kSetLearningRate)
      .def_property_readonly(
          "step", [](const NodeTable& of) { return of.table().step(); },
          "int: The number of the last `set_step`, initially 0.")
      .def("set_hyperparameters", &set_hyperparameters, py::arg("rule"), kSetHyperparameters)
      .def("set_step", &set_step, py::arg("number"), py::arg("idle_rows") = true, kSetStep)
      .def("catch_up", &catch_up, py::arg("keys") = py::none(), kCatchUp)
      .def("forget_used", &forget_used, kForgetUsed)
      .def(
          "forget_missed", [](const NodeTable& of) { for_all_rows(of, MissedSteps::kForget); },
          kForgetMissed);
}

}  // namespace adaps::bindings
