// The rows that the workers of a training access in each step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

struct WorkerAccesses {
  std::vector<Key> placed;        // rows that this worker's node owns at the start
  std::vector<Key> keys;          // keys of all steps; those of a step are distinct and sorted by table
  std::vector<std::size_t> ends;  // end of each step in keys

  std::size_t steps() const { return ends.size(); }
  std::span<const Key> step(std::size_t number) const {
    const std::size_t begin = number == 0 ? 0 : ends[number - 1];
    return std::span(keys).subspan(begin, ends[number] - begin);
  }
};

struct Accesses {
  std::vector<TableSpec> tables;
  // by table: whether every step accesses all its rows; those are not listed in keys
  std::vector<bool> dense;
  std::vector<WorkerAccesses> workers;  // sorted by node
};

}  // namespace adaps
