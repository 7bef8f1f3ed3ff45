#include "replay/processor.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace adaps {

Processor::Processor(int cores, double speed, std::size_t threads)
    : cores_(cores), speed_(speed), threads_(threads) {}

// Work ends at full microseconds. The rounding error is subtracted from the thread's next piece of work, so
// that many short pieces take the right time in total.
void Processor::begin(std::size_t thread, double micros, Micros now) {
  proceed(now);
  Thread& own = threads_[thread];
  own.left = std::min(own.left, 0.0) + micros;
  own.working = true;
  if (own.runs()) ++running_;
}

Micros Processor::next_end() const {
  if (running_ == 0) return kNever;
  double least = std::numeric_limits<double>::infinity();
  for (const Thread& thread : threads_) {
    if (thread.runs()) least = std::min(least, std::max(thread.left, 0.0) / thread.factor);
  }
  return last_ + static_cast<Micros>(std::ceil(least / (speed_ * share())));
}

std::vector<std::size_t> Processor::take_ended(Micros now) {
  constexpr double kRounding = 1e-6;  // in microseconds
  proceed(now);
  std::vector<std::size_t> ended;
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    if (!threads_[thread].runs() || threads_[thread].left > kRounding) continue;
    threads_[thread].working = false;
    --running_;
    ended.push_back(thread);
  }
  return ended;
}

void Processor::slow_down(std::size_t thread, double factor, Micros now) {
  proceed(now);
  threads_[thread].factor = factor;
}

void Processor::suspend(std::size_t thread, Micros now) {
  proceed(now);
  if (threads_[thread].runs()) --running_;
  threads_[thread].suspended = true;
}

void Processor::resume(std::size_t thread, Micros now) {
  proceed(now);
  threads_[thread].suspended = false;
  if (threads_[thread].runs()) ++running_;
}

double Processor::share() const { return std::min(1.0, cores_ / static_cast<double>(running_)); }

void Processor::proceed(Micros now) {
  if (running_ > 0) {
    const double done = static_cast<double>(now - last_) * speed_ * share();
    for (Thread& thread : threads_) {
      if (thread.runs()) thread.left -= done * thread.factor;
    }
  }
  last_ = now;
}

}  // namespace adaps
