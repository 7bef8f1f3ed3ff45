// Names and values of all counters of a node; see stats.h.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "node/node_state.h"

namespace adaps {

std::map<std::string, double> stats_of(const NodeState& state);
// Names and values of one table's counters: accesses by the place that served them, and messages about keys
// of the table.
std::map<std::string, double> stats_of(const NodeState& state, std::size_t table);

}  // namespace adaps
