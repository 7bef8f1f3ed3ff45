// How often the changes of a table are exchanged.
#pragma once

#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

// Exchanging a value costs as many bytes as it has; not exchanging it costs freshness, which grows with the
// time since the last exchange. The sum of both is smallest when the time between two exchanges grows with
// the square root of the size. So short rows go with every round, and the long blocks of a dense layer, which
// every step changes, once in several clocks. A wait_sync does not wait for this: it sends everything.
class FlushCadence {
 public:
  explicit FlushCadence(const Tables& tables);

  // Whether a round at this time takes the table's changes along.
  bool due(std::size_t table, Micros now, Clock clock) const {
    const Last& last = last_[table];
    return last.interval == 1 || clock - last.clock >= last.interval || now >= latest(table, clock);
  }
  void flushed(std::size_t table, Micros now, Clock clock) {
    last_[table].time = now;
    last_[table].clock = clock;
  }
  // When the table's changes are due at the latest, if no clock advances. Right after an exchange there is
  // little new to send, so before kSomeClocks clocks have passed the limit is the longer one.
  Micros latest(std::size_t table, Clock clock) const {
    const Last& last = last_[table];
    return last.time + (clock - last.clock < kSomeClocks ? kLongestPause : kLongest);
  }

 private:
  static constexpr Clock kSomeClocks = 2;
  static constexpr Micros kLongest = 50'000;
  static constexpr Micros kLongestPause = 200'000;

  struct Last {
    Clock interval = 1;  // clocks between two exchanges
    Clock clock = 0;
    Micros time = 0;
  };
  std::vector<Last> last_;
};

}  // namespace adaps
