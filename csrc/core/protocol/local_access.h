// The local path: accesses that a worker makes on its node without a message (docs/concepts/protocol.md,
// section 6).
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

// Starts a call, and records that this node uses the rows. Serves local keys at once, and adds requests for
// the other keys to operation.requests. Sets operation.left. The caller must submit the requests to their
// channels (submit_requests). If there are no requests, the operation is complete.
void start(NodeContext& node, Operation& operation, std::span<const Key> keys);

// Treatment of optimizer steps that a row has missed because it had no gradient in them.
enum class MissedSteps : std::uint8_t { kApply, kForget };
// Applies the table's steps that owned rows have missed (see UpdateRule), or marks these rows as up to date
// without applying the steps. A row with an id that this node has never used has missed no step.
void catch_up(NodeContext& node, const Table& table, std::span<const Key> keys,
              MissedSteps missed = MissedSteps::kApply);

// For a node without other workers: sets the rows starting at `first` to `values`, applies gradients to them,
// and writes the results to `values`, in one pass. The last row may be incomplete. With `skips`, gradients
// that are not finite are skipped. Returns the number of skipped gradients.
std::size_t step_in_place(NodeContext& node, int worker, Key first, std::span<float> values,
                          const float* gradients, bool skips);

// Number of floats of a call's array that belong to one key.
inline std::size_t floats_per_key(OperationKind kind, const Table& table) {
  return is_about_state(kind) ? table.state_length() : table.length();
}

// The optimizer state of a row that this node owns, as it is stored.
std::span<const float> stored_state(const LockedKey& key);
// Overwrites this state. The row's value stays unchanged.
void write_state(LockedKey& key, const float* state);

// Whether a call of the worker may be submitted now. Otherwise it must wait until other calls are finished.
bool may_queue_more(const NodeContext& node, int worker);

// Reads a key for a worker if this is possible without a message. Returns whether it did. If `out` is null,
// it only checks.
bool pull_if_here(NodeContext& node, int worker, const Table& table, Key key, float* out);

// Whether a pull of these keys could return other values now than at the previous call of this function.
// `seen` has one number for each key, which the previous call wrote and which this call replaces. The number
// 0 means that the row was not readable without a message.
bool is_changed(const NodeContext& node, std::span<const Key> keys, std::span<std::int64_t> seen);

// Completes a wait_sync as soon as possible, because a worker waits for it now. Has no effect on other calls.
void hurry_sync(NodeContext& node, Operation& operation);

// Counts the requests that are writes, for wait_sync, and submits all requests to their channels.
void submit_requests(NodeContext& node, Operation& operation);

// Serves a request under the key's lock if the state allows it. The caller must finish the operation.
bool try_local(NodeContext& node, Partition& partition, LockedKey& key, const KeyRequest& request);

// Adds the changes that are stored separately from a packed copy to its unpacked value. Does nothing for
// other rows.
void apply_pending_changes(Partition& partition, LockedKey& key);

// Returns the floats of a push request. If the call contains the key several times, they are the sums of all
// occurrences, which are stored in `scratch`.
std::span<const float> summed(const KeyRequest& request, std::size_t length, std::vector<float>& scratch);

}  // namespace adaps
