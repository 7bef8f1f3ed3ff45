// Calls that wait for memory of a limited table: all rows in memory have copies on other nodes.
#include <optional>
#include <string>

#include "check.h"
#include "simulation/explore.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

constexpr std::uint64_t kWorlds = 20;
constexpr double kSecond = 1e6;

// Node 0 has memory for two rows. Nodes 1 and 2 have a copy of one row each for a minute or so, while node 0
// needs a third row. Node 0 may be frozen for about half an hour when it asks for the row.
WorldSpec world_without_memory(std::uint64_t seed, bool freezes) {
  constexpr NodeId kNodes = 3;
  WorldSpec spec;
  spec.seed = seed;
  spec.settings.nodes = kNodes;
  spec.settings.timing = false;
  TableSpec table{.name = "t",
                  .rows = 64,
                  .length = content_length(kPushesPerFloat),
                  .management = {.technique = Technique::kReplication},
                  .path = "memory"};
  const Table made(table, 0, 0);
  table.memory = 2 * (made.stored_words(made.width()) * sizeof(float) + kLimitedSlotBytes);
  for (Key key = 0; spec.keys.size() < 3; ++key) {
    if (Directory(kNodes, 1).home(key) == 0) spec.keys.push_back(key);
  }
  spec.tables.push_back(std::move(table));
  const auto holds = [](std::uint32_t key) -> Program {
    return {{CallKind::kIntent, false, {key}, 0, 1},
            {CallKind::kWaitIntent, false, {key}},
            {CallKind::kBarrier},
            {CallKind::kWaitAll},
            {CallKind::kClock}};
  };
  Program needs = {{CallKind::kBarrier}, {CallKind::kPull, true, {2}}, {CallKind::kWaitAll}};
  if (freezes) {
    needs.insert(needs.begin() + 1, {CallKind::kFreeze});
    needs.insert(needs.end() - 1, 30, {CallKind::kClock});
    needs.insert(needs.end() - 1, {CallKind::kThaw});
  }
  spec.programs = {needs, holds(0), holds(1)};
  spec.think = {freezes ? 60.0 * kSecond : 0.0, 60.0 * kSecond, 60.0 * kSecond};
  spec.submit.assign(kNodes, 0.0);
  spec.tick.assign(kNodes, 10.0);
  spec.links.resize(std::size_t{kNodes} * kNodes);
  return spec;
}

// Number of worlds in which the call fails for lack of memory.
int failed(bool freezes) {
  int failed = 0;
  for (std::uint64_t seed = 0; seed < kWorlds; ++seed) {
    const std::optional<std::string> failure = failure_of(world_without_memory(seed, freezes), Mutant::none);
    if (!failure) continue;
    ++failed;
    CHECK(failure->find("a channel has memory for 2 rows") != std::string::npos);
  }
  return failed;
}

}  // namespace

TEST(a_call_that_waits_long_for_memory_fails) { CHECK(failed(false) > 0); }

TEST(time_in_which_a_node_is_frozen_is_no_wait_for_memory) { CHECK_EQ(failed(true), 0); }
