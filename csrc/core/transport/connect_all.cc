// Connects all nodes to each other. On every channel, a node connects to every lower rank, and every higher
// rank connects to it. One thread does all of this in one poll() loop. A stranger can only occupy a slot for
// a limited time.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/log.h"
#include "transport/descriptor.h"
#include "transport/endpoint.h"
#include "transport/event_loop.h"
#include "transport/handshake.h"
#include "transport/make_transport.h"
#include "transport/socket_transport.h"

namespace adaps {
namespace {

constexpr Micros kAskInterval = 200'000;          // between two calls of `interrupted`
constexpr Micros kFirstRetry = 20'000;            // doubles up to kAskInterval
constexpr Micros kConnectPatience = 5'000'000;    // time for a host to answer
constexpr Micros kStrangerPatience = 10'000'000;  // time for a connecting peer to finish the handshake
constexpr Micros kAcceptPause = 100'000;          // time to wait if the process has no descriptors left
constexpr int kReportedRefusals = 20;  // limits the log, as a node with another secret tries repeatedly
// concurrent connections in addition to those from nodes that are not connected yet
constexpr std::size_t kMoreStrangers = 64;

// A connection that this node must make.
struct Goal {
  Goal(NodeId peer, int channel) : peer(peer), channel(channel) {}

  NodeId peer;
  int channel;
  std::vector<Endpoint> endpoints;  // the peer's endpoints; empty until its address was looked up
  std::size_t next_endpoint = 0;    // index of the endpoint to try next
  Micros not_before = 0;
  Micros pause = kFirstRetry;
  std::string problem;
  // the peer's own reason to refuse, which is reported instead of a later failure to reach it
  std::string refusal;
};

// A connection during its handshake.
struct Conversation {
  Descriptor socket;
  Handshake handshake;
  Micros deadline;
  Goal* goal;  // null if the peer connected to this node
  std::string with;
  bool connecting;
  std::size_t written = 0;
  bool agreed = false;  // both nodes have agreed whether frames use shared memory
  std::unique_ptr<SharedStreams> shared = {};

  bool offers() const { return !goal && handshake.done() && !agreed; }
  bool wants_to_write() const { return connecting || written < handshake.outgoing().size() || offers(); }
};

class Mesh {
 public:
  Mesh(Listener& listener, const std::vector<std::string>& addresses, const SocketOptions& options);
  // Returns the connections, indexed by channel and rank.
  std::vector<std::vector<Connection>> connect(const std::function<void()>& interrupted);

 private:
  void pursue_goals(Micros now);
  void try_next_endpoint(Goal& goal, Micros now);
  void try_again_later(Goal& goal, const std::string& problem, Micros now);
  void wait(Micros until);
  void accept_all(const Descriptor& listening, Micros now);
  void make_room();
  // Returns false when the conversation has ended, successfully or not.
  bool advance(Conversation& talk, Micros now);
  bool exchange(Conversation& talk);
  bool agree_on_memory(Conversation& talk);
  void settle(Conversation& talk);
  void give_up(Conversation& talk, const std::string& why, Micros now);
  std::string missing() const;

  Listener::Sockets& listening_;
  const std::vector<std::string>& addresses_;
  const SocketOptions& options_;
  std::vector<std::unique_ptr<Goal>> goals_;
  std::vector<std::unique_ptr<Conversation>> talks_;  // oldest first
  std::vector<std::vector<Connection>> connections_;
  std::size_t unconnected_;
  Micros accept_not_before_ = 0;
  int refusals_ = 0;
};

std::string text_of(int error) { return std::generic_category().message(error); }

Mesh::Mesh(Listener& listener, const std::vector<std::string>& addresses, const SocketOptions& options)
    : listening_(listener.sockets()),
      addresses_(addresses),
      options_(options),
      connections_(static_cast<std::size_t>(options.channels)),
      unconnected_(connections_.size() * (options.nodes - 1U)) {
  for (auto& channel : connections_) channel.resize(options.nodes);
  for (int channel = 0; channel < options.channels; ++channel) {
    for (NodeId peer = 0; peer < options.rank; ++peer)
      goals_.push_back(std::make_unique<Goal>(peer, channel));
  }
}

std::vector<std::vector<Connection>> Mesh::connect(const std::function<void()>& interrupted) {
  const Micros start = monotonic_now();
  const Micros deadline = start + static_cast<Micros>(options_.connect_timeout_seconds * 1e6);
  Micros ask_at = start;
  while (unconnected_ > 0) {
    Micros now = monotonic_now();
    if (now >= ask_at) {
      if (interrupted) interrupted();
      ask_at = now + kAskInterval;
    }
    if (now >= deadline) throw std::runtime_error(missing());
    pursue_goals(now);
    wait(std::min(ask_at, deadline));
    now = monotonic_now();
    if (now >= accept_not_before_) {
      accept_all(listening_.tcp, now);
      accept_all(listening_.unix_domain, now);
    }
    std::erase_if(talks_, [&](const auto& talk) { return !advance(*talk, now); });
  }
  listening_.tcp.reset();
  listening_.unix_domain.reset();
  return std::move(connections_);
}

void Mesh::pursue_goals(Micros now) {
  for (const auto& goal : goals_) {
    if (now >= goal->not_before) try_next_endpoint(*goal, now);
  }
}

void Mesh::try_next_endpoint(Goal& goal, Micros now) {
  if (goal.endpoints.empty()) {
    try {
      goal.endpoints = endpoints(addresses_[goal.peer]);
    } catch (const std::runtime_error& error) {  // a name server may become available later
      return try_again_later(goal, error.what(), now);
    }
  }
  const Endpoint& endpoint = goal.endpoints[goal.next_endpoint];
  Descriptor socket = start_connecting(endpoint);
  if (!socket) return try_again_later(goal, endpoint.text + ": " + text_of(errno), now);
  const bool connecting = errno != 0;
  goal.not_before = kNever;
  goal.problem = endpoint.text + ": it does not answer";
  talks_.push_back(std::make_unique<Conversation>(
      Conversation{std::move(socket), Handshake::connecting(options_, goal.peer, goal.channel),
                   connecting ? now + kConnectPatience : kNever, &goal, endpoint.text, connecting}));
}

// Tries the peer's next endpoint at once. When all have failed, tries the first one again after a pause.
void Mesh::try_again_later(Goal& goal, const std::string& problem, Micros now) {
  goal.problem = problem;
  goal.not_before = now;
  if (++goal.next_endpoint < goal.endpoints.size()) return;
  goal.next_endpoint = 0;
  goal.not_before = now + goal.pause;
  goal.pause = std::min(2 * goal.pause, kAskInterval);
}

void Mesh::wait(Micros until) {
  std::vector<pollfd> watched;
  const Micros now = monotonic_now();
  if (now >= accept_not_before_) {
    watched.push_back({listening_.tcp.get(), POLLIN, 0});
    watched.push_back({listening_.unix_domain.get(), POLLIN, 0});
  } else {
    until = std::min(until, accept_not_before_);
  }
  for (const auto& talk : talks_) {
    watched.push_back({talk->socket.get(), static_cast<short>(talk->wants_to_write() ? POLLOUT : POLLIN), 0});
    until = std::min(until, talk->deadline);
  }
  for (const auto& goal : goals_) until = std::min(until, goal->not_before);
  const Micros milliseconds = std::max<Micros>(0, (until - now + 999) / 1000);
  if (::poll(watched.data(), watched.size(), static_cast<int>(milliseconds)) < 0 && errno != EINTR)
    throw std::system_error(errno, std::generic_category(), "poll");
}

void Mesh::accept_all(const Descriptor& listening, Micros now) {
  while (true) {
    Descriptor socket = accept_from(listening);
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log_message(LogLevel::kWarning, "cannot accept a connection for now: " + text_of(errno));
        make_room();
        accept_not_before_ = now + kAcceptPause;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const auto strangers =
        std::count_if(talks_.begin(), talks_.end(), [](const auto& talk) { return !talk->goal; });
    if (static_cast<std::size_t>(strangers) >= unconnected_ + kMoreStrangers) make_room();
    std::string with = describe_peer(socket);
    talks_.push_back(std::make_unique<Conversation>(
        Conversation{std::move(socket), Handshake::accepting(options_), now + kStrangerPatience, nullptr,
                     std::move(with), false}));
  }
}

// Closes the oldest incoming connection whose handshake is not complete. If it was a node of the job, that
// node connects again.
void Mesh::make_room() {
  const auto oldest =
      std::find_if(talks_.begin(), talks_.end(), [](const auto& talk) { return !talk->goal; });
  if (oldest != talks_.end()) talks_.erase(oldest);
}

bool Mesh::advance(Conversation& talk, Micros now) {
  try {
    if (now >= talk.deadline)
      throw HandshakeRefused(talk.connecting ? "no answer" : "it did not finish the handshake");
    if (!exchange(talk)) return true;
  } catch (const HandshakeRefused& refused) {
    give_up(talk, refused.what(), now);
    return false;
  }
  settle(talk);
  return false;
}

// Continues the handshake until the socket would block. Returns whether the handshake is complete.
bool Mesh::exchange(Conversation& talk) {
  if (talk.connecting) {
    pollfd watched{talk.socket.get(), POLLOUT, 0};
    if (::poll(&watched, 1, 0) <= 0) return false;
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(talk.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) throw HandshakeRefused(text_of(error));
    talk.connecting = false;
    talk.deadline = kNever;  // the peer may be listening long before it is ready for the handshake
  }
  while (true) {
    const auto rest = std::span(talk.handshake.outgoing()).subspan(talk.written);
    if (!rest.empty()) {
      const ssize_t sent = ::send(talk.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EAGAIN) return false;
      if (sent < 0 && errno != EINTR) throw HandshakeRefused(text_of(errno));
      if (sent > 0) talk.written += static_cast<std::size_t>(sent);
      continue;
    }
    if (talk.handshake.done()) return talk.agreed || agree_on_memory(talk);
    std::array<std::byte, sizeof(Greeting)> buffer;
    const std::size_t wanted = talk.handshake.wanted();
    const ssize_t got = ::recv(talk.socket.get(), buffer.data(), wanted, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return false;
    if (got < 0 && errno != EINTR) throw HandshakeRefused(text_of(errno));
    if (got == 0)
      throw HandshakeRefused("it closed the connection during the handshake, as it does for another secret");
    if (got > 0) talk.handshake.received(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

// Decides whether two authenticated nodes on one host use shared memory. The node that accepted the
// connection may offer it. Returns false if the socket would block.
bool Mesh::agree_on_memory(Conversation& talk) {
  if (!within_host(talk.socket) || options_.frame_mac || !talk.handshake.conflict().empty()) {
    talk.agreed = true;
  } else if (talk.goal) {
    talk.agreed = SharedStreams::take(talk.socket, talk.shared);
    if (talk.shared && !of_same_user(talk.socket))
      throw HandshakeRefused("it offers memory, but belongs to another user");
  } else {
    if (!talk.shared && options_.shape.allows_shared_memory() && of_same_user(talk.socket))
      talk.shared = SharedStreams::create();
    talk.agreed = SharedStreams::offer(talk.socket, talk.shared);
  }
  return talk.agreed;
}

void Mesh::settle(Conversation& talk) {
  const Handshake& handshake = talk.handshake;
  if (const std::string conflict = handshake.conflict(); !conflict.empty())
    throw std::runtime_error(conflict);
  Connection& place = connections_[static_cast<std::size_t>(handshake.channel())][handshake.peer()];
  const std::string what = name_of(handshake.peer()) + ", channel " + std::to_string(handshake.channel());
  if (place.socket) {
    // The peer lost its first connection before this node noticed the loss.
    log_message(LogLevel::kWarning, what + " connected twice; the later connection counts");
  } else {
    --unconnected_;
  }
  configure(talk.socket, options_.peer_timeout_seconds);
  place = {std::move(talk.socket), handshake.frame_keys(), std::move(talk.shared)};
  log_message(LogLevel::kDebug,
              "connected to " + what + " by " + talk.with + (place.shared ? ", through shared memory" : ""));
}

void Mesh::give_up(Conversation& talk, const std::string& why, Micros now) {
  if (talk.goal) {
    if (!talk.connecting) talk.goal->refusal = talk.with + ": " + why;
    try_again_later(*talk.goal, talk.with + ": " + why, now);
  } else if (++refusals_ <= kReportedRefusals) {
    log_message(LogLevel::kWarning, "refused a connection from " + talk.with + ": " + why +
                                        (refusals_ == kReportedRefusals ? " (more are not reported)" : ""));
  }
}

std::string Mesh::missing() const {
  std::string text = "no connection within " +
                     std::to_string(static_cast<long>(options_.connect_timeout_seconds)) + " s with";
  for (NodeId peer = 0; peer < options_.nodes; ++peer) {
    if (peer == options_.rank) continue;
    std::string problem = "it did not connect";
    bool complete = true;
    for (std::size_t channel = 0; channel < connections_.size(); ++channel)
      complete &= bool(connections_[channel][peer].socket);
    if (complete) continue;
    for (const auto& goal : goals_) {
      if (goal->peer == peer) problem = goal->refusal.empty() ? goal->problem : goal->refusal;
    }
    text += (text.back() == 'h' ? " node " : ", node ") + std::to_string(peer) + " (" + problem + ")";
  }
  return text;
}

void check(const std::vector<std::string>& addresses, const SocketOptions& options) {
  const auto positive = [](double seconds, const char* name) {
    if (!(seconds > 0.0 && seconds <= 1e6))
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(seconds) +
                                  " s; it must be positive and at most 1000000 s");
  };
  positive(options.connect_timeout_seconds, "the connect timeout");
  positive(options.peer_timeout_seconds, "the peer timeout");
  if (options.nodes < 1 || options.nodes > kMaxNodes || options.rank >= options.nodes)
    throw std::invalid_argument("rank " + std::to_string(options.rank) + " of " +
                                std::to_string(options.nodes) + " nodes does not exist; there are 1 to " +
                                std::to_string(kMaxNodes) + " nodes");
  if (options.channels < 1)
    throw std::invalid_argument(std::to_string(options.channels) + " channels are too few; use at least 1");
  if (addresses.size() != options.nodes)
    throw std::invalid_argument(std::to_string(addresses.size()) + " addresses do not fit " +
                                std::to_string(options.nodes) + " nodes; give one for each");
  if (options.nodes > 1 && options.secret.empty())
    throw std::invalid_argument("the job's secret is empty; any process could join");
}

}  // namespace

std::vector<std::unique_ptr<SocketTransport>> connect_all(Listener& listener,
                                                          const std::vector<std::string>& addresses,
                                                          const SocketOptions& options,
                                                          const std::function<void()>& interrupted) {
  check(addresses, options);
  if (!listener.sockets().tcp)
    throw std::runtime_error("the listener has connected a cluster already; use a new one");
  std::vector<std::unique_ptr<SocketTransport>> transports;
  for (auto& connections : Mesh(listener, addresses, options).connect(interrupted))
    transports.push_back(make_transport(std::move(connections), options));
  return transports;
}

}  // namespace adaps
