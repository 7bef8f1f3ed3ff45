// The replay of a training's accesses. adaps.simulate checks its inputs and names its outputs.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "keywords.h"
#include "register.h"
#include "replay/replay.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

using Numbers = py::array_t<std::int64_t, py::array::c_style>;
using Streams = std::vector<std::tuple<Numbers, Numbers, Numbers>>;
using Machines = std::vector<std::tuple<std::optional<NodeId>, int, double, double>>;
using Links = std::vector<std::pair<double, double>>;
using Incidents = std::vector<std::tuple<std::string, NodeId, std::size_t, double>>;
using Span = std::tuple<std::string, int, std::uint32_t, std::uint64_t, Micros, Micros>;

template <typename Number>
std::vector<Number> copied(const Numbers& numbers) {
  return {numbers.data(), numbers.data() + numbers.size()};
}

Incident::Kind incident_named(const std::string& name) {
  if (name == "speed") return Incident::Kind::kSpeed;
  if (name == "stall") return Incident::Kind::kStall;
  if (name == "loss") return Incident::Kind::kLoss;
  throw py::value_error("no incident is called '" + name + "'; there are speed, stall and loss");
}

void let_signals_in() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

ReplayResult replay(std::vector<TableSpec> tables, std::vector<bool> dense, const Streams& streams,
                    const py::kwargs& given) {
  Accesses accesses{std::move(tables), std::move(dense), {}};
  for (const auto& [placed, keys, ends] : streams)
    accesses.workers.push_back({copied<Key>(placed), copied<Key>(keys), copied<std::size_t>(ends)});
  Keywords keywords(given);
  ReplaySettings settings{.technique = keywords.take<Technique>("technique"),
                          .timing = keywords.take<bool>("timing"),
                          .max_rounds_per_second = keywords.take<double>("max_rounds_per_second"),
                          .workers = keywords.take<int>("workers"),
                          .channels = keywords.take<int>("channels"),
                          .lookahead = keywords.take<std::vector<std::size_t>>("lookahead"),
                          .warm_up = keywords.take<std::optional<std::size_t>>("warm_up"),
                          .epoch = keywords.take<std::size_t>("epoch"),
                          .requests = keywords.take<std::vector<std::size_t>>("requests"),
                          .compute = keywords.take<double>("compute"),
                          .seed = keywords.take<std::uint64_t>("seed"),
                          .traced_steps = keywords.take<std::size_t>("traced_steps"),
                          .peer_timeout = keywords.take<Micros>("peer_timeout")};
  const auto costs = keywords.take<std::array<double, 12>>("costs");
  const auto& [call, wake, resume, key, value, copy, elsewhere, intent, message, upkeep, frame, byte] = costs;
  settings.costs = {call, wake, resume, key, value, copy, elsewhere, intent, message, upkeep, frame, byte};
  for (const auto& [host, cores, speed, card] : keywords.take<Machines>("machines"))
    settings.machines.push_back({host, cores, speed, card});
  for (const auto& [latency, bytes_per_micro] : keywords.take<Links>("links"))
    settings.links.push_back({.latency = latency, .jitter = 0.0, .bytes_per_micro = bytes_per_micro});
  for (const auto& [kind, node, step, amount] : keywords.take<Incidents>("incidents"))
    settings.incidents.push_back({incident_named(kind), node, step, amount});
  keywords.require_none_left();
  const py::gil_scoped_release release;
  return Replay(accesses, settings).run(let_signals_in);
}

std::vector<Span> spans_of(const ReplayResult& result) {
  std::vector<Span> spans;
  for (const ReplaySpan& span : result.spans)
    spans.emplace_back(name_of(span.kind), span.node, span.thread, span.amount, span.begin, span.end);
  return spans;
}

}  // namespace

void register_replay(py::module_& module) {
  py::class_<NodeReplay>(module, "NodeReplay",
                         "Times of a simulated node's activities, in microseconds, and its counters.")
      .def_readonly("steps", &NodeReplay::steps, "Number of steps of all its workers.")
      .def_readonly("computing", &NodeReplay::computing, "Workers' time in the computation of steps.")
      .def_readonly("visiting", &NodeReplay::visiting, "Workers' time in calls that run on this node.")
      .def_readonly("waiting", &NodeReplay::waiting, "Workers' time in calls that wait for other nodes.")
      .def_readonly("on_network", &NodeReplay::on_network,
                    "Part of `waiting` with a frame to or from the node on the network.")
      .def_readonly("working", &NodeReplay::working, "Processor time of its workers' threads.")
      .def_readonly("last_step", &NodeReplay::last_step, "Time when a worker completed its last step.")
      .def_readonly("lost", &NodeReplay::lost, "Time when the node was lost; None if it was not.")
      .def_readonly("peer_lost", &NodeReplay::peer_lost,
                    "Rank in the PeerLost that its calls raised, or None.")
      .def_readonly("peer_lost_at", &NodeReplay::peer_lost_at,
                    "Time when its calls began to raise PeerLost, or None.")
      .def_readonly("counters", &NodeReplay::counters, "Counters as in Node.stats.")
      .def_readonly("tables", &NodeReplay::tables, "Counters of each table as in NodeTable.stats.");

  py::class_<ReplayResult>(module, "ReplayResult", "Results of a replay.")
      .def_readonly("elapsed", &ReplayResult::elapsed, "Simulated time in microseconds.")
      .def_readonly("nodes", &ReplayResult::nodes, "Results of each node.")
      .def_property_readonly("spans", &spans_of,
                             "Traced activities: kind, node, thread or receiver, amount, begin, end.");

  module.def("replay", &replay, py::arg("tables"), py::arg("dense"), py::arg("streams"),
             "Replays the accesses of workers on simulated machines and links.");
}

}  // namespace adaps::bindings
