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

// While many rows and changes wait for the same peer, further ones that no call has requested are kept back.
// Kept-back rows and changes take no memory, and newer changes are merged into older ones. The number of
// calls limits the rows that calls have requested; these rows are not counted, so that neither kind blocks
// the other forever.
class SendBacklog {
 public:
  SendBacklog(const Settings& settings, Outbox& outbox, ChannelCounters& counters);

  // Sets a function that returns how many drained frames to a peer the network has not taken yet. By default
  // the network takes all frames at once.
  void set_frames(std::function<std::size_t(NodeId)> frames);
  // Updates the number of frames that the network has taken.
  void look(Micros now);

  // Whether the frame is one that the network has not taken yet.
  bool untaken(NodeId to, std::uint32_t frame) const;
  // Whether the limit for the peer is reached, so that further rows and changes are kept back.
  bool is_full(NodeId to) const;
  // Counts the last appended message, which has `bytes` bytes. Must be called only for messages that may be
  // kept back.
  void add(NodeId to, std::size_t bytes);
  // Records that a row or change is kept back for the peer.
  void note_waiting(NodeId to);
  // Whether a row or change was kept back since the last call of this function. The channel must then check
  // again, because the network may take a frame at once, without any event that reports it.
  bool may_go_on() { return std::exchange(newly_waiting_, false); }

 private:
  const std::size_t limit_;
  Outbox& outbox_;
  ChannelCounters& counters_;
  std::function<std::size_t(NodeId)> frames_;
  std::vector<std::uint32_t> taken_;  // by peer: the last frame that the network has taken
  std::vector<bool> waiting_;         // by peer: rows or changes are kept back because the limit is reached
  bool any_waiting_ = false;
  bool newly_waiting_ = false;
  Micros last_look_ = 0;
};

}  // namespace adaps
