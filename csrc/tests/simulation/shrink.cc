#include "simulation/shrink.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "simulation/explore.h"

namespace adaps::simulation {

namespace {

// Number of schedules that are tried before a call counts as necessary, because omitting a call changes the
// schedule.
constexpr int kSchedules = 12;

std::string promise_of(const std::string& failure) { return failure.substr(0, failure.find(':')); }

class Shrinker {
 public:
  Shrinker(WorldSpec spec, Mutant mutant) : best_(std::move(spec)), mutant_(mutant) {
    const std::optional<std::string> failure = failure_of(best_, mutant_);
    promise_ = failure ? promise_of(*failure) : "";
  }

  WorldSpec shrink() {
    if (promise_.empty()) return best_;
    bool smaller = true;
    while (smaller) {
      smaller = drop_barriers();
      for (std::size_t program = 0; program < best_.programs.size(); ++program) {
        for (std::size_t part = best_.programs[program].size(); part > 0; part /= 2) {
          smaller = drop_parts(program, part) || smaller;
        }
      }
    }
    return best_;
  }

 private:
  bool accept(WorldSpec candidate) {
    for (int i = 0; i < kSchedules; ++i) {
      const std::optional<std::string> failure = failure_of(candidate, mutant_);
      if (failure && promise_of(*failure) == promise_) {
        best_ = std::move(candidate);
        return true;
      }
      candidate.seed = mix(candidate.seed);
    }
    return false;
  }

  // Drops all barriers together. If a worker had fewer barriers than the others, they would wait forever.
  bool drop_barriers() {
    WorldSpec candidate = best_;
    std::size_t dropped = 0;
    for (Program& program : candidate.programs) {
      dropped += std::erase_if(program, [](const Call& call) { return call.kind == CallKind::kBarrier; });
    }
    return dropped > 0 && accept(std::move(candidate));
  }

  bool drop_parts(std::size_t program, std::size_t length) {
    bool smaller = false;
    for (std::size_t first = 0; first < best_.programs[program].size();) {
      WorldSpec candidate = best_;
      Program& calls = candidate.programs[program];
      const auto begin = calls.begin() + static_cast<std::ptrdiff_t>(first);
      const auto end = calls.begin() + static_cast<std::ptrdiff_t>(std::min(first + length, calls.size()));
      const bool barrier =
          std::any_of(begin, end, [](const Call& call) { return call.kind == CallKind::kBarrier; });
      calls.erase(begin, end);
      if (!barrier && accept(std::move(candidate))) {
        smaller = true;
      } else {
        first += length;
      }
    }
    return smaller;
  }

  WorldSpec best_;
  const Mutant mutant_;
  std::string promise_;
};

}  // namespace

WorldSpec shrink(WorldSpec spec, Mutant mutant) { return Shrinker(std::move(spec), mutant).shrink(); }

}  // namespace adaps::simulation
