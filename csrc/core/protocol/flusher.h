// Determines when changes of keys are sent (docs/concepts/protocol.md, section 8).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/node_set.h"
#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/flush_cadence.h"
#include "protocol/replicas.h"

namespace adaps {

// The changes that a flush sends in addition to those that are due.
enum class Beyond : std::uint8_t {
  kNothing = 0,
  kRefreshes = 1,  // new values of owned keys
  kChanges = 2,    // changes of replicas
  kEverything = 3,
};
constexpr Beyond operator|(Beyond a, Beyond b) {
  return static_cast<Beyond>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool includes(Beyond all, Beyond some) { return (all | some) == all; }
constexpr bool have_common(Beyond a, Beyond b) {
  return (static_cast<std::uint8_t>(a) & static_cast<std::uint8_t>(b)) != 0;
}
constexpr Beyond all_but(Beyond some) {
  return static_cast<Beyond>(static_cast<std::uint8_t>(Beyond::kEverything) &
                             ~static_cast<std::uint8_t>(some));
}

class Flusher {
 public:
  Flusher(ChannelContext& channel, Replicas& replicas);

  // Sends the changes of as many dirty keys as the slice allows. Other changes that are not due yet are
  // deferred. If a flush has already begun, this one joins it, and all changes are sent.
  void flush(Beyond beyond);
  void continue_flush();
  bool under_way() const { return next_ < keys_.size(); }
  // Whether a flush of these changes might send a message.
  bool has_dirty(Beyond some) const {
    return !channel_.partition.dirty.empty() || have_common(deferred_kinds_, some);
  }

  // Requests a flush as soon as the rate limit allows it.
  void request() { wanted_ = channel_.now; }
  // Requests a flush because a wait_sync needs it. The rate limit delays it only briefly.
  void request_for_sync() {
    request();
    allowed_ = std::min(allowed_, ended_ + kLongestDelay);
  }
  // Whether a flush that no worker waits for may begin.
  bool due() const;
  // Time of the next flush; kNever if no change waits for one.
  Micros next() const { return wanted_ == kNever ? kNever : std::max(wanted_, allowed_); }
  // Sends changes that were kept back because too many bytes waited for their owners, as many as the slice
  // allows.
  void send_kept_back();
  // Sends the kept-back changes for an owner when a frame to it leaves.
  void send_kept_back(NodeId owner);
  // Whether some of these changes remain because the slice was used up.
  bool may_go_on() const { return more_kept_back_; }
  // Counts bytes that belong to a flush but were sent later. They delay the next flush according to the rate
  // limit.
  void count(std::uint64_t bytes) { bytes_ += bytes; }

  // Total number of keys in all flushes so far, and the number of those that were processed.
  std::uint64_t end() const { return end_; }
  std::uint64_t flushed() const { return flushed_; }

 private:
  // Maximum time by which the rate limit delays a flush that a wait_sync needs.
  static constexpr Micros kLongestDelay = 2'000;

  void flush_key(Key number, bool at_once);
  void keep_back(LockedKey& key);
  void leave_now(LockedKey& key);
  bool goes_beyond(Key key) const;
  void finish();
  void let_wait();
  std::size_t group_of(Key key, const Table*& hint) const;
  Clock newest_clock() const;

  ChannelContext& channel_;
  Replicas& replicas_;
  FlushCadence cadence_;
  Micros allowed_ = 0;                        // earliest time of the next flush, because of the rate limit
  Micros wanted_ = kNever;                    // latest time of the next flush
  Micros ended_ = -kLongestDelay;             // end of the last flush
  std::vector<std::vector<Key>> deferred_;    // by group of the cadence
  Beyond deferred_kinds_ = Beyond::kNothing;  // kinds of changes that may be among the deferred ones
  std::vector<bool> due_;                     // by group
  std::vector<Key> newly_dirty_;
  std::vector<std::deque<Key>> kept_back_;  // by owner
  NodeSet room_awaited_;                    // owners whose links must have space first
  bool more_kept_back_ = false;
  // The flush that has begun:
  std::vector<Key> keys_;
  std::size_t next_ = 0;
  Beyond beyond_ = Beyond::kNothing;
  std::uint64_t bytes_ = 0;
  // All flushes:
  std::uint64_t end_ = 0;
  std::uint64_t flushed_ = 0;
};

}  // namespace adaps
