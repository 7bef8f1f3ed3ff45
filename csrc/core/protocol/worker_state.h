// A node's state of one worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/operation.h"

namespace adaps {

struct WorkerState {
  static constexpr std::uint64_t kLeft = ~std::uint64_t{0};

  explicit WorkerState(std::size_t tables) : accesses(tables) {}

  std::atomic<Clock> clock{0};
  std::atomic<Clock> skipped{0};  // clocks that a restore skipped since the last round
  std::atomic<std::uint64_t> tick{
      1};  // tick of the node at which the clock began; kLeft if the worker has left
  WorkerCounters counters;
  std::vector<TableAccesses> accesses;  // by table
  Completion completion;
};
using WorkerStates = std::vector<std::unique_ptr<WorkerState>>;

}  // namespace adaps
