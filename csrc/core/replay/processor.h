// The cores of a host, which the threads of its nodes share.
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

  // What a core does for the thread, in cores of speed 1.
  double speed(std::size_t thread) const { return speed_ * threads_[thread].factor; }
  void slow_down(std::size_t thread, double factor, Micros now);
  // The thread needs no core, whatever it has to do, until it is resumed.
  void suspend(std::size_t thread, Micros now);
  void resume(std::size_t thread, Micros now);

 private:
  struct Thread {
    bool working = false;
    bool suspended = false;
    double left = 0.0;  // micros of a core of speed 1
    double factor = 1.0;
    bool runs() const { return working && !suspended; }
  };

  double share() const;  // of a core that each thread that runs has
  void proceed(Micros now);

  const double cores_;
  const double speed_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  Micros last_ = 0;
};

}  // namespace adaps
