// Functions that module.cc calls, one for each part of the module.
#pragma once

#include <pybind11/pybind11.h>

namespace adaps::bindings {

void register_errors(pybind11::module_& module);
void register_table_spec(pybind11::module_& module);
void register_node_table(pybind11::module_& module);
void register_worker(pybind11::module_& module);
void register_trace_event(pybind11::module_& module);
void register_node(pybind11::module_& module);
void register_log(pybind11::module_& module);
void register_snapshot(pybind11::module_& module);
void register_deduplicate(pybind11::module_& module);
void register_layout(pybind11::module_& module);
void register_replay(pybind11::module_& module);
void register_row_replay(pybind11::module_& module);

}  // namespace adaps::bindings
