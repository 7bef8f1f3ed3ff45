// Tests that the checker detects every deliberate bug of the protocol.
#include <algorithm>
#include <iterator>

#include "check.h"
#include "simulation/explore.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

constexpr std::uint64_t kWorlds = 20'000;  // for the rarest mutant; most need fewer than 100

// Mutants that random worlds do not find. Some need a coincidence of many events; schedules_test.cc has a
// schedule for each. Some need a checkpoint or an export; see snapshots_test.cc. Some are only visible after
// many roundings; see rounding_test.cc. One needs a disk with faults; see disk_faults_test.cc.
constexpr Mutant kByScheduleOnly[] = {
    Mutant::no_rc_check,           Mutant::absorb_no_bump,          Mutant::news_unordered,
    Mutant::echo_in_between,       Mutant::rest_lost_at_checkpoint, Mutant::forgets_while_frozen,
    Mutant::brings_while_frozen,   Mutant::rests_as_first_row,      Mutant::exchange_joins_flush,
    Mutant::rounds_to_nearest,     Mutant::rounds_alike_each_time,  Mutant::leaves_home_at_once,
    Mutant::leaves_home_late,      Mutant::never_leaves_home,       Mutant::alone_among_several,
    Mutant::changes_do_not_count,  Mutant::alone_no_bump,           Mutant::leaves_for_good_at_once,
    Mutant::told_for_good,         Mutant::patient_echo_first,      Mutant::damage_unnoticed,
    Mutant::stored_is_not_owned,   Mutant::exchange_lists_twice,    Mutant::restart_as_same_version,
    Mutant::stored_as_same_version};

bool retires_rows(const WorldSpec& spec) {
  return std::ranges::any_of(spec.tables, [](const TableSpec& table) { return table.evict != Evict::kNone; });
}

bool retires_limited_rows(const WorldSpec& spec) {
  return std::ranges::any_of(
      spec.tables, [](const TableSpec& table) { return table.evict != Evict::kNone && table.memory > 0; });
}

// Rare mutants, each with the worlds that can find it. They would need up to 40,000 of all worlds.
constexpr struct {
  Mutant mutant;
  bool (*wanted)(const WorldSpec&);
} kRare[] = {{Mutant::retires_moving_row, retires_limited_rows},
             {Mutant::retires_unsettled_row, retires_rows},
             {Mutant::asks_while_retiring, retires_rows}};

}  // namespace

TEST(every_mutant_is_found_in_random_worlds) {
  for (const NamedMutant& mutant : all_mutants()) {
    if (std::ranges::find(kByScheduleOnly, mutant.mutant) != std::end(kByScheduleOnly)) continue;
    Exploring what{.seed = 1, .worlds = kWorlds, .mutant = mutant.mutant};
    for (const auto& rare : kRare) {
      if (rare.mutant == mutant.mutant) what.wanted = rare.wanted;
    }
    const Exploration result = explore(what);
    if (result.failures.empty()) {
      check::fail(__FILE__, __LINE__, std::string(mutant.name) + " was not found");
    } else {
      std::cout << "  " << mutant.name << ": world " << result.failures[0].world << ", "
                << result.failures[0].what << "\n";
    }
  }
}
