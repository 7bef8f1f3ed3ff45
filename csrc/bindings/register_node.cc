#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "arrays.h"
#include "at_exit.h"
#include "keywords.h"
#include "node_handle.h"
#include "node_table.h"
#include "register.h"
#include "transport/socket_transport.h"
#include "worker_handle.h"

namespace adaps::bindings {

namespace {

constexpr double kLongestStall = 1e9;  // in seconds; longer than any useful timeout

std::shared_ptr<NodeHandle> make_node(std::vector<TableSpec> tables, const py::kwargs& given) {
  Keywords keywords(given);
  const int rank = keywords.take<int>("rank"), world_size = keywords.take<int>("world_size");
  if (rank < 0 || world_size < 1 || world_size > static_cast<int>(kMaxNodes) || rank >= world_size) {
    throw py::value_error("rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
                          " nodes: a cluster has 1 to " + std::to_string(kMaxNodes) +
                          " nodes, with ranks from 0 on");
  }
  Settings settings{.rank = static_cast<NodeId>(rank),
                    .nodes = static_cast<NodeId>(world_size),
                    .workers = keywords.take<int>("workers"),
                    .channels = keywords.take<int>("channels"),
                    .technique = keywords.take<Technique>("technique"),
                    .timing = keywords.take<bool>("timing"),
                    .max_rounds_per_second = keywords.take<double>("max_rounds_per_second")};
  double stall_timeout = kLongestStall;
  keywords.take_if_given("nonfinite", settings.nonfinite);
  keywords.take_if_given("stall_timeout", stall_timeout);
  keywords.take_if_given("max_queued_bytes", settings.max_queued_bytes);
  keywords.take_if_given("max_unsent_bytes", settings.max_unsent_bytes);
  keywords.require_none_left();
  settings.stall_timeout = static_cast<Micros>(std::min(stall_timeout, kLongestStall) * 1e6);
  return std::make_shared<NodeHandle>(std::move(tables), settings);
}

void connect(NodeHandle& node, const std::vector<std::string>& addresses, const std::string& secret,
             const std::string& network, double connect_timeout, double peer_timeout, bool frame_mac) {
  node.connect(addresses, {.secret = secret,
                           .frame_mac = frame_mac,
                           .shape = parse_link_shape(network),
                           .connect_timeout_seconds = connect_timeout,
                           .peer_timeout_seconds = peer_timeout});
}

py::tuple tables_of(const std::shared_ptr<NodeHandle>& node) {
  const std::size_t count = node->node().tables().size();
  py::tuple tables(count);
  for (std::size_t i = 0; i < count; ++i) tables[i] = NodeTable(node, i);
  return tables;
}

void trace(NodeHandle& node, const py::object& keys) {
  const Array array = Array::of_int64(keys, "keys");
  const NodeHandle::Call call(node);
  for (const std::int64_t key : array.int64()) {
    if (static_cast<Key>(key) >= node.num_keys()) {
      throw py::index_error("key " + std::to_string(key) + " is not in [0, " +
                            std::to_string(node.num_keys()) + ")");
    }
  }
  node.node().trace(array.keys());
}

}  // namespace

void register_node(py::module_& module) {
  py::native_enum<Technique>(module, "Technique", "enum.Enum", "Technique that manages keys.")
      .value("ADAPTIVE", Technique::kAdaptive)
      .value("REPLICATION", Technique::kReplication)
      .value("RELOCATION", Technique::kRelocation)
      .value("STATIC", Technique::kStatic)
      .value("FULL_REPLICATION", Technique::kFullReplication)
      .finalize();

  py::native_enum<NonFinite>(module, "NonFinite", "enum.Enum", "Treatment of gradients that are not finite.")
      .value("RAISE", NonFinite::kRaise)
      .value("SKIP", NonFinite::kSkip)
      .value("PASS", NonFinite::kPass)
      .finalize();

  py::class_<NodeHandle, std::shared_ptr<NodeHandle>>(module, "Node",
                                                      "One process's part of the parameter server.")
      .def(py::init(&make_node), py::arg("tables"))
      .def("listen", &NodeHandle::listen, py::arg("host"), py::arg("port"),
           "Starts to listen for other nodes, and returns the address for them.")
      .def("connect", &connect, py::arg("addresses"), py::kw_only(), py::arg("secret"), py::arg("network"),
           py::arg("connect_timeout"), py::arg("peer_timeout"), py::arg("frame_mac") = false,
           "Connects to all other nodes. Collective.")
      .def("worker", &NodeHandle::worker, py::arg("index"), "Returns the handle of a worker thread.")
      .def("tables", &tables_of, "Returns the tables in the order of their keys.")
      .def_property_readonly("num_keys", &NodeHandle::num_keys, "Number of keys of all tables.")
      .def_property_readonly("closed", &NodeHandle::closed, "Whether the node is gone.")
      .def(
          "check", [](NodeHandle& node) { node.node().check(); }, "Raises PeerLost if a peer was lost.")
      .def("stats", &NodeHandle::stats, "Returns the names and values of all counters.")
      .def("trace", &trace, py::arg("keys"), "Records all later events of these keys on this node.")
      .def("trace_events", &NodeHandle::trace_events, "Returns the recorded events, oldest first.")
      .def("close", &NodeHandle::close, "Ends the node. Collective.")
      .def("abandon", &NodeHandle::abandon,
           "Ends the node at once. The other nodes detect the loss of a peer.")
      .def("leave_unclosed", &NodeHandle::leave_unclosed,
           "Ends a single node now, and a node of a cluster at the end of the process.");

  module.def("end_served_nodes", &end_served_nodes, py::arg("well"), py::call_guard<py::gil_scoped_release>(),
             "Ends the nodes that were not closed. If `well`, waits for all other nodes to end.");

  module.def(
      "check_network", [](const std::string& network) { static_cast<void>(parse_link_shape(network)); },
      py::arg("network"), "Raises ValueError if the text does not describe a network.");
}

}  // namespace adaps::bindings
