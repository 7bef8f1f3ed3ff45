// Refreshes from an owner to the holders of a key, and which of them are held back: while the network is
// slower than the key is written, while too much waits for the holder, and until a frame leaves for it
// (docs/concepts/protocol.md, sections 4, 8 and 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/node_set.h"
#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/dirty_list.h"

namespace adaps {

class Refreshes {
 public:
  explicit Refreshes(ChannelContext& channel);

  // Brings the holder up to date, if it is behind. Gives the bytes of the message.
  std::size_t send(LockedKey& key, Holder& holder);
  void send_or_hold_back(LockedKey& key, Holder& holder);
  // Sends those held back for which the network has room again, as far as the slice goes.
  void send_held_back();
  // Those for a node to which a frame leaves now.
  void send_held_back(NodeId to);
  // Whether send_held_back() has more to do: the slice did not get through.
  bool may_go_on() const { return more_held_back_; }
  // How many were ever held back for the peer,
  std::uint64_t held_back(NodeId to) const { return ever_held_back_[to]; }
  // and how many of those are not any more.
  std::uint64_t sent_later(NodeId to) const { return ever_held_back_[to] - held_back_[to].size(); }

  // Between these two the peer waits for an ECHO: only for lack of room is anything held back for it.
  void expect_echo(NodeId to);
  void echo_sent(NodeId to) { --echoes_due_[to]; }

 private:
  // Whether a refresh has to wait for the network whose key's last one to the peer went with this frame,
  bool waits_for_network(NodeId to, std::uint32_t frame) const;
  // and whether it has to wait for the next frame.
  bool waits_for_frame(NodeId to) const;

  ChannelContext& channel_;
  std::vector<std::deque<HeldBack>> held_back_;  // by peer
  NodeSet network_awaited_;                      // peers for which something is held back until it has room
  std::vector<std::uint64_t> ever_held_back_;    // by peer
  std::vector<std::uint32_t> echoes_due_;        // by peer
  bool more_held_back_ = false;                  // could be sent now: the slice did not get through
};

}  // namespace adaps
