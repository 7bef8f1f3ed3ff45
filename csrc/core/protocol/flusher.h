// When changes of keys go out (docs/concepts/protocol.md, section 8).
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

class Flusher {
 public:
  Flusher(ChannelContext& channel, Replicas& replicas);

  // Sends the changes of dirty keys, as far as the slice goes, or defers them if they are not due yet. If a
  // flush is still under way, the keys join it, but for those of which clocks decide when they are due.
  void flush(bool everything);
  void continue_flush();
  bool under_way() const { return next_ < keys_.size(); }
  // Whether a flush of everything would have something to send.
  bool has_dirty() const { return !channel_.partition.dirty.empty() || any_deferred_; }

  // Asks for a flush as soon as the network has room.
  void request() { wanted_ = channel_.now; }
  bool due() const { return channel_.now >= std::max(wanted_, allowed_); }
  // When the next flush is due; kNever if nothing waits for one.
  Micros next() const { return wanted_ == kNever ? kNever : std::max(wanted_, allowed_); }
  // Sends changes that were kept back because too much waited for their owners, as far as the slice goes.
  void send_kept_back();
  // Those for an owner to which a frame leaves now.
  void send_kept_back(NodeId owner);
  // Whether the slice did not get through.
  bool may_go_on() const { return more_kept_back_; }
  // Bytes that were sent for flushes, later: they count for when the next one is allowed.
  void count(std::uint64_t bytes) { bytes_ += bytes; }

  // Keys that were ever to be flushed, and that were.
  std::uint64_t end() const { return end_; }
  std::uint64_t flushed() const { return flushed_; }

 private:
  void flush_key(Key number, bool at_once);
  void keep_back(LockedKey& key);
  void leave_now(LockedKey& key);
  void finish();
  void let_wait();
  std::size_t group_of(Key key, const Table*& hint) const;
  Clock newest_clock() const;

  ChannelContext& channel_;
  Replicas& replicas_;
  FlushCadence cadence_;
  Micros allowed_ = 0;                      // not before, so that the network is not filled
  Micros wanted_ = kNever;                  // at the latest
  std::vector<std::vector<Key>> deferred_;  // by group of the cadence
  bool any_deferred_ = false;
  std::vector<bool> due_;  // by group
  std::vector<Key> newly_dirty_;
  std::vector<std::deque<Key>> kept_back_;  // by owner
  NodeSet room_awaited_;                    // owners for which something is kept back until there is room
  bool more_kept_back_ = false;
  // of the flush that is under way
  std::vector<Key> keys_;
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0;
  // of all flushes
  std::uint64_t end_ = 0;
  std::uint64_t flushed_ = 0;
};

}  // namespace adaps
