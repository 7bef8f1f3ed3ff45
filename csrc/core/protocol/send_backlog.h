// What the network has not taken yet of what a channel sent, by peer, and what has to wait for that
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

// Rows and changes that nobody's call asks for are kept back while many of them wait for the same peer: where
// they are, they take no memory, and newer ones take the place of older ones. What calls ask for is bounded
// by how many calls there are; it is not counted, so neither keeps the other waiting for ever.
class SendBacklog {
 public:
  SendBacklog(const Settings& settings, Outbox& outbox, ChannelCounters& counters);

  // Tells how many of the frames to a peer that were drained the network has not taken yet. Without it, it
  // takes all at once.
  void set_frames(std::function<std::size_t(NodeId)> frames);
  // Looks what the network has taken meanwhile.
  void look(Micros now);

  // Whether the network has not taken a frame yet.
  bool untaken(NodeId to, std::uint32_t frame) const;
  // Whether so much waits for the peer that more is kept back.
  bool is_full(NodeId to) const;
  // The message that was appended last, of so many bytes, is one that could have been kept back.
  void add(NodeId to, std::size_t bytes);
  // Something is kept back for the peer.
  void note_waiting(NodeId to);
  // Whether something was kept back since the last call: the network may take at once what it waits for, and
  // then nobody says so.
  bool may_go_on() { return std::exchange(newly_waiting_, false); }

 private:
  const std::size_t limit_;
  Outbox& outbox_;
  ChannelCounters& counters_;
  std::function<std::size_t(NodeId)> frames_;
  std::vector<std::uint32_t> taken_;  // by peer: the last frame that the network has taken
  std::vector<bool> waiting_;         // by peer: something is kept back, for lack of room
  bool any_waiting_ = false;
  bool newly_waiting_ = false;
  Micros last_look_ = 0;
};

}  // namespace adaps
