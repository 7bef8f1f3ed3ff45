// Names and numbers of everything that a node counts; see stats.h.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "node/node_state.h"

namespace adaps {

std::map<std::string, double> stats_of(const NodeState& state);
// Of one table: its keys by how they were served, and messages about them.
std::map<std::string, double> stats_of(const NodeState& state, std::size_t table);

}  // namespace adaps
