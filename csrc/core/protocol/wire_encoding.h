// Rows and changes in the format of a lossy wire, and the rests of changes, which their sender keeps
// (docs/concepts/protocol.md, section 3).
//
// In an encoded row or change, the value is encoded in the row's wire. Optimizer state with one number per
// float of the value is encoded as bfloat16, which preserves small and large numbers equally well. All other
// numbers are not encoded: step counters, accumulators of whole rows, and the factors of a change.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "protocol/dirty_list.h"
#include "protocol/epochs.h"
#include "store/table.h"

namespace adaps {

struct NodeContext;

// Number of words that the first `floats` floats of a row or a change take. `floats` is the row's length or
// width, or the length of a change.
std::size_t encoded_floats(const Table& table, Wire wire, std::size_t floats);
// Returns false if the floats must be sent without encoding (see codec.h).
bool encode(const Table& table, Wire wire, std::span<const float> floats, std::vector<float>& words);
void decode(const Table& table, Wire wire, std::span<const float> words, std::span<float> floats);

// Encodes the change in flight and replaces it by the value that its receiver will decode. If this differs
// from the original change, the difference, called the rest, becomes unsent again. Returns false if the
// change must be sent without encoding.
bool keep_rest(const Table& table, Wire wire, Unapplied& changes, std::vector<float>& words);

// Turns a rest into a change that is sent. From now on, it counts as a write.
inline void merge_rest(Epochs& epochs, Delta& delta) {
  if (!delta.is_rest()) return;
  delta.change = Change::kDelta;
  delta.epoch = epochs.add();
}

// From now on, sends changes without rounding, including the rounding errors of earlier changes.
void leave_no_rests(NodeContext& node);

}  // namespace adaps
