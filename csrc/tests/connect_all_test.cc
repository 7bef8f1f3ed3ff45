// Connecting a cluster: which peers are accepted and refused, and the errors of waiting nodes.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "transport/handshake.h"
#include "transport_cluster.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

int port_of(const std::string& address) {
  std::istringstream fields(address);
  std::string host;
  int port = 0;
  fields >> host >> port;
  return port;
}

// Opens a blocking connection to a port of this host, for peers that do not belong to the job.
int stranger(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

void say(int fd, std::span<const std::byte> bytes) {
  (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // the connection may have been refused already
}

// Reads until `bytes` bytes have arrived or the other side closes.
Frame hear(int fd, std::size_t bytes) {
  Frame heard(bytes);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t n = ::recv(fd, heard.data() + got, bytes - got, 0);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  heard.resize(got);
  return heard;
}

bool closed_by_other_side(int fd) {
  std::byte byte;
  return ::recv(fd, &byte, 1, 0) <= 0;
}

void check_connected(Transports& zero, Transports& one) {
  Events events[2];
  one.front()->send(0, Frame(8));
  CHECK(pump({{zero.front().get(), &events[0]}, {one.front().get(), &events[1]}},
             [&] { return events[0].frames == 1; }));
}

// Node 0 of two, which waits for the other node on a thread.
class Waiting {
 public:
  Waiting() : listener(listen("127.0.0.1", 0)), options(options_of(0, 2)) {
    joined = std::async(std::launch::async, [this] {
      return connect_all(*listener, {listener->address(), "127.0.0.1 1"}, options, {});
    });
  }

  int port() const { return port_of(listener->address()); }
  // Connects the other node with correct options, or as modified by `change`.
  Transports other(const Change& change = {}) const {
    SocketOptions others = options_of(1, 2);
    if (change) change(others);
    const auto own = listen("127.0.0.1", 0);
    return connect_all(*own, {only(Medium::kTcp, listener->address()), own->address()}, others, {});
  }

  void check_other_connects() {
    Transports one = other();
    Transports zero = joined.get();
    check_connected(zero, one);
  }

  std::unique_ptr<Listener> listener;
  SocketOptions options;
  std::future<Transports> joined;
};

}  // namespace

TEST(several_channels_of_several_nodes) {
  constexpr NodeId kNodes = 3;
  constexpr int kChannels = 4;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (NodeId rank = 0; rank < kNodes; ++rank) {
    listeners.push_back(listen("localhost", 0));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::future<Transports>> joining;
  for (NodeId rank = 0; rank < kNodes; ++rank) {
    joining.push_back(std::async(std::launch::async, [&, rank] {
      SocketOptions options = options_of(rank, kNodes);
      options.channels = kChannels;
      return connect_all(*listeners[rank], addresses, options, {});
    }));
  }
  std::vector<Transports> nodes;
  for (auto& node : joining) nodes.push_back(node.get());
  for (std::size_t channel = 0; channel < kChannels; ++channel) {
    Events events[kNodes];
    for (NodeId rank = 0; rank < kNodes; ++rank) {
      REQUIRE(nodes[rank].size() == kChannels);
      events[rank].handle = [&](NodeId from, std::span<const std::byte> payload) {
        CHECK(same(payload, frame_of(32, static_cast<std::uint32_t>(100 * channel + from))));
      };
      for (NodeId peer = 0; peer < kNodes; ++peer)
        if (peer != rank)
          nodes[rank][channel]->send(peer, frame_of(32, static_cast<std::uint32_t>(100 * channel + rank)));
    }
    CHECK(pump(
        {{nodes[0][channel].get(), &events[0]},
         {nodes[1][channel].get(), &events[1]},
         {nodes[2][channel].get(), &events[2]}},
        [&] { return events[0].frames + events[1].frames + events[2].frames == kNodes * (kNodes - 1); }));
  }
}

TEST(a_node_on_another_host_is_reached_by_tcp) {
  Waiting zero;
  const auto own = listen("127.0.0.1", 0);
  // The name of a Unix-domain socket that does not exist on this host.
  const std::string elsewhere = only(Medium::kTcp, zero.listener->address()) + " adaps-0123456789abcdef";
  Transports one = connect_all(*own, {elsewhere, own->address()}, options_of(1, 2), {});
  Transports joined = zero.joined.get();
  check_connected(joined, one);
}

TEST(a_cluster_of_one_has_transports_without_peers) {
  const auto listener = listen("127.0.0.1", 0);
  SocketOptions options = options_of(0, 1);
  options.channels = 2;
  const Transports transports = connect_all(*listener, {listener->address()}, options, {});
  CHECK_EQ(transports.size(), 2u);
  Events events;
  transports[0]->wake();
  transports[0]->poll(kNever, events);
  transports[0]->shutdown(kSecond);
}

TEST(strangers_do_not_disturb) {
  CapturedLog log;
  Waiting zero;
  std::vector<int> strangers;
  for (int i = 0; i < 5; ++i) strangers.push_back(stranger(zero.port()));  // silent
  ::close(stranger(zero.port()));                                          // a port scanner
  const int talker = stranger(zero.port());
  say(talker, frame_of(1 << 16, 1));
  CHECK(closed_by_other_side(talker));
  const int browser = stranger(zero.port());
  say(browser, std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")));
  CHECK(closed_by_other_side(browser));
  const int quitter = stranger(zero.port());  // half a greeting
  const Handshake half = Handshake::connecting(options_of(1, 2), 0, 0);
  say(quitter, std::span(half.outgoing()).first(20));
  ::close(quitter);
  zero.check_other_connects();
  CHECK(log.contains("it does not speak this protocol"));
  CHECK(log.contains("refused a connection from 127.0.0.1:"));
  for (const int fd : strangers) {
    CHECK(closed_by_other_side(fd));  // the port is closed
    ::close(fd);
  }
  ::close(talker);
  ::close(browser);
}

TEST(a_node_can_connect_among_many_strangers) {
  CapturedLog log;
  Waiting zero;
  std::vector<int> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(stranger(zero.port()));
  const Micros start = monotonic_now();
  // the oldest connections are closed
  for (std::size_t i = 0; i < 200; ++i) CHECK(closed_by_other_side(crowd[i]));
  CHECK(monotonic_now() - start < 5 * kSecond);  // the reason is not a timeout
  zero.check_other_connects();
  for (const int fd : crowd) ::close(fd);
}

TEST(a_wrong_secret_is_refused_and_the_right_one_is_accepted_afterwards) {
  CapturedLog log;
  Waiting zero;
  CHECK_THROWS(zero.other([](SocketOptions& options) {
    options.secret = "guessed";
    options.connect_timeout_seconds = 0.5;
  }),
               std::runtime_error, "node 0 (127.0.0.1:");
  CHECK(log.contains("it does not know the job's secret"));
  zero.check_other_connects();
}

TEST(an_impostor_that_listens_at_a_nodes_address_is_refused) {
  // The impostor has the right address but not the secret: it sends a greeting and a random proof.
  const auto listener = listen("127.0.0.1", 0);
  const int impostor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(impostor, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
          ::listen(impostor, 8) == 0);
  ::getsockname(impostor, reinterpret_cast<sockaddr*>(&address), &length);
  std::atomic<bool> stop{false};
  std::thread answering([&] {
    SocketOptions options = options_of(0, 2);
    options.secret = "guessed";
    pollfd watched{impostor, POLLIN, 0};
    while (!stop) {
      if (::poll(&watched, 1, 20) <= 0) continue;
      const int fd = ::accept(impostor, nullptr, nullptr);
      Handshake handshake = Handshake::accepting(options);
      handshake.received(hear(fd, sizeof(Greeting)));
      say(fd, handshake.outgoing());
      hear(fd, sizeof(Digest));  // the impostor cannot use it
      say(fd, frame_of(sizeof(Digest), 3));
      ::close(fd);
    }
  });
  SocketOptions options = options_of(1, 2);
  options.connect_timeout_seconds = 0.5;
  const std::string false_address = "127.0.0.1 " + std::to_string(ntohs(address.sin_port));
  CHECK_THROWS(connect_all(*listener, {false_address, listener->address()}, options, {}), std::runtime_error,
               "it does not know the job's secret");
  stop = true;
  answering.join();
  ::close(impostor);
}

TEST(any_changed_bit_of_a_handshake_ends_it) {
  const SocketOptions zero = options_of(0, 2), one = options_of(1, 2);
  // Flips each bit of two greetings and two proofs, in the order of transmission.
  constexpr std::size_t kBits = 8 * 2 * (sizeof(Greeting) + sizeof(Digest));
  for (std::size_t flipped = 0; flipped <= kBits; ++flipped) {
    Handshake connecting = Handshake::connecting(one, 0, 0), accepting = Handshake::accepting(zero);
    std::size_t bit = 0;
    std::size_t taken[2] = {0, 0};
    const auto pass_on = [&](const Handshake& from, Handshake& to, std::size_t& at) {
      Frame message(from.outgoing().begin() + static_cast<std::ptrdiff_t>(at), from.outgoing().end());
      at = from.outgoing().size();
      if (flipped >= bit && flipped < bit + 8 * message.size())
        message[(flipped - bit) / 8] ^= static_cast<std::byte>(1 << (flipped - bit) % 8);
      bit += 8 * message.size();
      to.received(message);
    };
    bool refused = false;
    try {
      for (int i = 0; i < 2; ++i) {
        pass_on(connecting, accepting, taken[0]);
        pass_on(accepting, connecting, taken[1]);
      }
    } catch (const HandshakeRefused&) {
      refused = true;
    }
    CHECK_EQ(refused, flipped < kBits);
    CHECK_EQ(connecting.done(), flipped == kBits);
  }
}

TEST(a_nodes_own_proof_is_refused_when_it_is_returned) {
  Handshake connecting = Handshake::connecting(options_of(1, 2), 0, 0);
  Handshake accepting = Handshake::accepting(options_of(0, 2));
  accepting.received(connecting.outgoing());
  connecting.received(accepting.outgoing());
  const Frame own_proof(connecting.outgoing().begin() + sizeof(Greeting), connecting.outgoing().end());
  CHECK_EQ(own_proof.size(), sizeof(Digest));
  CHECK_THROWS(connecting.received(own_proof), HandshakeRefused, "secret");
}

TEST(nodes_with_different_settings_are_refused_with_a_reason) {
  const std::pair<Change, const char*> cases[] = {
      {[](SocketOptions& options) { options.fingerprint = 1; }, "different tables; every node"},
      {[](SocketOptions& options) { options.channels = 2; }, "different numbers of channels, "},
      {[](SocketOptions& options) { options.peer_timeout_seconds = 7; }, "different peer timeouts, "},
      {[](SocketOptions& options) { options.workers = 3; }, "different numbers of workers, 1 and 3; every"},
      {[](SocketOptions& options) { options.technique = Technique::kStatic; },
       "different techniques, adaptive and static; every"},
      {[](SocketOptions& options) { options.nonfinite = NonFinite::kSkip; },
       "different policies for gradients that are not finite, raise and skip; every"},
      {[](SocketOptions& options) { options.frame_mac = true; },
       "different kinds of frames, without one and with a MAC; every"},
  };
  for (const auto& [change, reason] : cases) {
    Waiting zero;
    CHECK_THROWS(zero.other(change), std::runtime_error, reason);
    CHECK_THROWS(zero.joined.get(), std::runtime_error, "node 1 and node 0 were started with");
  }
}

TEST(missing_nodes_are_named_at_the_timeout) {
  const auto listener = listen("127.0.0.1", 0);
  const auto deaf = listen("127.0.0.1", 0);  // accepts connections but never answers
  SocketOptions options = options_of(2, 4);
  options.connect_timeout_seconds = 0.5;
  const Micros start = monotonic_now();
  const std::vector<std::string> addresses = {"127.0.0.1 1", deaf->address(), listener->address(),
                                              "127.0.0.1 1"};
  CHECK_THROWS(connect_all(*listener, addresses, options, {}), std::runtime_error,
               "node 0 (127.0.0.1:1: Connection refused)");
  CHECK(monotonic_now() - start >= 500 * kMillisecond);
  CHECK(monotonic_now() - start < 5 * kSecond);
  CHECK_THROWS(connect_all(*listener, addresses, options, {}), std::runtime_error, "it does not answer)");
  CHECK_THROWS(connect_all(*listener, addresses, options, {}), std::runtime_error,
               "node 3 (it did not connect)");
}

TEST(waiting_can_be_interrupted) {
  const auto listener = listen("127.0.0.1", 0);
  struct Interrupt : std::exception {};
  int asked = 0;
  const Micros start = monotonic_now();
  bool interrupted = false;
  try {
    connect_all(*listener, {listener->address(), "127.0.0.1 1"}, options_of(0, 2), [&] {
      if (++asked == 4) throw Interrupt();
    });
  } catch (const Interrupt&) {
    interrupted = true;
  }
  CHECK(interrupted);
  CHECK(monotonic_now() - start < 5 * kSecond);
  CHECK(monotonic_now() - start > 300 * kMillisecond);  // called a few times per second, not constantly
}

TEST(a_node_that_starts_late_is_waited_for) {
  const auto early = listen("127.0.0.1", 0);
  std::string late_address;
  {
    const auto port = listen("127.0.0.1", 0);
    late_address = only(Medium::kTcp, port->address());
  }
  auto joined = std::async(std::launch::async, [&] {
    return connect_all(*early, {late_address, early->address()}, options_of(1, 2), {});
  });
  ::usleep(300'000);
  const auto late = listen("127.0.0.1", static_cast<std::uint16_t>(port_of(late_address)));
  Transports zero = connect_all(*late, {late->address(), early->address()}, options_of(0, 2), {});
  Transports one = joined.get();
  check_connected(zero, one);
}

TEST(errors_name_invalid_arguments) {
  const auto listener = listen("127.0.0.1", 0);
  const std::string own = listener->address();
  const auto with = [&](const Change& change, std::vector<std::string> addresses) {
    SocketOptions options = options_of(1, 2);
    change(options);
    connect_all(*listener, addresses, options, {});
  };
  CHECK_THROWS(with([](SocketOptions& o) { o.rank = 2; }, {own, own}), std::invalid_argument, "rank 2 of 2");
  CHECK_THROWS(with([](SocketOptions& o) { o.secret = ""; }, {own, own}), std::invalid_argument,
               "secret is empty");
  CHECK_THROWS(with([](SocketOptions& o) { o.channels = 0; }, {own, own}), std::invalid_argument,
               "0 channels");
  CHECK_THROWS(with([](SocketOptions& o) { o.peer_timeout_seconds = 0; }, {own, own}), std::invalid_argument,
               "peer timeout");
  CHECK_THROWS(with([](SocketOptions&) {}, {own}), std::invalid_argument, "1 addresses do not fit 2 nodes");
  for (const std::string wrong : {"nonsense", "", "localhost port", "localhost 65536", "localhost -1",
                                  "localhost 1x", "localhost 1 name more"})
    CHECK_THROWS(with([](SocketOptions&) {}, {wrong, own}), std::invalid_argument,
                 "\"" + wrong + "\" is not an address of a node");
  CHECK_THROWS(listen("127.0.0.1", static_cast<std::uint16_t>(port_of(own))), std::runtime_error,
               "cannot listen on 127.0.0.1:" + std::to_string(port_of(own)));
  CHECK_THROWS(listen("203.0.113.1", 0), std::runtime_error, "cannot listen on 203.0.113.1:0");
}
