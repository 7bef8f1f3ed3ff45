// How two nodes convince each other that they belong to one job; no I/O.
//
//   connecting node                     accepting node
//   greeting (who, what, nonce)  --->
//                                <---   greeting
//   proof                        --->
//                                <---   proof
//
// A proof is the HMAC, under the job's secret, of its sender's role and both greetings: it holds for these
// two nonces only, so a recorded one is worthless, and one side's cannot be sent back as the other's. The
// stranger who connects has to prove first.
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

// The other side could not prove that it is a node of this job.
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

// Of the MACs of frames (wire.h), one for each direction of a connection.
struct FrameKeys {
  Digest sending, receiving;
};

class Handshake {
 public:
  enum class Role : std::uint8_t { kConnect, kAccept };

  static Handshake connecting(const SocketOptions& options, NodeId peer, int channel);
  static Handshake accepting(const SocketOptions& options);

  // All that is to be written; only received() appends to it.
  const std::vector<std::byte>& outgoing() const { return outgoing_; }
  // How many bytes to read at most, so that none of what follows the handshake is read; 0 when it is done.
  std::size_t wanted() const;
  // Takes at most wanted() bytes; throws HandshakeRefused.
  void received(std::span<const std::byte> bytes);

  bool done() const { return stage_ == Stage::kDone; }
  // Of the other side; valid when done.
  NodeId peer() const { return theirs_.rank; }
  int channel() const { return static_cast<int>(theirs_.channel); }
  // A sentence when the proven peer was started with something else than this node, or empty.
  std::string conflict() const;
  // Keys that only these two nodes know, for this connection only; nothing if frames go without a MAC.
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
  NodeId expected_ = 0;  // of a connecting node: the rank that it connects to
  Greeting ours_{}, theirs_{};
  std::vector<std::byte> incoming_, outgoing_;
};

}  // namespace adaps
