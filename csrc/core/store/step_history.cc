#include "store/step_history.h"

#include <algorithm>
#include <bit>

namespace adaps {

std::uint16_t Hyperparameters::fingerprint() const {
  std::uint32_t hash = 0;
  for (const float x : {momentum, static_cast<float>(beta2), weight_decay}) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 0x9e3779b1U;
    hash ^= hash >> 15;
  }
  return static_cast<std::uint16_t>(hash >> 16);
}

void StepHistory::note(std::uint64_t step, const Hyperparameters& with) {
  const std::lock_guard guard(mutex_);
  while (!changes_.empty() && changes_.back().step >= step) changes_.pop_back();
  if (changes_.empty() || changes_.back().with != with) changes_.push_back({step, with});
}

std::size_t StepHistory::index_of(std::uint64_t step) const {
  const auto after = std::upper_bound(changes_.begin(), changes_.end(), step,
                                      [](std::uint64_t s, const Change& change) { return s < change.step; });
  return after == changes_.begin() ? 0 : static_cast<std::size_t>(after - changes_.begin()) - 1;
}

}  // namespace adaps
