// How often the changes of a table's rows are exchanged.
#pragma once

#include <vector>

#include "common/types.h"
#include "protocol/decisions.h"
#include "store/table.h"

namespace adaps {

// Exchanging a value costs as many bytes as it has; not exchanging it costs freshness, which grows with the
// time since the last exchange. The sum of both is smallest when the time between two exchanges grows with
// the square root of the size. So short rows go with every round, and the long blocks of a dense layer, which
// every step changes, once in several clocks. Rows can also have a number of clocks of their own, which
// nothing but a wait_sync goes below: it sends everything.
//
// Rows of a table that have the same number are a group: they are due together.
class FlushCadence {
 public:
  explicit FlushCadence(const Tables& tables);

  std::size_t groups() const { return last_.size(); }
  // The group of a key of the table with this number.
  std::size_t group(const Tables& tables, std::size_t table, Key key) const {
    const std::vector<std::size_t>& found = groups_[table];
    return found[found.size() == 1 ? 0 : decisions().cadence_of(tables[table], key)];
  }
  // Whether clocks alone decide when a group is due.
  bool by_clocks(std::size_t group) const { return last_[group].exchange != 0; }
  bool any_by_clocks() const { return any_by_clocks_; }

  // Whether a round at this time takes the group's changes along.
  bool due(std::size_t group, Micros now, Clock clock) const {
    const Last& last = last_[group];
    if (last.exchange != 0) return decisions().is_due(clock - last.clock, last.exchange);
    return last.interval == 1 || clock - last.clock >= last.interval || now >= latest(group, clock);
  }
  void flushed(std::size_t group, Micros now, Clock clock) {
    last_[group].time = now;
    last_[group].clock = clock;
  }
  // When the group's changes are due at the latest, if no clock advances. Right after an exchange there is
  // little new to send, so before kSomeClocks clocks have passed the limit is the longer one.
  Micros latest(std::size_t group, Clock clock) const {
    const Last& last = last_[group];
    return last.time + (clock - last.clock < kSomeClocks ? kLongestPause : kLongest);
  }
  // The clock at which a group by clocks is due.
  Clock due_at(std::size_t group) const { return last_[group].clock + last_[group].exchange; }

 private:
  static constexpr Clock kSomeClocks = 2;
  static constexpr Micros kLongest = 50'000;
  static constexpr Micros kLongestPause = 200'000;

  struct Last {
    Clock interval = 1;  // clocks between two exchanges, as the length suggests
    Clock exchange = 0;  // as is said, if it is
    Clock clock = 0;
    Micros time = 0;
  };
  std::vector<Last> last_;                        // by group
  std::vector<std::vector<std::size_t>> groups_;  // by table and management; one if all have the same
  bool any_by_clocks_ = false;
};

}  // namespace adaps
