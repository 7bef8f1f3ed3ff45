// The handshake by which two nodes prove to each other that they belong to one job. It does no I/O.
//
//   connecting node                     accepting node
//   greeting (who, what, nonce)  --->
//                                <---   greeting
//   proof                        --->
//                                <---   proof
//
// A proof is an HMAC with the job's secret as the key. It covers the sender's role and both greetings. A
// proof is only valid for the two nonces in the greetings, so a recorded proof is useless, and a node's proof
// cannot be returned to it as the other node's. The connecting node has to send its proof first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "transport/hmac.h"
#include "transport/socket_transport.h"

namespace adaps {

// The other side did not prove that it is a node of this job.
class HandshakeRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Greeting {
  std::array<char, 8> magic;
  std::uint64_t fingerprint;
  std::uint32_t version;
  NodeId rank, nodes;
  std::uint32_t channel, channels;
  std::uint64_t peer_timeout_micros;
  std::uint32_t workers;
  Technique technique;
  NonFinite nonfinite;
  std::uint8_t frame_mac;
  std::uint8_t unused;
  std::array<std::byte, 32> nonce;
};
static_assert(sizeof(Greeting) == 80, "sent as it is in memory, without padding");

// Keys for the MACs of frames (framing.h), one for each direction of a connection.
struct FrameKeys {
  Digest sending, receiving;
};

class Handshake {
 public:
  enum class Role : std::uint8_t { kConnect, kAccept };

  static Handshake connecting(const SocketOptions& options, NodeId peer, int channel);
  static Handshake accepting(const SocketOptions& options);

  // All bytes to be sent. Only received() appends to them.
  const std::vector<std::byte>& outgoing() const { return outgoing_; }
  // Maximum number of bytes to read, so that no byte after the handshake is read. 0 when the handshake is
  // complete.
  std::size_t wanted() const;
  // Processes at most wanted() bytes. Throws HandshakeRefused.
  void received(std::span<const std::byte> bytes);

  bool done() const { return stage_ == Stage::kDone; }
  // Rank and channel of the other node. Only valid when the handshake is complete.
  NodeId peer() const { return theirs_.rank; }
  int channel() const { return static_cast<int>(theirs_.channel); }
  // A sentence about a setting that differs between the authenticated peer and this node. Empty if there is
  // none.
  std::string conflict() const;
  // Keys for this connection, which only these two nodes can compute. Empty if frames have no MAC.
  std::optional<FrameKeys> frame_keys() const;

 private:
  enum class Stage : std::uint8_t { kGreeting, kProof, kDone };

  Handshake(Role role, const SocketOptions& options);
  void greet(std::uint32_t channel);
  void take_greeting();
  void take_proof();
  Digest digest(std::string_view title) const;
  Digest proof_of(Role role) const;
  void send(std::span<const std::byte> bytes);

  Role role_;
  Stage stage_ = Stage::kGreeting;
  std::string secret_;
  NodeId expected_ = 0;  // connecting nodes only: the rank to which this node connects
  Greeting ours_{}, theirs_{};
  std::vector<std::byte> incoming_, outgoing_;
};

}  // namespace adaps
