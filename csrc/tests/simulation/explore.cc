#include "simulation/explore.h"

#include <exception>

#include "simulation/generator.h"
#include "simulation/quiescence.h"

namespace adaps::simulation {

namespace {

class Selected {
 public:
  explicit Selected(Mutant mutant) { select_mutant(mutant); }
  ~Selected() { select_mutant(Mutant::none); }
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;
};

std::optional<std::string> failure_of(World& world) {
  try {
    run_and_check(world);
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

Exploration explore(const Exploring& what) {
  const Selected selected(what.mutant);
  Exploration result;
  for (std::uint64_t number = what.first; result.worlds < what.worlds; ++number) {
    const WorldSpec spec = random_world(what.seed, number);
    if (what.wanted != nullptr && !what.wanted(spec)) continue;
    World world(spec);
    const std::optional<std::string> failure = failure_of(world);
    ++result.worlds;
    result.calls += world.history().size();
    result.messages += world.cluster().messages();
    if (!failure) continue;
    result.failures.push_back({number, *failure});
    if (result.failures.size() == what.stop_after) break;
  }
  return result;
}

std::optional<std::string> failure_of(const WorldSpec& spec, Mutant mutant, std::vector<std::string>* log) {
  const Selected selected(mutant);
  World world(spec, log);
  return failure_of(world);
}

const std::vector<NamedMutant>& all_mutants() {
  static const std::vector<NamedMutant> all = {
#define MUTANT(name, text, ...) {Mutant::name, #name, text},
#include "simulation/mutants.def"
#undef MUTANT
  };
  return all;
}

}  // namespace adaps::simulation
