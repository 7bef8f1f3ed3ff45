#include "protocol/flush_cadence.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {
// Maximum size in bytes of rows, including their optimizer state, that are exchanged in every round.
constexpr double kShort = 16.0;
}  // namespace

FlushCadence::FlushCadence(const Tables& tables) : groups_(tables.size()) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const double bytes = static_cast<double>(tables[i].width() * sizeof(float));
    const Clock interval = std::max<Clock>(1, static_cast<Clock>(std::sqrt(bytes / kShort)));
    const std::size_t first = last_.size();
    for (const Management& management : tables[i].managements()) {
      const auto same = std::find_if(last_.begin() + static_cast<std::ptrdiff_t>(first), last_.end(),
                                     [&](const Last& last) { return last.exchange == management.exchange; });
      groups_[i].push_back(static_cast<std::size_t>(same - last_.begin()));
      if (same == last_.end()) last_.push_back({.interval = interval, .exchange = management.exchange});
      any_by_clocks_ = any_by_clocks_ || management.exchange != 0;
    }
    if (last_.size() == first + 1) groups_[i].resize(1);
  }
}

}  // namespace adaps
