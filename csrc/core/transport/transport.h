// The interface between the protocol and a network.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"

namespace adaps {

using Frame = std::vector<std::byte>;

// Maximum payload of a frame in bytes. A peer is disconnected if the header of a frame has a larger length.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;

// Time without a message after which a peer counts as down. It is shorter than the peer timeout, so that
// callers learn of the loss within the timeout although the detection takes time.
constexpr Micros patience(Micros peer_timeout) { return peer_timeout - peer_timeout / 8; }

// Frames of one channel between all nodes. Each ordered pair of nodes is reliable and in order. Frames of
// different pairs have no order.
class Transport {
 public:
  virtual ~Transport() = default;
  // Takes the frame's bytes and never blocks. Frames to a peer that is down are dropped.
  virtual void send(NodeId to, Frame frame) = 0;
  // Number of frames to the peer that the network has not accepted yet.
  virtual std::size_t backlog(NodeId to) const = 0;
};

// Callbacks on the channel's thread.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // If it throws ProtocolError, the connection is closed and the error is logged.
  virtual void on_frame(NodeId from, std::span<const std::byte> payload) = 0;
  virtual void on_peer_down(NodeId peer, const std::string& reason) = 0;
  // The network has accepted the frame. Its memory may be reused.
  virtual void on_sent(Frame frame) = 0;
};

}  // namespace adaps
