// Rows and changes in the format of a lossy wire, and the rests of changes that their sender keeps
// (docs/concepts/protocol.md, section 3).
//
// In a row or a change, the value is encoded in the row's wire. State with one float per float of the value
// is encoded as bfloat16, which preserves small and large numbers equally well. All other numbers are not
// encoded: step counters, accumulators of whole rows, and the factors of a change.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "protocol/dirty_list.h"
#include "protocol/epochs.h"
#include "store/table.h"

namespace adaps {

struct NodeContext;

// Number of words for the first `floats` floats of a row or a change: its length, its width, or a change's
// length.
std::size_t encoded_floats(const Table& table, Wire wire, std::size_t floats);
// Returns false if the floats must be sent without encoding (see codec.h).
bool encode(const Table& table, Wire wire, std::span<const float> floats, std::vector<float>& words);
void decode(const Table& table, Wire wire, std::span<const float> words, std::span<float> floats);

// Encodes the change in flight and replaces it by the value that its receiver will decode. The rest, if there
// is one, becomes unsent again. Returns false if the change must be sent without encoding.
bool keep_rest(const Table& table, Wire wire, Unapplied& changes, std::vector<float>& words);

// Merges a rounding error into the next change that is sent. It counts as a write from now on.
inline void merge_rest(Epochs& epochs, Delta& delta) {
  if (!delta.is_rest()) return;
  delta.change = Change::kDelta;
  delta.epoch = epochs.add();
}

// From now on, sends changes without rounding, including the rounding errors of earlier changes.
void leave_no_rests(NodeContext& node);

}  // namespace adaps
