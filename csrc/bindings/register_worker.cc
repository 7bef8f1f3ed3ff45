#include <pybind11/stl.h>

#include "register.h"
#include "worker_handle.h"

namespace adaps::bindings {

void register_worker(py::module_& module) {
  py::class_<WorkerHandle, std::shared_ptr<WorkerHandle>>(
      module, "Worker", "The calls of one worker thread; not for use by several threads at once.")
      .def("pull", &WorkerHandle::pull, py::arg("keys"), py::arg("out"), py::arg("asynchronous") = false,
           "Writes the values of the keys to `out`, one after the other.")
      .def("push", &WorkerHandle::push, py::arg("keys"), py::arg("deltas"), py::arg("asynchronous") = false,
           "Adds a delta to the value of each key.")
      .def("push_gradients", &WorkerHandle::push_gradients, py::arg("keys"), py::arg("gradients"),
           py::arg("asynchronous") = false, "Updates the value of each key by its table's optimizer.")
      .def("set", &WorkerHandle::set, py::arg("keys"), py::arg("values"), py::arg("asynchronous") = false,
           "Overwrites the value of each key; the optimizer's state stays.")
      .def(
          "intent", &WorkerHandle::intent, py::arg("keys"), py::arg("start"), py::arg("end") = py::none(),
          "Announces access to the keys in this worker's clocks [start, end); end is start + 1 if not given.")
      .def("wait_intent", &WorkerHandle::wait_intent, py::arg("keys"),
           "Blocks until keys that were signalled for the current clock can be read without a message.")
      .def("advance_clock", &WorkerHandle::advance_clock, "Adds one to the worker's clock.")
      .def_property_readonly("current_clock", &WorkerHandle::current_clock,
                             "The worker's clock; it starts at 0.")
      .def("is_done", &WorkerHandle::is_done, py::arg("ticket"), "Whether an asynchronous call is complete.")
      .def("wait", &WorkerHandle::wait, py::arg("ticket"), "Blocks until an asynchronous call is complete.")
      .def("waitall", &WorkerHandle::waitall,
           "Blocks until all asynchronous calls of this worker are complete.")
      .def("wait_sync", &WorkerHandle::wait_sync, py::arg("asynchronous") = false,
           "Blocks until everything this node wrote before the call is applied, and everything that was "
           "applied anywhere before it is visible here; or gives a ticket that is complete then.")
      .def("barrier", &WorkerHandle::barrier, "Collective: blocks until every worker of every node is here.")
      .def("agree", &WorkerHandle::agree, py::arg("well"),
           "Collective: a barrier that gives the rank of a node where a worker was not well, or None.")
      .def("skip_to_clock", &WorkerHandle::skip_to_clock, py::arg("clock"),
           "Goes on from a later clock, as after a restore; an earlier one changes nothing.")
      .def("begin_setup", &WorkerHandle::begin_setup, "Collective: before the first values are set.")
      .def("end_setup", &WorkerHandle::end_setup,
           "Collective: afterwards every worker sees what any worker wrote before it.")
      .def("finalize", &WorkerHandle::finalize,
           "Ends this worker's part in collective calls; closing the node does it too.");
}

}  // namespace adaps::bindings
