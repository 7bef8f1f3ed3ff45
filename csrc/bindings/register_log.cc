// Forwards the node's messages to the logger "adaps" of Python's `logging`.
#include <pybind11/pybind11.h>

#include "common/log.h"
#include "register.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

// Threads of the node also call this. They never hold the GIL when they log.
void write_to_logger(LogLevel level, const std::string& message) {
  const py::gil_scoped_acquire acquire;
  try {
    const auto logger = py::module_::import("logging").attr("getLogger")("adaps");
    logger.attr(level == LogLevel::kWarning ? "warning" : "debug")("%s", message);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("a message of adaps");
  }
}

}  // namespace

void register_log(py::module_& module) {
  module.def(
      "use_logging",
      [](bool use) {
        const py::gil_scoped_release release;
        set_log_sink(use ? LogSink(write_to_logger) : LogSink());
      },
      py::arg("use"), "Sends log messages to the logger 'adaps' if `use` is true, else to standard error.");
}

}  // namespace adaps::bindings
