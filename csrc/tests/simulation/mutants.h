// Deliberate bugs of the protocol. Each bug replaces one of the protocol's Decisions. They prove that the
// simulator's checker detects violations.
#pragma once

#include <cstdint>

#include "common/types.h"
#include "protocol/context.h"

namespace adaps {

enum class Mutant : std::uint8_t {
  none,
#define MUTANT(name, ...) name,
#include "simulation/mutants.def"
#undef MUTANT
};

// Selects the mutant that is active from now on, or none.
void select_mutant(Mutant mutant);

// Registers nodes for mutants that need more information than the arguments of a decision.
void know_node(NodeContext& node);
void forget_node(NodeContext& node);
// Completes the transfers that the mutant torn_transfer has delayed until the channel's next turn.
void finish_torn_transfers(NodeContext& node, int channel);

}  // namespace adaps
