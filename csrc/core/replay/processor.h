// A node's cores, which its threads share.
#pragma once

#include <cstddef>
#include <vector>

#include "common/types.h"

namespace adaps {

// Threads that have work share the cores equally, as a fair scheduler lets them: each gets a whole core, or
// its part of all if they are more.
class Processor {
 public:
  Processor(int cores, double speed, std::size_t threads);

  // `thread`, which has none, gets work that takes so many microseconds of a core of speed 1.
  void begin(std::size_t thread, double micros, Micros now);
  // When work is done next if none is added; kNever without any.
  Micros next_end() const;
  // The threads whose work is done by now, which have none any more, by their numbers.
  std::vector<std::size_t> take_ended(Micros now);

 private:
  struct Thread {
    bool working = false;
    double left = 0.0;  // micros of a core of speed 1
  };

  double rate() const;
  void proceed(Micros now);

  const double cores_;
  const double speed_;
  std::vector<Thread> threads_;
  std::size_t working_ = 0;
  Micros last_ = 0;
};

}  // namespace adaps
