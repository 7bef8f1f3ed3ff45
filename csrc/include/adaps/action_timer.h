// When to act on an intent: as late as is safe, so that parameters are not held longer than needed.
#pragma once

#include "adaps/types.h"

namespace adaps {

// Smallest k with P[X <= k] >= 0.9999 for X ~ Poisson(mean).
Clock poisson_quantile(double mean);

// One worker's estimate of its clocks per round, and the window that follows from it: an intent is acted on
// when start <= clock + window. Exponential smoothing (0.1) of the observed ticks, never below the last
// round's; the window is the 0.9999 quantile of a Poisson distribution with twice that rate (Renz-Wieland et
// al., "Good Intentions: Adaptive Parameter Management via Intent Signaling", 2023). Rounds here happen only
// when there is work, so ticks are scaled to the shortest distance of two rounds.
class ActionTimer {
 public:
  // `rounds` is how many shortest round distances went by since the last observation, at least 1.
  void observe(Clock ticks, double rounds);
  Clock window() const { return window_; }
  double rate() const { return rate_; }

 private:
  double rate_ = 1.0;
  Clock window_ = 9;
};

}  // namespace adaps
