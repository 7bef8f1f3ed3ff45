#include "protocol/frame_wait.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
// Up to this number of nodes, it costs almost nothing to send a frame to each node in every round.
constexpr double kFew = 8.0;
// These constants are multiplied by the square root of the number of nodes beyond kFew.
constexpr double kMicros = 1500.0;
constexpr double kClocks = 0.15;
}  // namespace

Micros frame_wait(const Settings& settings, double pace) {
  if (settings.frame_wait) return *settings.frame_wait;
  const double root = std::sqrt(std::max(static_cast<double>(settings.nodes) - kFew, 0.0));
  double micros = kMicros;
  if (pace > 0.0) micros = std::min(micros, kClocks / pace);
  return static_cast<Micros>(micros * root);
}

}  // namespace adaps
