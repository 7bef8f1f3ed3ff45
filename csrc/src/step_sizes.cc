#include "adaps/step_sizes.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
constexpr double kNothing = 1e-12;
}

void StepSizes::note(std::uint64_t step, float learning_rate) {
  const std::lock_guard guard(mutex_);
  while (!rates_.empty() && rates_.back().step >= step) rates_.pop_back();
  if (rates_.empty() || rates_.back().learning_rate != learning_rate) rates_.push_back({step, learning_rate});
}

double StepSizes::drift(std::uint64_t last, std::uint64_t now, double momentum) const {
  const std::lock_guard guard(mutex_);
  auto rate = std::upper_bound(rates_.begin(), rates_.end(), last + 1,
                               [](std::uint64_t step, const Since& since) { return step < since.step; });
  if (rate != rates_.begin()) --rate;  // that of step last + 1
  double sum = 0.0;
  double power = momentum;  // of the first step of a stretch with one learning rate
  for (std::uint64_t step = last + 1; step <= now && power > kNothing && rate != rates_.end(); ++rate) {
    const std::uint64_t end = rate + 1 == rates_.end() ? now + 1 : std::min((rate + 1)->step, now + 1);
    const auto steps = static_cast<double>(end - step);
    const double shrunk = std::pow(momentum, steps);
    // a geometric series
    sum += rate->learning_rate * power * (momentum == 1.0 ? steps : (1.0 - shrunk) / (1.0 - momentum));
    power *= shrunk;
    step = end;
  }
  return sum;
}

}  // namespace adaps
