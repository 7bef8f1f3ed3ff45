// The local path: what a worker can do on its node without a message (docs/concepts/protocol.md, section 6).
#pragma once

#include <cstdint>
#include <span>

#include "common/types.h"
#include "protocol/dirty_list.h"
#include "protocol/operation.h"
#include "store/store.h"

namespace adaps {

struct NodeContext;
class Partition;

// Starts a call: serves what is local at once and fills operation.requests with the rest. Sets
// operation.left. The requests still have to be submitted to their channels (submit_requests); without any
// the operation is complete.
void start(NodeContext& node, Operation& operation, std::span<const Key> keys);

// What to do with the steps of an optimizer that rows without gradients have missed.
enum class MissedSteps : std::uint8_t { kApply, kForget };
// Applies the steps of their table that rows owned here have missed (see UpdateRule), or forgets them: the
// rows count as up to date then.
void catch_up(NodeContext& node, const Table& table, std::span<const Key> keys,
              MissedSteps missed = MissedSteps::kApply);

// Where no other worker is: the rows from `first` on become `values`, gradients are applied to them, and
// `values` become what they are then, in one pass. The last row may be given in part. With `skips`, rows stay
// without their gradient if it is not finite; gives how many these are.
std::size_t step_in_place(NodeContext& node, int worker, Key first, std::span<float> values,
                          const float* gradients, bool skips);

// How many floats of a call's array belong to a key.
inline std::size_t floats_per_key(OperationKind kind, const Table& table) {
  return is_about_state(kind) ? table.state_length() : table.length();
}

// The optimizer state of a row that this node owns, as it is stored.
std::span<const float> stored_state(const LockedKey& key);
// Overwrites it; the row's value stays.
void write_state(LockedKey& key, const float* state);

// Whether a call of the worker may be submitted, or has to wait until others are done.
bool may_queue_more(const NodeContext& node, int worker);

// Reads a key for a worker if that takes no message; says whether it did. Without `out` it only looks.
bool pull_if_here(NodeContext& node, int worker, const Table& table, Key key, float* out);

// Whether a pull may give other values than one did after the last look at these keys. `seen` is what that
// look wrote, one number for each, and gets what this one sees; 0 stands for a row that is not known.
bool is_changed(const NodeContext& node, std::span<const Key> keys, std::span<std::int64_t> seen);

// Counts the writes among the requests for wait_sync and hands all to their channels.
void submit_requests(NodeContext& node, Operation& operation);

// Serves a request under the key's lock if the state allows it; the caller finishes the operation.
bool try_local(NodeContext& node, Partition& partition, LockedKey& key, const KeyRequest& request);

// Adds the changes that are kept apart from a packed copy to its unpacked value. Does nothing for other rows.
void apply_pending_changes(Partition& partition, LockedKey& key);

// Sum of a request's occurrences (push); `scratch` is used when there are several.
std::span<const float> summed(const KeyRequest& request, std::size_t length, std::vector<float>& scratch);

}  // namespace adaps
