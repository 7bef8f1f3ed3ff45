#include "protocol/action_timer.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
constexpr double kQuantile = 0.9999;
// The quantile kQuantile of the standard normal distribution.
constexpr double kNormalQuantile = 3.719016485455709;
constexpr double kSmoothing = 0.1;
constexpr double kLargestSummedMean = 500.0;
constexpr double kRounding = 1e-9;
constexpr double kFarAway = 1e15;  // in microseconds
}  // namespace

Clock poisson_quantile(double mean) {
  if (mean <= 0.0) return 0;
  // expansion of Cornish and Fisher, which is exact to the integer at these means
  if (mean > kLargestSummedMean) {
    const double z = kNormalQuantile;
    return static_cast<Clock>(std::ceil(mean + z * std::sqrt(mean) + (z * z - 1.0) / 6.0 - 0.5));
  }
  double term = std::exp(-mean);
  double sum = term;
  Clock k = 0;
  while (sum < kQuantile) {
    ++k;
    term *= mean / static_cast<double>(k);
    sum += term;
  }
  return k;
}

void ActionTimer::observe(Clock ticks, Micros elapsed, Micros two_rounds) {
  if (since_tick_ != kNever) since_tick_ += elapsed;
  if (ticks == 0) return;
  if (since_tick_ == kNever) {
    since_tick_ = 0;
    return;
  }
  const double observed = static_cast<double>(ticks) / static_cast<double>(std::max<Micros>(since_tick_, 1));
  since_tick_ = 0;
  pace_ = std::max((1.0 - kSmoothing) * pace_ + kSmoothing * observed, observed);
  window_ = std::max<Clock>(poisson_quantile(pace_ * static_cast<double>(two_rounds)), 1);
}

Clock ActionTimer::ahead(Micros lead, Micros later) const {
  if (since_tick_ == kNever) return window_;
  // At most 1: a delayed tick does not change the clock before it occurs.
  const double passed = std::min(pace_ * static_cast<double>(since_tick_ + later), 1.0);
  return std::max(window_, static_cast<Clock>(passed + pace_ * static_cast<double>(lead) + kRounding));
}

Clock ActionTimer::reach(Micros lead) const {
  if (since_tick_ == kNever) return window_;
  return std::max(window_, static_cast<Clock>(1.0 + pace_ * static_cast<double>(lead) + kRounding));
}

Micros ActionTimer::until_ahead(Clock clocks, Micros lead) const {
  if (since_tick_ == kNever || pace_ <= 0.0) return kNever;
  const double rest = static_cast<double>(clocks) - pace_ * static_cast<double>(lead);  // in clocks
  if (rest >= 1.0) return kNever;  // the next tick is earlier
  return std::max<Micros>(static_cast<Micros>(std::ceil(rest / pace_)) + 1 - since_tick_, 0);
}

Micros ActionTimer::until(Clock clocks, Micros later) const {
  if (clocks <= 0 || since_tick_ == kNever || pace_ <= 0.0) return 0;
  const double all = std::min(static_cast<double>(clocks) / pace_, kFarAway);
  return std::max<Micros>(static_cast<Micros>(all) - since_tick_ - later, 0);
}

void LeadTime::settle() {
  if (longest_ < 0) return;
  const auto longest = static_cast<double>(longest_);
  smoothed_ = smoothed_ == 0.0 ? longest : (1.0 - kSmoothing) * smoothed_ + kSmoothing * longest;
  longest_ = -1;
}

}  // namespace adaps
