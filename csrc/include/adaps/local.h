// The local path: what a worker can do on its node without a message (docs/design/protocol.md, section 6).
#pragma once

#include <cstdint>
#include <span>

#include "adaps/dirty.h"
#include "adaps/operation.h"
#include "adaps/store.h"
#include "adaps/types.h"

namespace adaps {

struct NodeState;

// Starts a call: serves what is local at once and fills operation.units with the rest. Sets operation.left.
// The units still have to be submitted to their channels (submit_units); without any the operation is
// complete.
void start(NodeState& node, Operation& operation, std::span<const Key> keys);

// What becomes of the steps that rows have missed.
enum class Idle : std::uint8_t { kMadeUp, kForgotten };
// Applies what rows that are owned here have missed of their table's steps (UpdateRule), or has them begin
// anew with this one.
void catch_up(NodeState& node, const Table& table, std::span<const Key> keys, Idle idle = Idle::kMadeUp);

// Whether a call of the worker may be submitted, or has to wait until others are done.
bool has_room(const NodeState& node, int worker);

// Counts the writes among the units for wait_sync and hands all to their channels.
void submit_units(NodeState& node, Operation& operation);

// Serves a unit under the key's lock if the state allows it; the caller finishes the operation.
bool try_local(NodeState& node, LockedKey& key, const Unit& unit);

// Sum of a unit's occurrences (push); `scratch` is used when there are several.
std::span<const float> summed(const Unit& unit, std::size_t length, std::vector<float>& scratch);

}  // namespace adaps
