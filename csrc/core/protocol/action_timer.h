// Determines when to act on an intent: as late as is safe, so that a node does not have rows longer than
// necessary.
#pragma once

#include <algorithm>

#include "common/types.h"

namespace adaps {

// Returns the smallest k with P[X <= k] >= 0.9999 for X ~ Poisson(mean).
Clock poisson_quantile(double mean);

// Estimates how many clocks of a worker pass from the action on an intent until the key is local. This
// estimate is called the window: the node acts on an intent when start <= clock + window. The pace is the
// number of clocks per time. It is smoothed exponentially (0.1), and is never below the last observed pace.
// The window is the 0.9999 quantile of a Poisson distribution whose mean is the number of clocks in two
// rounds (Renz-Wieland et al., "Good Intentions: Adaptive Parameter Management via Intent Signaling", 2023).
//
// In this server, rounds take place only if there is work, and a tick of the clock creates work. Therefore
// the pace is measured between two ticks, not within one round. If keys take longer to arrive (LeadTime),
// because other nodes are busy, `ahead` returns a larger number, which takes fractions of a clock into
// account.
class ActionTimer {
 public:
  // Records that the clock advanced by `ticks` in the `elapsed` microseconds since the last call. Two rounds
  // take `two_rounds`. Time without a tick is added to the next call's time.
  void observe(Clock ticks, Micros elapsed, Micros two_rounds);
  Clock window() const { return window_; }
  // Number of clocks before its start at which an intent must be acted on, if keys take `lead` to arrive.
  // `later` is the number of microseconds since the last observation.
  Clock ahead(Micros lead, Micros later) const;
  // Largest value that `ahead` can have before the next observation.
  Clock reach(Micros lead) const;
  // Time from the last observation until `ahead` returns `clocks`. kNever if the next tick comes earlier.
  Micros until_ahead(Clock clocks, Micros lead) const;
  // Remaining time until the clock has made `clocks` ticks since the last observation. `later` is the number
  // of microseconds since the observation. Returns 0 if the time is unknown.
  Micros until(Clock clocks, Micros later) const;
  // Clocks per microsecond.
  double pace() const { return pace_; }

 private:
  double pace_ = 0.0;
  Micros since_tick_ = kNever;  // unknown before the first tick
  Clock window_ = 9;
};

// Time that keys take to arrive after they were requested: the maximum between two ticks, smoothed
// exponentially (0.1).
class LeadTime {
 public:
  void observe(Micros lead) { longest_ = std::max(longest_, lead); }
  // Called at a tick of a clock.
  void settle();
  Micros micros() const { return static_cast<Micros>(smoothed_); }

 private:
  double smoothed_ = 0.0;
  Micros longest_ = -1;  // since the last tick
};

}  // namespace adaps
