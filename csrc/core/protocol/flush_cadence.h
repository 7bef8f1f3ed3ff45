// Determines how often the changes of a table's rows are exchanged.
#pragma once

#include <vector>

#include "common/types.h"
#include "protocol/decisions.h"
#include "store/table.h"

namespace adaps {

// The bytes of an exchange are proportional to a row's size. With a longer interval between exchanges, copies
// are older. The sum of both costs is minimal if the interval is proportional to the square root of the size.
// Therefore short rows are exchanged in every round. The long rows of a dense layer, which every step
// changes, are exchanged once in several clocks. A policy can also set the number of clocks for a row. In
// this case only a wait_sync sends the changes earlier.
//
// Rows of a table with equal numbers of clocks form a group. They are due at the same time.
class FlushCadence {
 public:
  explicit FlushCadence(const Tables& tables);

  std::size_t groups() const { return last_.size(); }
  // Returns the group of a key. `table` is the index of its table.
  std::size_t group(const Tables& tables, std::size_t table, Key key) const {
    const std::vector<std::size_t>& found = groups_[table];
    return found[found.size() == 1 ? 0 : decisions().cadence_of(tables[table], key)];
  }
  // Whether a policy has set the number of clocks for the group.
  bool by_clocks(std::size_t group) const { return last_[group].exchange != 0; }
  bool any_by_clocks() const { return any_by_clocks_; }

  // Whether a round at this time exchanges the group's changes.
  bool due(std::size_t group, Micros now, Clock clock) const {
    const Last& last = last_[group];
    if (last.exchange != 0) return decisions().is_due(clock - last.clock, last.exchange);
    return last.interval == 1 || clock - last.clock >= last.interval || now >= latest(group, clock);
  }
  void flushed(std::size_t group, Micros now, Clock clock) {
    last_[group].time = now;
    last_[group].clock = clock;
  }
  // Latest time when the group's changes are due, even if no clock advances. Shortly after an exchange there
  // are few new changes, so this time is later as long as fewer than kSomeClocks clocks have passed.
  Micros latest(std::size_t group, Clock clock) const {
    const Last& last = last_[group];
    return last.time + (clock - last.clock < kSomeClocks ? kLongestPause : kLongest);
  }
  // The clock when the group is due, if a policy has set the number of clocks for it.
  Clock due_at(std::size_t group) const { return last_[group].clock + last_[group].exchange; }

 private:
  static constexpr Clock kSomeClocks = 2;
  static constexpr Micros kLongest = 50'000;
  static constexpr Micros kLongestPause = 200'000;

  struct Last {
    Clock interval = 1;  // clocks between two exchanges, derived from the length
    Clock exchange = 0;  // number of clocks that a policy has set, or 0
    Clock clock = 0;
    Micros time = 0;
  };
  std::vector<Last> last_;                        // by group
  std::vector<std::vector<std::size_t>> groups_;  // by table and management
  bool any_by_clocks_ = false;
};

}  // namespace adaps
