// Access to a node's rows for adaps.checkpoint, which writes checkpoints and exports.
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "arrays.h"
#include "node/snapshot.h"
#include "node_handle.h"
#include "register.h"

namespace adaps::bindings {

namespace {

const Table& table_at(NodeHandle& node, std::size_t index) {
  const Tables& tables = node.node().tables();
  if (index >= tables.size()) throw py::index_error("table " + std::to_string(index) + " does not exist");
  return tables[index];
}

std::size_t state_length(const Table& table) { return table.width() - table.length(); }

void require_size(const Array& array, std::size_t floats, const char* name) {
  if (array.size() != floats) {
    throw py::value_error(std::string(name) + " holds " + std::to_string(array.size()) + " floats, not " +
                          std::to_string(floats));
  }
}

std::uint64_t count(NodeHandle& node, std::size_t index) {
  const NodeHandle::Call call(node);
  const Table& table = table_at(node, index);
  const NodeContext& context = node.node().context();
  const py::gil_scoped_release release;
  return count_owned(context, table);
}

std::pair<std::size_t, std::uint64_t> take(NodeHandle& node, std::size_t index, std::uint64_t first,
                                           const py::object& rows, const py::object& values,
                                           const py::object& states) {
  const Array to_rows = Array::of_int64(rows, "rows", Access::kWrite);
  const Array to_values = Array::of_float32(values, "values", Access::kWrite);
  const Array to_states = Array::of_float32(states, "states", Access::kWrite);
  const NodeHandle::Call call(node);
  const Table& table = table_at(node, index);
  require_size(to_values, to_rows.size() * table.length(), "values");
  require_size(to_states, to_rows.size() * state_length(table), "states");
  NodeContext& context = node.node().context();
  const py::gil_scoped_release release;
  const Taken taken =
      take_owned(context, table, first, to_rows.mutable_int64(), to_values.floats(), to_states.floats());
  return {taken.rows, taken.next};
}

// The changed rows of a table for an export, together with the node from which they are copied.
class ChangedRowsHandle {
 public:
  ChangedRowsHandle(std::shared_ptr<NodeHandle> node, std::size_t index)
      : node_(std::move(node)),
        length_(table_at(*node_, index).length()),
        changed_(node_->node().context(), table_at(*node_, index)) {}

  std::size_t take(bool all) {
    const NodeHandle::Call call(*node_);
    const py::gil_scoped_release release;
    return changed_.take(all);
  }

  // May be called after the node was closed.
  void read(std::size_t first, const py::object& rows, const py::object& values) const {
    const Array to_rows = Array::of_int64(rows, "rows", Access::kWrite);
    const Array to_values = Array::of_float32(values, "values", Access::kWrite);
    require_size(to_values, to_rows.size() * length_, "values");
    if (first > changed_.count() || to_rows.size() > changed_.count() - first) {
      throw py::index_error("there are " + std::to_string(changed_.count()) + " rows, and not " +
                            std::to_string(to_rows.size()) + " from number " + std::to_string(first) + " on");
    }
    const py::gil_scoped_release release;
    changed_.read(first, to_rows.mutable_int64(), to_values.floats());
  }

  // May be called after the node was closed.
  py::array_t<std::int64_t> deleted() const {
    const std::vector<std::int64_t>& ids = changed_.deleted();
    return py::array_t<std::int64_t>(static_cast<py::ssize_t>(ids.size()), ids.data());
  }

  void settle(bool told) {
    const py::gil_scoped_release release;
    changed_.settle(told);
  }

 private:
  const std::shared_ptr<NodeHandle> node_;
  const std::size_t length_;
  ChangedRows changed_;  // refers to the node, which exists during each call
};

// The restore of a table, with a reference to the handle of the table's node.
class RestoreHandle {
 public:
  RestoreHandle(std::shared_ptr<NodeHandle> node, std::size_t index)
      : node_(std::move(node)),
        table_(table_at(*node_, index)),
        length_(table_.length()),
        state_length_(adaps::bindings::state_length(table_)),
        restore_(node_->node().context(), table_) {}

  std::size_t put(const py::object& rows, const py::object& values, const py::object& states) {
    const Array from_rows = Array::of_int64(rows, "rows");
    const Array from_values = Array::of_float32(values, "values", Access::kRead);
    const Array from_states = Array::of_float32(states, "states", Access::kRead);
    require_size(from_values, from_rows.size() * length_, "values");
    require_size(from_states, from_rows.size() * state_length_, "states");
    const NodeHandle::Call call(*node_);
    const py::gil_scoped_release release;
    return restore_.put(from_rows.int64(), from_values.floats(), from_states.floats());
  }

  void finish() {
    const NodeHandle::Call call(*node_);
    const py::gil_scoped_release release;
    restore_.finish();
  }

 private:
  const std::shared_ptr<NodeHandle> node_;
  const Table& table_;  // exists during each call, like the objects to which restore_ refers
  const std::size_t length_, state_length_;
  TableRestore restore_;
};

}  // namespace

void register_snapshot(py::module_& module) {
  module.def(
      "freeze",
      [](NodeHandle& node) {
        const NodeHandle::Call call(node);
        freeze(node.node().context());
      },
      py::arg("node"), "Keeps keys on their nodes until thaw.");
  module.def(
      "thaw",
      [](NodeHandle& node) {
        const NodeHandle::Call call(node);
        thaw(node.node().context());
      },
      py::arg("node"), "Allows keys to move again.");
  module.def(
      "state_length", [](NodeHandle& node, std::size_t table) { return state_length(table_at(node, table)); },
      py::arg("node"), py::arg("table"), "Number of floats of a row's optimizer state.");
  module.def("count_owned", &count, py::arg("node"), py::arg("table"),
             "Number of rows of a table that the node owns.");
  module.def("take_owned", &take, py::arg("node"), py::arg("table"), py::arg("first"), py::arg("rows"),
             py::arg("values"), py::arg("states"),
             "Copies owned rows, starting at row `first`. Returns their number and the first row of the next "
             "call.");
  py::class_<ChangedRowsHandle>(module, "ChangedRows", "Copies of the rows that an export must contain.")
      .def(py::init<std::shared_ptr<NodeHandle>, std::size_t>(), py::arg("node"), py::arg("table"))
      .def("take", &ChangedRowsHandle::take, py::arg("all"),
           "Copies rows that the node owns: all, or the rows that changed since they were exported. Returns "
           "their number.")
      .def("read", &ChangedRowsHandle::read, py::arg("first"), py::arg("rows"), py::arg("values"),
           "Writes copied rows and their values to arrays, starting at the copied row with index `first`.")
      .def("deleted", &ChangedRowsHandle::deleted,
           "Returns the exported ids, int64, whose rows this node has retired since, if it assigned them.")
      .def("settle", &ChangedRowsHandle::settle, py::arg("told"),
           "Frees the copied rows. If they were exported (`told`), they are not exported again until they "
           "change.");
  py::class_<RestoreHandle>(module, "TableRestore", "Restores a table from a checkpoint.")
      .def(py::init<std::shared_ptr<NodeHandle>, std::size_t>(), py::arg("node"), py::arg("table"))
      .def("put", &RestoreHandle::put, py::arg("rows"), py::arg("values"), py::arg("states"),
           "Stores the rows that the node owns until finish, and returns their number.")
      .def("finish", &RestoreHandle::finish,
           "Writes the stored rows. All other owned rows get their initial value.");
}

}  // namespace adaps::bindings
