// Calls of a worker that the channels have to finish.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/spin_lock.h"
#include "common/types.h"

namespace adaps {

enum class OperationKind : std::uint8_t {
  kPull,
  kPush,
  kPushGradients,
  kSet,
  kSync,
  kBarrier,
  kLocalize,
  kPullState,
  kSetState
};
// Whether a call reads or writes the optimizer state of rows. Only a row's owner serves it.
constexpr bool is_about_state(OperationKind kind) { return kind >= OperationKind::kPullState; }
constexpr bool is_write(OperationKind kind) {
  return kind == OperationKind::kSetState || (kind != OperationKind::kPull && kind <= OperationKind::kSet);
}

struct Operation;

// Every occurrence of one key in one call that could not be served at once: applied in order, in one place,
// so that an earlier occurrence is never overtaken by a later one.
struct KeyRequest {
  Operation* operation = nullptr;
  Key key = 0;
  std::uint32_t first = 0;  // occurrence
  std::uint32_t last = 0;
  std::uint32_t occurrences = 0;
  std::uint32_t next_part = kNoPart;  // the request with what did not fit, for when this one is complete
  bool follows = false;               // it is the next_part of another request
  std::uint64_t epoch = 0;            // of a write: the epoch in which wait_sync counts it

  static constexpr std::uint32_t kNoPart = 0xffffffffU;
};

struct Occurrence {
  static constexpr std::uint32_t kEnd = 0xffffffffU;
  std::size_t offset = 0;  // of its value in the call's array, in floats
  std::uint32_t next = kEnd;
};

// What one worker waits on until its operations are done.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::size_t> queued_bytes{0};  // of operations that are not done: see may_queue_more
};

struct Operation {
  Operation(OperationKind kind_in, int worker_in, Completion& completion_in)
      : kind(kind_in), worker(worker_in), completion(completion_in) {}

  // One of `count` parts is complete; the last one wakes the worker.
  void finish(std::uint32_t count = 1);

  const OperationKind kind;
  const int worker;
  Completion& completion;
  float* out = nullptr;
  const float* in = nullptr;
  std::vector<float> kept;  // what `in` names, if it is no array of the caller's
  std::vector<KeyRequest> requests;
  std::vector<Occurrence> occurrences;
  std::uint64_t epoch = 0;  // kSync
  std::size_t bytes = 0;    // of messages that are sent for it
  std::atomic<std::uint32_t> left{0};
  std::atomic<bool> done{false};
  // A worker that gives up waiting (a failure, an interrupt) abandons the operation: its arrays may be gone.
  // A channel touches them only under this lock, for one key at a time, and if it is not abandoned.
  SpinLock arrays;
  bool abandoned = false;
};

}  // namespace adaps
