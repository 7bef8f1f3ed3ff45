// Fuzzes both sides of the handshake. The peer does not have the secret, but may have seen greetings.
#include "transport/handshake.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "target.h"

namespace adaps::fuzz {

namespace {

SocketOptions options_of(NodeId rank) {
  return {.rank = rank,
          .nodes = 3,
          .channels = 2,
          .fingerprint = 77,
          .secret = "the job's secret",
          .peer_timeout_seconds = 5.0};
}

// Size of an input's header. The first byte determines the role, and the second the size of the pieces. The
// peer's messages follow.
constexpr std::size_t kBeforeGreeting = 2;

Bytes example(bool connecting, std::uint8_t piece, const std::vector<std::byte>& said) {
  Bytes bytes{static_cast<std::byte>(connecting ? 1 : 0), std::byte{piece}};
  bytes.insert(bytes.end(), said.begin(), said.end());
  bytes.resize(bytes.size() + sizeof(Digest), std::byte{42});  // an invalid proof
  return bytes;
}

// The first message of an honest node. Its nonce is replaced, because a test with a seed must be
// deterministic.
std::vector<std::byte> greeting() {
  std::vector<std::byte> said = Handshake::connecting(options_of(2), 1, 1).outgoing();
  std::fill(said.end() - 32, said.end(), std::byte{7});
  return said;
}

}  // namespace

std::vector<Bytes> examples() {
  const std::vector<std::byte> said = greeting();
  std::vector<Bytes> all;
  for (const std::uint8_t piece : {0, 6, 255}) {
    all.push_back(example(false, piece, said));
    all.push_back(example(true, piece, said));
  }
  return all;
}

void run(std::span<const std::byte> input) {
  Source source(input);
  const bool connecting = source.byte() % 2 == 1;
  const std::size_t piece = std::size_t{1} + source.byte();
  Handshake handshake =
      connecting ? Handshake::connecting(options_of(2), 1, 1) : Handshake::accepting(options_of(1));
  try {
    while (!source.empty() && handshake.wanted() > 0) {
      handshake.received(source.take(std::min(piece, handshake.wanted())));
      if (handshake.done()) broken("who does not know the secret is refused");
      // An accepting node sends its greeting and no other message to a stranger.
      if (!connecting && handshake.outgoing().size() > sizeof(Greeting))
        broken("the stranger who connects has to prove first");
    }
  } catch (const HandshakeRefused&) {
    return;
  }
}

// An accepting node answers a greeting only if it has the current version.
bool is_current(std::span<const std::byte> input) {
  if (input.size() < kBeforeGreeting + sizeof(Greeting)) return false;
  Handshake handshake = Handshake::accepting(options_of(1));
  try {
    handshake.received(input.subspan(kBeforeGreeting, sizeof(Greeting)));
  } catch (const HandshakeRefused&) {
    return false;
  }
  return !handshake.outgoing().empty();
}

void renew(Bytes& input) {
  constexpr std::size_t kAt = offsetof(Greeting, version);
  constexpr std::size_t kSize = sizeof(Greeting::version);
  const std::vector<std::byte> said = greeting();
  if (input.size() < kBeforeGreeting + kAt + kSize) return;
  std::byte* const theirs = input.data() + kBeforeGreeting;
  std::uint32_t version = 0, current = 0;
  std::memcpy(&version, theirs + kAt, kSize);
  std::memcpy(&current, said.data() + kAt, kSize);
  const bool greets = std::memcmp(theirs, said.data(), sizeof(Greeting::magic)) == 0;
  if (greets && version > 0 && version < current) std::memcpy(theirs + kAt, &current, kSize);
}

}  // namespace adaps::fuzz
