// Sends frames over TCP between hosts, and through shared memory or Unix-domain sockets within a host. Each
// channel has one epoll loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "transport/transport.h"

namespace adaps {

// Delay and bandwidth of every link, to imitate a network on one machine. With zero, the link is not slowed
// down.
struct LinkShape {
  double latency_seconds = 0.0;  // one way
  double bits_per_second = 0.0;
  bool sockets = false;  // use sockets instead of shared memory, even if no network is imitated

  bool allows_shared_memory() const { return latency_seconds == 0.0 && bits_per_second == 0.0 && !sockets; }
};
// Accepted texts: "loopback", "sockets", "lan" (0.25 ms, 10 Gbit/s), "slow" (1 ms, 1 Gbit/s), or values such
// as "0.5ms,2gbit". Throws std::invalid_argument for any other text.
LinkShape parse_link_shape(const std::string& text);

// The listening sockets of a node, which its channels share: one TCP port and one Unix-domain socket.
class Listener {
 public:
  struct Sockets;
  explicit Listener(std::unique_ptr<Sockets> sockets);
  ~Listener();
  // The text that other nodes need to connect to this node, for the rendezvous.
  const std::string& address() const;
  Sockets& sockets() { return *sockets_; }

 private:
  std::unique_ptr<Sockets> sockets_;
};
// Port 0 means any free port. Throws std::runtime_error that names host and port if they are not available.
std::unique_ptr<Listener> listen(const std::string& host, std::uint16_t port);

struct SocketOptions {
  NodeId rank = 0;
  NodeId nodes = 1;
  int channels = 1;
  // The following settings must be equal on all nodes. A peer with another value is refused, with both values
  // in the reason.
  int workers = 1;
  Technique technique = Technique::kAdaptive;
  NonFinite nonfinite = NonFinite::kRaise;
  std::uint64_t fingerprint = 0;  // fingerprint of the tables
  bool frame_mac = false;         // every frame has a MAC
  std::string secret{};           // secret of the job; peers without it are refused
  LinkShape shape{};
  double connect_timeout_seconds = 60.0;
  double peer_timeout_seconds = 5.0;  // equal on all nodes; a peer that is silent for this time is down
};

// Counters that the channel's thread writes. Bytes are counted as they are sent over the network. Keep-alives
// do not count as frames.
struct TransportCounters {
  Counter frames_sent, frames_received, bytes_sent, bytes_received;
};

// One channel's connections. All functions except wake() and counters() must be called from the channel's
// thread.
class SocketTransport : public Transport {
 public:
  // Queues a frame for the next poll(). Throws std::length_error if the frame is longer than kMaxFrameBytes.
  void send(NodeId to, Frame frame) override = 0;
  // Sends queued frames at once, as far as the peers have space. May be called while poll() handles a frame.
  virtual void flush() = 0;
  // Handles ready events. Waits for at most `timeout`; with kNever, until an event is ready or wake() is
  // called. May return earlier without having handled an event.
  virtual void poll(Micros timeout, TransportEvents& events) = 0;
  // Makes the poll that waits, or the next one, return at once. May be called from any thread.
  virtual void wake() = 0;
  // From now on, a peer that closes its connection does not count as lost.
  virtual void expect_close() = 0;
  // Writes all buffered frames, waits until the peers have read them and closed their side, and closes every
  // connection. Takes at most `timeout` in total. Frames that still arrive are discarded.
  virtual void shutdown(Micros timeout) = 0;
  virtual const TransportCounters& counters() const = 0;
};

// Connects every pair of nodes on every channel. addresses[i] is node i's Listener::address(). Blocks until
// all are connected, then stops listening. Throws std::runtime_error at the timeout, which names the missing
// ranks, or if a node has other tables or settings, which names that node. `interrupted` is called several
// times per second and may throw.
std::vector<std::unique_ptr<SocketTransport>> connect_all(Listener& listener,
                                                          const std::vector<std::string>& addresses,
                                                          const SocketOptions& options,
                                                          const std::function<void()>& interrupted);

}  // namespace adaps
