// Calls and results of a world's workers: the input of the checker.
#pragma once

#include <cstdint>
#include <vector>

#include "simulation/content.h"
#include "simulation/spec.h"

namespace adaps::simulation {

// Steps of a world are numbered. Each event has its own step.
using Step = std::int64_t;
inline constexpr Step kOpen = -1;

struct Write {
  std::uint32_t key;
  std::uint32_t number;  // number of the push on this key, of the set, or of the set_state
};

struct Read {
  std::uint32_t key;
  Content content;
};

struct StateRead {
  std::uint32_t key;
  StateContent content;

  bool operator==(const StateRead&) const = default;
};

struct Record {
  CallKind kind = CallKind::kPull;
  NodeId node = 0;
  std::uint32_t worker = 0;  // number among all workers of the world
  bool asynchronous = false;
  Step start = 0;
  Step end = kOpen;
  Micros started = 0;
  Micros ended = 0;
  std::vector<Write> writes;  // in the order of the call's keys
  std::vector<Read> reads;
  std::vector<StateRead> states{};
};

using History = std::vector<Record>;

}  // namespace adaps::simulation
