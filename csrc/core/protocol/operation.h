// Calls of workers that channels must complete.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/spin_lock.h"
#include "common/types.h"

namespace adaps {

class Table;

enum class OperationKind : std::uint8_t {
  kPull,
  kPush,
  kPushGradients,
  kSet,
  kSync,
  kBarrier,
  kLocalize,
  kPullState,
  kSetState,
  kRowsOf,
  kUsedIds
};
// Whether a call reads or writes the optimizer state of rows. Only a row's owner serves it.
constexpr bool is_about_state(OperationKind kind) {
  return kind == OperationKind::kPullState || kind == OperationKind::kSetState;
}
constexpr bool is_write(OperationKind kind) {
  return kind == OperationKind::kSetState || (kind != OperationKind::kPull && kind <= OperationKind::kSet);
}

struct Operation;

// All occurrences of one key in one call that could not be served at once. One node applies them in order, so
// that no occurrence overtakes an earlier one.
struct KeyRequest {
  Operation* operation = nullptr;
  Key key = 0;
  std::uint32_t first = 0;  // index of the first occurrence
  std::uint32_t last = 0;
  std::uint32_t occurrences = 0;
  // index of the request with the remaining occurrences, which is sent after this one is complete
  std::uint32_t next_part = kNoPart;
  bool follows = false;     // this request is the next_part of another request
  std::uint64_t epoch = 0;  // for a write, the epoch in which wait_sync counts it

  static constexpr std::uint32_t kNoPart = 0xffffffffU;
};

struct Occurrence {
  static constexpr std::uint32_t kEnd = 0xffffffffU;
  std::size_t offset = 0;  // offset of the key's value in the call's array, in floats
  std::uint32_t next = kEnd;
};

// Ids of one call for rows that another node must resolve, by one message.
struct IdRequest {
  Operation* operation = nullptr;
  int channel = 0;
  NodeId to = 0;
  std::vector<std::int64_t> ids;
};

// A call for the rows of ids. This node does not know all of these ids.
struct IdCall {
  static constexpr int kNone = -1;

  IdCall(const Table& table_in, std::span<const std::int64_t> ids_in, std::int64_t* rows_in, bool creates_in)
      : table(&table_in), ids(ids_in.begin(), ids_in.end()), rows(rows_in), creates(creates_in) {}

  const Table* table;
  std::vector<std::int64_t> ids;
  std::int64_t* rows;  // the caller's array, which only the caller's thread writes
  bool creates;        // whether new ids get rows
  std::vector<IdRequest> requests;
  std::atomic<int> full{kNone};  // a node that had no row left for a new id
  // Ids that remain without a row, because they were not requested often enough or the call creates none.
  // Operation::arrays guards them.
  std::vector<std::int64_t> without_row;
};

// A call for the ids of the rows that any node has used.
struct IdListing {
  explicit IdListing(const Table* table_in) : table(table_in) {}

  const Table* table;
  // Ids of this node, and those that other nodes have sent so far. Several nodes may send the same id.
  std::vector<std::int64_t> ids;
};

// A worker waits on this object until its operations are complete.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::size_t> queued_bytes{0};  // bytes of incomplete operations: see may_queue_more
};

struct Operation {
  Operation(OperationKind kind_in, int worker_in, Completion& completion_in)
      : kind(kind_in), worker(worker_in), completion(completion_in) {}

  // Completes `count` parts. The last part wakes the worker.
  void finish(std::uint32_t count = 1);

  const OperationKind kind;
  const int worker;
  Completion& completion;
  float* out = nullptr;
  const float* in = nullptr;
  std::vector<float> kept;  // memory of `in`, unless it is an array of the caller
  std::vector<KeyRequest> requests;
  std::vector<Occurrence> occurrences;
  std::unique_ptr<IdCall> id_call;        // only for kRowsOf
  std::unique_ptr<IdListing> id_listing;  // only for kUsedIds
  std::uint64_t epoch = 0;                // only for kSync
  Clock clock = 0;                        // only for kSync: the worker's clock at the call
  // only for kSync: no worker waits for the operation yet, so it must not cost other nodes extra messages
  std::atomic<bool> patient{false};
  std::size_t bytes = 0;  // bytes of the operation's messages
  std::atomic<std::uint32_t> left{0};
  std::atomic<bool> done{false};
  // Lock for the caller's arrays. If a worker stops waiting, because of a failure or an interrupt, it
  // abandons the operation, and its arrays may no longer exist. A channel accesses them only under this lock,
  // for one key at a time, and only if the operation is not abandoned.
  SpinLock arrays;
  bool abandoned = false;
};

}  // namespace adaps
