// The handshake on both sides, against a stranger who does not know the secret but may have seen greetings.
#include "handshake.h"

#include <algorithm>
#include <cstring>

#include "target.h"

namespace adaps::fuzz {

namespace {

SocketOptions options_of(NodeId rank) {
  SocketOptions options;
  options.rank = rank;
  options.nodes = 3;
  options.channels = 2;
  options.fingerprint = 77;
  options.secret = "the job's secret";
  options.peer_timeout_seconds = 5.0;
  return options;
}

// The first byte chooses the role, the second how large the pieces are.
Bytes example(bool connecting, std::uint8_t piece, const std::vector<std::byte>& said) {
  Bytes bytes{static_cast<std::byte>(connecting ? 1 : 0), std::byte{piece}};
  bytes.insert(bytes.end(), said.begin(), said.end());
  bytes.resize(bytes.size() + sizeof(Digest), std::byte{42});  // a proof that is none
  return bytes;
}

}  // namespace

std::vector<Bytes> examples() {
  // What honest nodes say first; their nonces are random, which a test with a seed must not depend on.
  Handshake greeting = Handshake::connecting(options_of(2), 1, 1);
  std::vector<std::byte> said = greeting.outgoing();
  std::fill(said.end() - 32, said.end(), std::byte{7});
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
      // An accepting node greets, and says nothing more to a stranger.
      if (!connecting && handshake.outgoing().size() > sizeof(Greeting))
        broken("the stranger who connects has to prove first");
    }
  } catch (const HandshakeRefused&) {
    return;
  }
}

}  // namespace adaps::fuzz
