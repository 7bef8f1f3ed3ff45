#include <pybind11/pybind11.h>

#include "common/stats.h"
#include "register.h"

namespace adaps::bindings {

namespace py = pybind11;

void register_trace_event(py::module_& module) {
  py::class_<TraceEvent>(module, "TraceEvent",
                         "An event of a traced key on one node; see `adaps.Node.trace`.")
      .def_readonly("time", &TraceEvent::time, "int: Microseconds of the machine's monotonic clock.")
      .def_readonly("key", &TraceEvent::key, "int: The key.")
      .def_property_readonly(
          "kind", [](const TraceEvent& event) { return name_of(event.kind); },
          "str: ``alloc`` (this node is the key's first owner), ``intent_start`` and ``intent_stop`` (of any "
          "worker of this node), ``replica_set_up``, ``replica_dropped``, "
          "``relocated_here``, ``relocated_away`` or ``retired`` (the row was given to another id).")
      .def("__repr__", [](const TraceEvent& event) {
        return "TraceEvent(time=" + std::to_string(event.time) + ", key=" + std::to_string(event.key) +
               ", kind='" + name_of(event.kind) + "')";
      });
}

}  // namespace adaps::bindings
