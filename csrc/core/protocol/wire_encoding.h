// Rows and changes as a lossy wire has them, and what of a change stays with its sender
// (docs/concepts/protocol.md, section 3).
//
// Of a row or a change, the value goes in the row's wire; what of the optimizer's state belongs to a float
// of the value goes as bfloat16, which keeps small numbers as well as large ones; all other numbers, that is
// step counters, accumulators of whole rows and a change's factors, go as they are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "protocol/dirty_list.h"
#include "protocol/epochs.h"
#include "store/table.h"

namespace adaps {

struct NodeContext;

// Words for so many first floats of a row or a change: its length, its width, or a change's length.
std::size_t encoded_floats(const Table& table, Wire wire, std::size_t floats);
// False if they have to go as they are (see codec.h).
bool encode(const Table& table, Wire wire, std::span<const float> floats, std::vector<float>& words);
void decode(const Table& table, Wire wire, std::span<const float> words, std::span<float> floats);

// What is in flight is encoded, and becomes what its receiver will decode; the rest, if there is any, is
// unsent again. False if it has to go as it is.
bool keep_rest(const Table& table, Wire wire, Unapplied& changes, std::vector<float>& words);

// Merges a rounding error into the next change that is sent. It counts as a write from now on.
inline void merge_rest(Epochs& epochs, Delta& delta) {
  if (!delta.is_rest()) return;
  delta.change = Change::kDelta;
  delta.epoch = epochs.add();
}

// Sends changes without rounding from now on, and the rounding errors of earlier changes, too.
void leave_no_rests(NodeContext& node);

}  // namespace adaps
