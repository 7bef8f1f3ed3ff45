// The cores of a host, shared by the threads of its nodes.
#pragma once

#include <cstddef>
#include <vector>

#include "common/types.h"

namespace adaps {

// Threads with work share the cores equally, as under a fair scheduler. Each thread gets a whole core or, if
// there are more threads than cores, an equal part of all cores.
class Processor {
 public:
  Processor(int cores, double speed, std::size_t threads);

  // Gives work to a thread that has none. The work takes `micros` microseconds on a core of speed 1.
  void begin(std::size_t thread, double micros, Micros now);
  // Time when the next thread completes its work if no work is added until then; kNever if no thread has
  // work.
  Micros next_end() const;
  // Returns the indices of the threads that completed their work by `now`, and clears their work.
  std::vector<std::size_t> take_ended(Micros now);

  // Speed of a core for this thread, relative to a core of speed 1.
  double speed(std::size_t thread) const { return speed_ * threads_[thread].factor; }
  void slow_down(std::size_t thread, double factor, Micros now);
  // Suspends the thread: it uses no core until it is resumed, even if it has work.
  void suspend(std::size_t thread, Micros now);
  void resume(std::size_t thread, Micros now);

 private:
  struct Thread {
    bool working = false;
    bool suspended = false;
    double left = 0.0;  // remaining microseconds on a core of speed 1
    double factor = 1.0;
    bool runs() const { return working && !suspended; }
  };

  double share() const;  // fraction of a core for each running thread
  void proceed(Micros now);

  const double cores_;
  const double speed_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  Micros last_ = 0;
};

}  // namespace adaps
