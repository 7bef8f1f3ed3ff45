// What the protocol needs of a network, and nothing more.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"

namespace adaps {

using Frame = std::vector<std::byte>;

// Longest payload of a frame; a peer that announces a longer one is disconnected.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;

// For how long a peer may say nothing before it is down: less than the timeout, so that callers hear of the
// loss within it although noticing takes time, too.
constexpr Micros patience(Micros peer_timeout) { return peer_timeout - peer_timeout / 8; }

// Frames of one channel between all nodes: reliable and in order for each ordered pair of nodes; no order
// between different pairs.
class Transport {
 public:
  virtual ~Transport() = default;
  // Takes the frame's bytes; never blocks. Frames to a peer that is down are dropped.
  virtual void send(NodeId to, Frame frame) = 0;
  // How many frames to the peer the network has not taken yet.
  virtual std::size_t backlog(NodeId to) const = 0;
};

// Called on the channel's thread.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // A ProtocolError that escapes closes the connection and is logged.
  virtual void on_frame(NodeId from, std::span<const std::byte> payload) = 0;
  virtual void on_peer_down(NodeId peer, const std::string& reason) = 0;
  // The network has taken the frame, and its memory is free for another.
  virtual void on_sent(Frame frame) = 0;
};

}  // namespace adaps
