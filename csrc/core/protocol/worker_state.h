// A node's state of one worker.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/operation.h"

namespace adaps {

struct WorkerState {
  explicit WorkerState(std::size_t tables) : accesses(tables) {}

  std::atomic<Clock> clock{0};
  std::atomic<Clock> skipped{0};  // clocks that a restore skipped since the last round
  WorkerCounters counters;
  std::vector<TableAccesses> accesses;  // by table
  Completion completion;
};
using WorkerStates = std::vector<std::unique_ptr<WorkerState>>;

}  // namespace adaps
