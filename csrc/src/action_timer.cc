#include "adaps/action_timer.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
constexpr double kQuantile = 0.9999;
constexpr double kNormalQuantile = 3.719016485455709;  // of kQuantile
constexpr double kSmoothing = 0.1;
constexpr double kLargestSummedMean = 500.0;
}  // namespace

Clock poisson_quantile(double mean) {
  if (mean <= 0.0) return 0;
  if (mean > kLargestSummedMean) {  // Cornish and Fisher's expansion, right to the unit at these means
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

}  // namespace adaps
