// Runs many random worlds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/mutants.h"
#include "simulation/spec.h"

namespace adaps::simulation {

struct Failure {
  std::uint64_t world;
  std::string what;
};

struct Exploration {
  std::uint64_t worlds = 0;
  std::uint64_t calls = 0;
  std::uint64_t messages = 0;
  std::vector<Failure> failures;
};

struct Exploring {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t worlds = 0;
  std::size_t stop_after = 1;  // number of failures
  Mutant mutant = Mutant::none;
  bool (*wanted)(const WorldSpec&) = nullptr;  // if given, other worlds are left out and do not count
};

Exploration explore(const Exploring& what);

// Returns the violation in a world, if there is any. Writes all events to the log, if it is not null.
std::optional<std::string> failure_of(const WorldSpec& spec, Mutant mutant,
                                      std::vector<std::string>* log = nullptr);

struct NamedMutant {
  Mutant mutant;
  std::string_view name;
  std::string_view text;
};
const std::vector<NamedMutant>& all_mutants();

}  // namespace adaps::simulation
