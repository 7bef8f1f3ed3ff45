// What the workers of a training access, step after step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

struct WorkerAccesses {
  std::vector<Key> placed;        // these begin on its node
  std::vector<Key> keys;          // of all steps, one behind the other: distinct, table after table
  std::vector<std::size_t> ends;  // where each step's keys end

  std::size_t steps() const { return ends.size(); }
  std::span<const Key> step(std::size_t number) const {
    const std::size_t begin = number == 0 ? 0 : ends[number - 1];
    return std::span(keys).subspan(begin, ends[number] - begin);
  }
};

struct Accesses {
  std::vector<TableSpec> tables;
  std::vector<bool> dense;  // by table: whether all its rows are accessed in every step, and none is listed
  std::vector<WorkerAccesses> workers;  // node after node
};

}  // namespace adaps
