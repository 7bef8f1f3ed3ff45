// When to act on an intent: as late as is safe, so that parameters are not held longer than needed.
#pragma once

#include <algorithm>

#include "common/types.h"

namespace adaps {

// Smallest k with P[X <= k] >= 0.9999 for X ~ Poisson(mean).
Clock poisson_quantile(double mean);

// One worker's estimate of how many of its clocks pass until an intent has had its effect, and the window
// that follows from it: an intent is acted on when start <= clock + window. The pace of the clock is smoothed
// exponentially (0.1) and never below the last one seen; the window is the 0.9999 quantile of a Poisson
// distribution with the mean of two rounds (Renz-Wieland et al., "Good Intentions: Adaptive Parameter
// Management via Intent Signaling", 2023). Rounds here happen only when there is work, and a tick of the
// clock makes work: so the pace is that between two ticks, not that within the round of one. Where keys
// take longer than that to come (LeadTime), because other nodes are busy, `ahead` looks further, to a
// fraction of a clock.
class ActionTimer {
 public:
  // The clock has advanced by `ticks` in the `elapsed` microseconds since the last call; two rounds take
  // `two_rounds`. Time without a tick is added to the next call's.
  void observe(Clock ticks, Micros elapsed, Micros two_rounds);
  Clock window() const { return window_; }
  // How many clocks ahead to act now if keys take `lead` to come; `later` after the last observation.
  Clock ahead(Micros lead, Micros later) const;
  // The most that `ahead` can be until the next observation.
  Clock reach(Micros lead) const;
  // How long after the last observation `ahead` becomes `clocks`; never if a tick comes first.
  Micros until_ahead(Clock clocks, Micros lead) const;
  // How long it is until the clock has made so many ticks, `later` after the last observation; 0 if that
  // cannot be told.
  Micros until(Clock clocks, Micros later) const;
  // Clocks per microsecond.
  double pace() const { return pace_; }

 private:
  double pace_ = 0.0;
  Micros since_tick_ = kNever;  // before the first tick nothing is known
  Clock window_ = 9;
};

// How long keys take to come once they are asked for: the longest between two ticks, smoothed
// exponentially (0.1).
class LeadTime {
 public:
  void observe(Micros lead) { longest_ = std::max(longest_, lead); }
  // At a tick of a clock.
  void settle();
  Micros micros() const { return static_cast<Micros>(smoothed_); }

 private:
  double smoothed_ = 0.0;
  Micros longest_ = -1;  // since the last tick
};

}  // namespace adaps
