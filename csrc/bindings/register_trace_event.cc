#include <pybind11/pybind11.h>

#include "adaps/stats.h"
#include "register.h"

namespace adaps::bindings {

namespace py = pybind11;

void register_trace_event(py::module_& module) {
  py::class_<TraceEvent>(module, "TraceEvent", "What happened to a traced key on this node.")
      .def_readonly("time", &TraceEvent::time, "Microseconds of the machine's monotonic clock.")
      .def_readonly("key", &TraceEvent::key, "The key.")
      .def_property_readonly(
          "kind", [](const TraceEvent& event) { return name_of(event.kind); }, "What happened, in one word.")
      .def("__repr__", [](const TraceEvent& event) {
        return "TraceEvent(time=" + std::to_string(event.time) + ", key=" + std::to_string(event.key) +
               ", kind='" + name_of(event.kind) + "')";
      });
}

}  // namespace adaps::bindings
