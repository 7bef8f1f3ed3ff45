#include "transport/handshake.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

namespace adaps {
namespace {

static_assert(std::endian::native == std::endian::little, "greetings and frame headers are little-endian");

constexpr std::array<char, 8> kMagic = {'A', 'd', 'a', 'P', 'S', '\r', '\n', '\0'};
constexpr std::uint32_t kVersion = 9;

// Returns a text with both values of a setting if the nodes disagree on it.
template <typename Value, typename Text>
std::optional<std::string> difference(const char* what, Value theirs, Value ours, Text text) {
  if (theirs == ours) return std::nullopt;
  return std::string("different ") + what + ", " + text(theirs) + " and " + text(ours) +
         "; every node must be given the same";
}

std::string number(std::uint64_t value) { return std::to_string(value); }
std::string seconds(std::uint64_t micros) {
  return std::to_string(1e-6 * static_cast<double>(micros)) + " s";
}
std::string whether(std::uint8_t value) { return value != 0 ? "with a MAC" : "without one"; }

}  // namespace

Handshake::Handshake(Role role, const SocketOptions& options) : role_(role), secret_(options.secret) {
  ours_.magic = kMagic;
  ours_.fingerprint = options.fingerprint;
  ours_.version = kVersion;
  ours_.rank = options.rank;
  ours_.nodes = options.nodes;
  ours_.channels = static_cast<std::uint32_t>(options.channels);
  ours_.peer_timeout_micros = static_cast<std::uint64_t>(std::llround(options.peer_timeout_seconds * 1e6));
  ours_.workers = static_cast<std::uint32_t>(options.workers);
  ours_.technique = options.technique;
  ours_.nonfinite = options.nonfinite;
  ours_.frame_mac = options.frame_mac ? 1 : 0;
  fill_random(ours_.nonce);
}

Handshake Handshake::connecting(const SocketOptions& options, NodeId peer, int channel) {
  Handshake handshake(Role::kConnect, options);
  handshake.expected_ = peer;
  handshake.greet(static_cast<std::uint32_t>(channel));
  return handshake;
}

Handshake Handshake::accepting(const SocketOptions& options) { return Handshake(Role::kAccept, options); }

std::size_t Handshake::wanted() const {
  switch (stage_) {
    case Stage::kGreeting:
      return sizeof(Greeting) - incoming_.size();
    case Stage::kProof:
      return sizeof(Digest) - incoming_.size();
    case Stage::kDone:
      break;
  }
  return 0;
}

void Handshake::received(std::span<const std::byte> bytes) {
  incoming_.insert(incoming_.end(), bytes.begin(), bytes.end());
  if (stage_ == Stage::kGreeting) {
    // The connection is refused at the first wrong byte, since a stranger may never send a complete greeting.
    const std::size_t shown = std::min(incoming_.size(), kMagic.size());
    if (std::memcmp(incoming_.data(), kMagic.data(), shown) != 0)
      throw HandshakeRefused("it does not speak this protocol");
  }
  if (wanted() != 0) return;
  if (stage_ == Stage::kGreeting) {
    take_greeting();
  } else {
    take_proof();
  }
  incoming_.clear();
}

void Handshake::take_greeting() {
  std::memcpy(&theirs_, incoming_.data(), sizeof theirs_);
  if (theirs_.version != kVersion)
    throw HandshakeRefused("it speaks version " + std::to_string(theirs_.version) + " of the protocol, not " +
                           std::to_string(kVersion));
  if (role_ == Role::kConnect && (theirs_.rank != expected_ || theirs_.channel != ours_.channel))
    throw HandshakeRefused("it claims to be " + name_of(theirs_.rank) + ", channel " +
                           std::to_string(theirs_.channel) + ", not " + name_of(expected_) + ", channel " +
                           std::to_string(ours_.channel));
  if (role_ == Role::kAccept) greet(theirs_.channel);
  if (role_ == Role::kConnect) send(proof_of(role_));
  stage_ = Stage::kProof;
}

void Handshake::take_proof() {
  Digest proof;
  std::memcpy(proof.data(), incoming_.data(), proof.size());
  const Role other = role_ == Role::kConnect ? Role::kAccept : Role::kConnect;
  if (!equal_in_constant_time(proof, proof_of(other)))
    throw HandshakeRefused("it does not know the job's secret");
  if (role_ == Role::kAccept) send(proof_of(role_));
  stage_ = Stage::kDone;
}

std::string Handshake::conflict() const {
  const std::string both = name_of(theirs_.rank) + " and " + name_of(ours_.rank) + " were started with ";
  const auto name = [](auto value) { return std::string(name_of(value)); };
  for (const std::optional<std::string>& found : {
           difference("numbers of nodes", theirs_.nodes, ours_.nodes, number),
           difference("numbers of channels", theirs_.channels, ours_.channels, number),
           difference("numbers of workers", theirs_.workers, ours_.workers, number),
           difference("techniques", theirs_.technique, ours_.technique, name),
           difference("policies for gradients that are not finite", theirs_.nonfinite, ours_.nonfinite, name),
           difference("peer timeouts", theirs_.peer_timeout_micros, ours_.peer_timeout_micros, seconds),
           difference("kinds of frames", theirs_.frame_mac, ours_.frame_mac, whether),
       }) {
    if (found) return both + *found;
  }
  if (theirs_.fingerprint != ours_.fingerprint)
    return both +
           "different tables; every node must be given the same ones in the same order, with the same names, "
           "rows, lengths, optimizers and initial values, and the same policy";
  const bool sensible = theirs_.rank < ours_.nodes && theirs_.channel < ours_.channels &&
                        (role_ == Role::kConnect ? theirs_.rank < ours_.rank : theirs_.rank > ours_.rank);
  if (!sensible) return both + "ranks or channels that do not fit each other";
  return {};
}

void Handshake::greet(std::uint32_t channel) {
  ours_.channel = channel;
  send(std::as_bytes(std::span(&ours_, 1)));
}

std::optional<FrameKeys> Handshake::frame_keys() const {
  if (ours_.frame_mac == 0) return std::nullopt;
  const Digest connecting = digest("frames of the connecting node");
  const Digest accepting = digest("frames of the accepting node");
  return role_ == Role::kConnect ? FrameKeys{connecting, accepting} : FrameKeys{accepting, connecting};
}

Digest Handshake::proof_of(Role role) const {
  return digest(role == Role::kConnect ? "connecting" : "accepting");
}

// Returns the HMAC of a title and both greetings, with the job's secret as the key.
Digest Handshake::digest(std::string_view title) const {
  Hmac hmac(std::as_bytes(std::span(secret_)));
  hmac.update(std::as_bytes(std::span(title)));
  hmac.update(std::as_bytes(std::span(role_ == Role::kConnect ? &ours_ : &theirs_, 1)));
  hmac.update(std::as_bytes(std::span(role_ == Role::kConnect ? &theirs_ : &ours_, 1)));
  return hmac.finish();
}

void Handshake::send(std::span<const std::byte> bytes) {
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

}  // namespace adaps
