// Checkpoints in random worlds: a snapshot contains every write exactly once, and loses none. An export
// accompanies each snapshot, and all exports together equal the rows that the nodes own.
#include <algorithm>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "simulation/explore.h"
#include "simulation/generator.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

constexpr std::uint64_t kWorlds = 600;

// A worker's calls for a checkpoint (see adaps.checkpoint). During the checkpoint, the worker signals intent
// for `key`, which must not take effect before its end.
Program checkpoint(bool leads, bool freezes, std::uint32_t key) {
  using enum CallKind;
  Program program;
  for (const CallKind kind : {kWaitAll, kSync, kBarrier, kFreeze, kSync, kBarrier, kSync, kCount, kIntent,
                              kClock, kTake, kBarrier, kThaw}) {
    const bool of_node = kind == kFreeze || kind == kCount || kind == kTake || kind == kThaw;
    if ((of_node && !leads) || (kind == kFreeze && !freezes)) continue;
    program.push_back({kind, false, {}, 0, 0});
    if (kind == kIntent) program.back() = {kIntent, false, {key}, 0, 4};
  }
  return program;
}

// A random world with three checkpoints: two among the calls before the first barrier, and one at the end.
WorldSpec world_with_checkpoints(std::uint64_t number, bool freezes = true) {
  WorldSpec spec = random_world(6, number);
  Random random(spec.seed, 0x736e6170);
  const auto workers = static_cast<std::size_t>(spec.settings.workers);
  for (std::size_t i = 0; i < spec.programs.size(); ++i) {
    Program& program = spec.programs[i];
    const auto insert = [&](std::size_t place) {
      const auto key = static_cast<std::uint32_t>(random.below(spec.keys.size()));
      const Program inserted = checkpoint(i % workers == 0, freezes, key);
      program.insert(program.begin() + static_cast<std::ptrdiff_t>(place), inserted.begin(), inserted.end());
    };
    const auto is_barrier = [](const Call& call) { return call.kind == CallKind::kBarrier; };
    const auto barrier = std::find_if(program.begin(), program.end(), is_barrier);
    const auto before = static_cast<std::uint64_t>(barrier - program.begin());
    insert(program.size());
    const std::uint64_t place = random.below(before + 1);
    insert(place);
    insert(random.below(place + 1));
  }
  return spec;
}

// A node with memory for a few rows, some of which were only read, and with intents for rows that were never
// used. It takes a checkpoint so slowly that the channel has time to move rows between memory and file.
WorldSpec world_with_little_memory(std::uint64_t number) {
  WorldSpec spec;
  spec.seed = number;
  spec.settings.nodes = 1;
  spec.settings.timing = false;
  spec.settings.max_rounds_per_second = 1e6;
  spec.settings.slice = 1;  // looks at few rows at a time
  spec.settings.free_rows = 16;
  Random random(number, 0x6c6974);
  TableSpec table{.name = "t", .rows = 16, .length = content_length(kPushesPerFloat), .path = "memory"};
  const Table made(table, 0, 0);
  const std::uint64_t slots = 2 + random.below(6);
  table.memory = slots * (made.stored_words(made.width()) * sizeof(float) + kLimitedSlotBytes);
  for (Key key = 0; key < table.rows; ++key) spec.keys.push_back(key);
  spec.tables.push_back(std::move(table));
  Program program;
  for (int i = 0; i < 6; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(spec.keys.size()));
    program.push_back(random.chance(0.5) ? Call{CallKind::kPull, false, {key}}
                                         : Call{CallKind::kIntent, false, {key}, 0, 3});
    if (random.chance(0.2)) program.push_back({CallKind::kClock});
  }
  const Program taken = checkpoint(true, true, 0);
  program.insert(program.end(), taken.begin(), taken.end());
  spec.programs = {program};
  spec.think = {4'000.0};
  spec.submit = {0.0};
  spec.tick = {10.0};
  spec.links.resize(1);
  return spec;
}

// Whether a table has rows with lossy wires, but its first row is exact.
bool only_first_row_is_exact(const WorldSpec& spec) {
  return std::any_of(spec.tables.begin(), spec.tables.end(), [](const TableSpec& table) {
    const auto is_lossy = [](const ManagedRange& range) { return range.management.wire != Wire::kFloat32; };
    const std::vector<ManagedRange>& managed = table.managed;
    return !managed.empty() && !is_lossy(managed[0]) && std::any_of(managed.begin(), managed.end(), is_lossy);
  });
}

// Runs the worlds, and checks that some of them fail.
void expect_noticed(const char* what, Mutant mutant, bool freezes = true) {
  int noticed = 0;
  for (std::uint64_t number = 0; number < kWorlds; ++number)
    noticed += failure_of(world_with_checkpoints(number, freezes), mutant).has_value();
  std::cout << "  " << noticed << " of " << kWorlds << " worlds " << what << " are found\n";
  CHECK(noticed > 0);
}

}  // namespace

TEST(a_snapshot_holds_every_write_once_and_loses_none) {
  for (std::uint64_t number = 0; number < kWorlds; ++number) {
    const auto failure = failure_of(world_with_checkpoints(number), Mutant::none);
    if (failure) check::fail(__FILE__, __LINE__, "world " + std::to_string(number) + ": " + *failure);
  }
}

TEST(missing_rests_of_rows_after_an_exact_row_are_detected) {
  int noticed = 0, run = 0;
  for (std::uint64_t number = 0; run < 200; ++number) {
    const WorldSpec spec = world_with_checkpoints(number);
    if (!only_first_row_is_exact(spec)) continue;
    ++run;
    noticed += failure_of(spec, Mutant::rests_as_first_row).has_value();
  }
  std::cout << "  " << noticed << " of " << run << " worlds whose snapshots leave out rests are found\n";
  CHECK(noticed > 0);
}

TEST(what_is_missing_in_a_snapshot_is_detected) {
  expect_noticed("whose snapshots leave out rests", Mutant::rest_lost_at_checkpoint);
  expect_noticed("whose snapshots leave out rows in files", Mutant::stored_is_not_owned);
}

TEST(keys_that_move_during_a_snapshot_are_detected) {
  expect_noticed("whose keys move during a snapshot", Mutant::none, false);
}

TEST(no_row_begins_or_ends_during_a_snapshot) {
  for (const Mutant mutant : {Mutant::none, Mutant::forgets_while_frozen, Mutant::brings_while_frozen}) {
    int noticed = 0;
    for (std::uint64_t number = 0; number < kWorlds; ++number)
      noticed += failure_of(world_with_little_memory(number), mutant).has_value();
    std::cout << "  " << noticed << " of " << kWorlds << " worlds with little memory are found\n";
    CHECK_EQ(noticed > 0, mutant != Mutant::none);
  }
}

TEST(changes_that_are_missing_in_an_export_are_detected) {
  for (const Mutant mutant : {Mutant::alone_no_bump, Mutant::told_for_good, Mutant::restart_as_same_version,
                              Mutant::stored_as_same_version})
    expect_noticed("whose exports leave out changes", mutant);
}
