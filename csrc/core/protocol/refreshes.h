// Refreshes from an owner to the holders of a key, and which of them are held back while the network is
// slower than the key is written (docs/design/protocol.md, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/dirty.h"

namespace adaps {

class Refreshes {
 public:
  explicit Refreshes(ChannelContext& channel);

  // Tells how many of the frames to a peer that were drained the network has not taken yet. Without it, it
  // takes all at once.
  void set_backlog(std::function<std::size_t(NodeId)> backlog) { backlog_ = std::move(backlog); }
  // Looks what the network has taken meanwhile.
  void look_at_links();

  // Brings the holder up to date, if it is behind.
  void send(LockedKey& key, Holder& holder);
  void send_or_hold_back(LockedKey& key, Holder& holder);
  // Sends those held back that need not wait any more, as far as the slice goes.
  void send_held_back();
  // Whether send_held_back() may have something to do though nobody says so: the slice did not get through,
  // or the network took at once what a refresh that was held back since the last call waited for.
  bool may_go_on() { return std::exchange(newly_held_back_, false) || more_held_back_; }
  // Gives the keys of all that is held back for the peer, and forgets that it is.
  std::vector<Key> take_held_back(NodeId to);

  // Between these two the peer waits for an ECHO, and nothing is held back for it.
  void expect_echo(NodeId to) { ++echoes_due_[to]; }
  void echo_sent(NodeId to) { --echoes_due_[to]; }

 private:
  // Whether the network has not taken a frame yet.
  bool untaken(NodeId to, std::uint32_t frame) const;

  ChannelContext& channel_;
  std::function<std::size_t(NodeId)> backlog_;
  std::vector<std::uint32_t> taken_;             // by peer: the last frame that the network has taken
  std::vector<std::deque<HeldBack>> held_back_;  // by peer
  std::vector<std::uint32_t> echoes_due_;        // by peer
  bool newly_held_back_ = false;
  bool more_held_back_ = false;  // could be sent now: the slice did not get through
};

}  // namespace adaps
