// Ids of the rows of a table whose keys are any 64-bit ids (docs/concepts/protocol.md, section 20).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/types.h"
#include "store/replacement.h"
#include "store/reserved.h"
#include "store/used_rows.h"

namespace adaps {

// Maximum number of rows of a table with ids, because the map stores row numbers of 32 bits.
inline constexpr std::uint64_t kMaxRowsWithIds = 0xffffffff;

// Rows from `first` up to `end`, exclusive.
struct RowRange {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - first; }
  bool contains(std::uint64_t row) const { return row >= first && row < end; }
};
// The rows that a node assigns to ids, which are the rows with this home node. The shares of two nodes differ
// by at most one row.
inline RowRange share_of(std::uint64_t rows, NodeId nodes, NodeId node) {
  return {rows * node / nodes, rows * (node + std::uint64_t{1}) / nodes};
}

// The ids of a table's rows, as far as this node knows them, and a map from ids to rows.
//
// Any number of threads may read while one thread adds and removes ids. Entries never move, so a reader finds
// every id that stays. A reader may miss an id that is being added; it then looks again with the lock. In a
// table whose rows are retired, a reader may also find a row whose id is being removed. It then records its
// use of the row and asks has() before it uses the row.
//
// The map is a hash table of buckets. A bucket is one cache line with twelve rows and a tag of eight bits of
// the hash for each. The ids themselves are only stored by row, so a lookup reads a bucket and, on average,
// little more than one id. An id that does not fit into its bucket is in one of the next buckets. Each bucket
// counts the ids that passed it, so a removed id leaves nothing behind. The map has space for all rows from
// the start, at 80 % of its entries, so that it never grows while calls wait.
class RowIds {
 public:
  static constexpr std::int64_t kUnknown = -1;

  explicit RowIds(std::uint64_t rows);

  // Returns the row of an id, or kUnknown.
  std::int64_t find(std::int64_t id) const;
  // Writes the row of each id, or kUnknown. Returns how many are unknown.
  std::size_t find(std::span<const std::int64_t> ids, std::int64_t* rows) const;

  // Whether this node knows the id of a row.
  bool knows(std::uint64_t row) const {
    return (is_known_[row / 64].load(std::memory_order_relaxed) >> (row % 64) & 1) != 0;
  }
  // Whether a row still has an id.
  bool has(std::uint64_t row, std::int64_t id) const {
    return (is_known_[row / 64].load(std::memory_order_acquire) >> (row % 64) & 1) != 0 &&
           this->id(row) == id;
  }
  // The id of a row that this node knows.
  std::int64_t id(std::uint64_t row) const { return ids_[row].load(std::memory_order_relaxed); }

  // The rows that this node has used. It knows their ids.
  UsedRows& used() { return used_; }
  const UsedRows& used() const { return used_; }

  // Number of ids with a row that this node assigned.
  std::uint64_t assigned() const { return assigned_.load(std::memory_order_relaxed); }
  // Number of rows that this node has retired.
  std::uint64_t retired() const { return retired_.load(std::memory_order_relaxed); }
  // Number of times that this node could not retire a row, because a node used it.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Bytes of memory of the map, and of the ids that were added.
  std::uint64_t resident_bytes() const;

  // Number of requests of ids that got no row, because they were not requested often enough.
  std::uint64_t not_admitted() const { return not_admitted_.load(std::memory_order_relaxed); }
  // Sets in which of its requests an id gets a row. Must be called before the first request.
  void set_admission(std::uint32_t request, std::uint64_t share) {
    admitted_at_ = request;
    if (request > 1) seen_ = std::make_unique<SeenSketch>(share);
  }

  // Holds the lock that is needed to add and remove ids.
  class Adding {
   public:
    explicit Adding(RowIds& ids) : ids_(ids), guard_(ids.mutex_) {}
    // Adds an id that the map does not have, with its row.
    void add(std::int64_t id, std::uint64_t row);
    // Removes the id of a row. id() still returns it until the row has another one.
    void remove(std::uint64_t row);
    // Takes a free row of this node's share for an id. There must be one.
    std::uint64_t take(const RowRange& share, std::int64_t id);
    // Counts a request of an id that this node assigns. Returns whether the id has a row or may get one.
    bool admits(std::int64_t id);
    // Makes a row of this node's share, whose id was removed, free for another id.
    void give_back(std::uint64_t row);
    // Counts a row that could not be retired.
    void count_refused() { ids_.refused_.store(ids_.refused() + 1, std::memory_order_relaxed); }

   private:
    RowIds& ids_;
    const std::lock_guard<std::mutex> guard_;
  };

 private:
  static constexpr std::size_t kOfBucket = 12;
  struct alignas(64) Bucket {
    std::atomic<std::uint64_t> low_tags;   // of the first eight rows; 0: no row
    std::atomic<std::uint32_t> high_tags;  // of the other rows
    std::atomic<std::uint32_t> passed;     // ids of this bucket, or of one before it, that are in a later one
    std::array<std::atomic<std::uint32_t>, kOfBucket> rows;
  };
  static_assert(sizeof(Bucket) == 64);
  struct Place {
    std::uint64_t bucket;
    std::uint64_t tag;
  };

  Place place(std::int64_t id) const;
  std::int64_t find(Place place, std::int64_t id) const;
  // Returns the row of the id among the rows whose tags match, or kUnknown.
  std::int64_t match(const Bucket& bucket, std::uint64_t tag, std::int64_t id) const;
  std::uint64_t next(std::uint64_t bucket) const { return bucket + 1 == buckets_ ? 0 : bucket + 1; }
  void set_known(std::uint64_t row, bool is_known);

  const std::uint64_t buckets_;
  const Reserved bucket_memory_;
  const Reserved id_memory_;
  const Reserved bit_memory_;
  Bucket* const first_bucket_;
  std::atomic<std::int64_t>* const ids_;  // by row
  std::atomic<std::uint64_t>* const
      is_known_;  // by row, one bit each, so that checks of keys stay in a cache
  UsedRows used_;
  std::atomic<std::uint64_t> assigned_{0};
  std::atomic<std::uint64_t> retired_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> known_{0};
  std::atomic<std::uint64_t> most_known_{0};
  std::uint64_t ever_assigned_ = 0;  // number of rows of the share that were assigned at least once
  std::vector<std::uint32_t> given_back_;
  std::atomic<std::uint64_t> not_admitted_{0};
  std::uint32_t admitted_at_ = 1;
  std::unique_ptr<SeenSketch> seen_;  // null if every id gets a row
  std::mutex mutex_;
};

}  // namespace adaps
