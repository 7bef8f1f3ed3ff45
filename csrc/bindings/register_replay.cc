// The replay of a training's accesses: adaps.simulate checks and names what goes in and comes out.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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
                    Technique technique, bool timing, double max_rounds_per_second, int workers, int channels,
                    std::vector<std::size_t> lookahead, std::optional<std::size_t> warm_up, std::size_t epoch,
                    double compute, const std::array<double, 12>& costs, const Machines& machines,
                    const Links& links, std::uint64_t seed, std::size_t traced_steps,
                    const Incidents& incidents, Micros peer_timeout) {
  Accesses accesses{std::move(tables), std::move(dense), {}};
  for (const auto& [placed, keys, ends] : streams)
    accesses.workers.push_back({copied<Key>(placed), copied<Key>(keys), copied<std::size_t>(ends)});
  ReplaySettings settings;
  settings.technique = technique;
  settings.timing = timing;
  settings.max_rounds_per_second = max_rounds_per_second;
  settings.workers = workers;
  settings.channels = channels;
  settings.lookahead = std::move(lookahead);
  settings.warm_up = warm_up;
  settings.epoch = epoch;
  settings.compute = compute;
  const auto& [call, wake, resume, key, value, copy, elsewhere, intent, message, upkeep, frame, byte] = costs;
  settings.costs = {call, wake, resume, key, value, copy, elsewhere, intent, message, upkeep, frame, byte};
  for (const auto& [host, cores, speed, card] : machines)
    settings.machines.push_back({host, cores, speed, card});
  for (const auto& [latency, bytes_per_micro] : links)
    settings.links.push_back({.latency = latency, .jitter = 0.0, .bytes_per_micro = bytes_per_micro});
  settings.seed = seed;
  settings.traced_steps = traced_steps;
  for (const auto& [kind, node, step, amount] : incidents)
    settings.incidents.push_back({incident_named(kind), node, step, amount});
  settings.peer_timeout = peer_timeout;
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
  py::class_<NodeReplay>(module, "NodeReplay", "What a simulated node did, in microseconds and by counters.")
      .def_readonly("steps", &NodeReplay::steps, "Of all its workers.")
      .def_readonly("computing", &NodeReplay::computing, "Of its workers' time, what steps compute.")
      .def_readonly("visiting", &NodeReplay::visiting, "Of it, calls that the node's own rows serve.")
      .def_readonly("waiting", &NodeReplay::waiting, "Of it, waiting for other nodes.")
      .def_readonly("on_network", &NodeReplay::on_network,
                    "Of waiting, while a frame to or from the node was under way.")
      .def_readonly("working", &NodeReplay::working, "What its workers' threads worked.")
      .def_readonly("channels", &NodeReplay::channels, "What its channels' threads worked.")
      .def_readonly("last_step", &NodeReplay::last_step, "When a worker had done its last step.")
      .def_readonly("lost", &NodeReplay::lost, "When the node was lost; None if it was not.")
      .def_readonly("peer_lost", &NodeReplay::peer_lost,
                    "The rank that PeerLost named in its calls, or None.")
      .def_readonly("peer_lost_at", &NodeReplay::peer_lost_at, "When its calls began to raise it, or None.")
      .def_readonly("counters", &NodeReplay::counters, "As of Node.stats.")
      .def_readonly("tables", &NodeReplay::tables, "As of NodeTable.stats, in the tables' order.");

  py::class_<ReplayResult>(module, "ReplayResult", "What a replay counted.")
      .def_readonly("elapsed", &ReplayResult::elapsed, "Microseconds of the simulated clock.")
      .def_readonly("nodes", &ReplayResult::nodes, "What each node did.")
      .def_property_readonly("spans", &spans_of,
                             "What was traced: kind, node, thread or receiver, amount, begin, end.");

  module.def("replay", &replay, py::arg("tables"), py::arg("dense"), py::arg("streams"), py::kw_only(),
             py::arg("technique"), py::arg("timing"), py::arg("max_rounds_per_second"), py::arg("workers"),
             py::arg("channels"), py::arg("lookahead"), py::arg("warm_up"), py::arg("epoch"),
             py::arg("compute"), py::arg("costs"), py::arg("machines"), py::arg("links"), py::arg("seed"),
             py::arg("traced_steps"), py::arg("incidents"), py::arg("peer_timeout"),
             "Replays what workers access on simulated machines and links.");
}

}  // namespace adaps::bindings
