#include "protocol/flush_cadence.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
// Bytes of value and state that go with every round.
constexpr double kShort = 16.0;
}  // namespace

FlushCadence::FlushCadence(const Tables& tables) : last_(tables.size()) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const double bytes = static_cast<double>(tables[i].width() * sizeof(float));
    last_[i].interval = std::max<Clock>(1, static_cast<Clock>(std::sqrt(bytes / kShort)));
  }
}

}  // namespace adaps
