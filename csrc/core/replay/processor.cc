#include "replay/processor.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace adaps {

Processor::Processor(int cores, double speed, std::size_t threads)
    : cores_(cores), speed_(speed), threads_(threads) {}

// Work ends at whole microseconds; what it ended late by is taken off the thread's next piece, so that many
// short ones take no longer than they should.
void Processor::begin(std::size_t thread, double micros, Micros now) {
  proceed(now);
  Thread& own = threads_[thread];
  own.left = std::min(own.left, 0.0) + micros;
  own.working = true;
  ++working_;
}

Micros Processor::next_end() const {
  if (working_ == 0) return kNever;
  double least = std::numeric_limits<double>::infinity();
  for (const Thread& thread : threads_) {
    if (thread.working) least = std::min(least, thread.left);
  }
  return last_ + static_cast<Micros>(std::ceil(std::max(least, 0.0) / rate()));
}

std::vector<std::size_t> Processor::take_ended(Micros now) {
  constexpr double kRounding = 1e-6;  // micros
  proceed(now);
  std::vector<std::size_t> ended;
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    if (!threads_[thread].working || threads_[thread].left > kRounding) continue;
    threads_[thread].working = false;
    --working_;
    ended.push_back(thread);
  }
  return ended;
}

double Processor::rate() const { return speed_ * std::min(1.0, cores_ / static_cast<double>(working_)); }

void Processor::proceed(Micros now) {
  if (working_ > 0) {
    const double done = static_cast<double>(now - last_) * rate();
    for (Thread& thread : threads_) {
      if (thread.working) thread.left -= done;
    }
  }
  last_ = now;
}

}  // namespace adaps
