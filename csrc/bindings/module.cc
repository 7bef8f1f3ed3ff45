// The extension module adaps._core.
#include "register.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The adaptive parameter server's C++ core.";
  adaps::bindings::register_errors(module);
  adaps::bindings::register_table_spec(module);
  adaps::bindings::register_node_table(module);
  adaps::bindings::register_worker(module);
  adaps::bindings::register_trace_event(module);
  adaps::bindings::register_node(module);
  adaps::bindings::register_log(module);
  adaps::bindings::register_snapshot(module);
  adaps::bindings::register_deduplicate(module);
  adaps::bindings::register_layout(module);
  adaps::bindings::register_replay(module);
  adaps::bindings::register_row_replay(module);
}
