// The replay of the ids that a training requests from one table. adaps.replay_rows checks its inputs.
#include <pybind11/pybind11.h>

#include <string>

#include "arrays.h"
#include "keywords.h"
#include "register.h"
#include "replay/row_replay.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

Evict order_named(const std::string& name) {
  if (name == "none") return Evict::kNone;
  if (name == "intent") return Evict::kIntent;
  if (name == "lru") return Evict::kLru;
  if (name == "lfu") return Evict::kLfu;
  if (name == "ttl") return Evict::kTtl;
  throw py::value_error("no order is called '" + name + "'; there are none, intent, lru, lfu and ttl");
}

RowReplayResult replay(const py::object& ids, const py::kwargs& given) {
  const Array requests = Array::of_int64(ids, "ids");
  Keywords keywords(given);
  const RowReplaySettings settings{.rows = keywords.take<std::uint64_t>("rows"),
                                   .evict = order_named(keywords.take<std::string>("evict")),
                                   .ttl = keywords.take<Tick>("ttl"),
                                   .admit_seen = keywords.take<int>("admit_seen"),
                                   .batch = keywords.take<std::size_t>("batch"),
                                   .lookahead = keywords.take<std::size_t>("lookahead")};
  keywords.require_none_left();
  const py::gil_scoped_release release;
  return replay_rows(requests.int64(), settings);
}

}  // namespace

void register_row_replay(py::module_& module) {
  py::class_<RowReplayResult>(module, "RowReplayResult", "Numbers of requests of a replay of ids.")
      .def_readonly("hits", &RowReplayResult::hits, "Requests of ids that had a row.")
      .def_readonly("created", &RowReplayResult::created, "Rows that were created.")
      .def_readonly("not_admitted", &RowReplayResult::not_admitted,
                    "Requests of ids that were not seen often enough to get a row.")
      .def_readonly("full", &RowReplayResult::full, "Requests for which no row could be retired.");

  module.def("replay_rows", &replay, py::arg("ids"), "Replays the requests of ids to one table.");
}

}  // namespace adaps::bindings
