// Frames of a channel that the network has not taken yet, by peer, and the limit on them
// (docs/concepts/protocol.md, section 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/outbox.h"

namespace adaps {

// Rows and changes that no call requested are kept back while many of them wait for the same peer. Kept back,
// they take no memory, and newer changes merge into older ones. Rows that calls requested are bounded by the
// number of calls; they are not counted, so that neither kind blocks the other forever.
class SendBacklog {
 public:
  SendBacklog(const Settings& settings, Outbox& outbox, ChannelCounters& counters);

  // Sets a function that returns how many drained frames to a peer the network has not taken yet. By default
  // the network takes all frames at once.
  void set_frames(std::function<std::size_t(NodeId)> frames);
  // Updates the number of frames that the network has taken.
  void look(Micros now);

  // Whether the network has not taken a frame yet.
  bool untaken(NodeId to, std::uint32_t frame) const;
  // Whether the limit for the peer is reached, so that more is kept back.
  bool is_full(NodeId to) const;
  // Counts the last appended message, which has `bytes` bytes. It must be a message that could have been kept
  // back.
  void add(NodeId to, std::size_t bytes);
  // Notes that something is kept back for the peer.
  void note_waiting(NodeId to);
  // Whether something was kept back since the last call. The network may take the awaited frame at once,
  // without any event that reports it.
  bool may_go_on() { return std::exchange(newly_waiting_, false); }

 private:
  const std::size_t limit_;
  Outbox& outbox_;
  ChannelCounters& counters_;
  std::function<std::size_t(NodeId)> frames_;
  std::vector<std::uint32_t> taken_;  // by peer: the last frame that the network has taken
  std::vector<bool> waiting_;         // by peer: something is kept back because the limit is reached
  bool any_waiting_ = false;
  bool newly_waiting_ = false;
  Micros last_look_ = 0;
};

}  // namespace adaps
