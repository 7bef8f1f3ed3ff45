// Sends refreshes from an owner to a key's holders. Refreshes are held back while the network is slower than
// the writes, while too many bytes wait for the holder, and until a frame to the holder leaves
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

  // Sends the current value to the holder, unless the holder already has it. Returns the size of the message
  // in bytes.
  std::size_t send(LockedKey& key, Holder& holder);
  void send_or_hold_back(LockedKey& key, Holder& holder);
  // Sends held-back refreshes for which the network has space, as many as the slice allows.
  void send_held_back();
  // Sends the held-back refreshes for a node when a frame to it leaves.
  void send_held_back(NodeId to);
  // Whether some of these refreshes remain because the slice was used up.
  bool may_go_on() const { return more_held_back_; }
  // Total number of refreshes that were held back for the peer so far.
  std::uint64_t held_back(NodeId to) const { return ever_held_back_[to]; }
  // Number of these refreshes that are no longer held back.
  std::uint64_t sent_later(NodeId to) const { return ever_held_back_[to] - held_back_[to].size(); }

  // Called when the peer starts to wait for an ECHO. Until echo_sent(), refreshes for it are held back only
  // for lack of space.
  void expect_echo(NodeId to);
  void echo_sent(NodeId to) { --echoes_due_[to]; }

 private:
  // Whether a refresh must wait for the network. `frame` is the frame with the key's previous refresh to the
  // peer.
  bool waits_for_network(NodeId to, std::uint32_t frame) const;
  // Whether a refresh must wait for the next frame.
  bool waits_for_frame(NodeId to) const;

  ChannelContext& channel_;
  std::vector<std::deque<HeldBack>> held_back_;  // by peer
  NodeSet network_awaited_;  // peers with refreshes that are held back until the network has space
  std::vector<std::uint64_t> ever_held_back_;  // by peer
  std::vector<std::uint32_t> echoes_due_;      // by peer
  bool more_held_back_ = false;                // the slice ended before all were sent
};

}  // namespace adaps
