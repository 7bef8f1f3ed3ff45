// Replays the ids that a training requests from a table with fewer rows than ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "store/replacement.h"

namespace adaps {

struct RowReplaySettings {
  std::uint64_t rows = 0;
  Evict evict = Evict::kNone;
  Tick ttl = 0;        // for kTtl, in batches
  int admit_seen = 1;  // number of requests of an id until it gets a row
  // Number of ids of a batch, and number of batches after the present one whose ids are announced.
  std::size_t batch = 1;
  std::size_t lookahead = 0;
};

struct RowReplayResult {
  std::uint64_t hits = 0;          // requests of ids that had a row
  std::uint64_t created = 0;       // rows that were created
  std::uint64_t not_admitted = 0;  // requests of ids that were not seen often enough
  std::uint64_t full = 0;          // requests for which no row could be retired
};

// Requests the ids one by one. An id that has no row gets one, for which another row is retired if necessary.
RowReplayResult replay_rows(std::span<const std::int64_t> ids, const RowReplaySettings& settings);

}  // namespace adaps
