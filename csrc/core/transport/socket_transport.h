// Frames over TCP between hosts, and through shared memory or Unix-domain sockets inside one: one epoll loop
// per channel.
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

// Delay and bandwidth of every link, to imitate a network on one machine. Zero: unshaped.
struct LinkShape {
  double latency_seconds = 0.0;  // one way
  double bits_per_second = 0.0;
  bool sockets = false;  // not through shared memory, although nothing is imitated

  bool allows_shared_memory() const { return latency_seconds == 0.0 && bits_per_second == 0.0 && !sockets; }
};
// "loopback" | "sockets" | "lan" (0.25 ms, 10 Gbit/s) | "slow" (1 ms, 1 Gbit/s) | "0.5ms,2gbit";
// std::invalid_argument otherwise.
LinkShape parse_link_shape(const std::string& text);

// The listening sockets of a node, shared by its channels: one TCP port and one Unix-domain socket.
class Listener {
 public:
  struct Sockets;
  explicit Listener(std::unique_ptr<Sockets> sockets);
  ~Listener();
  // What other nodes need to connect to this one, as text for the rendezvous store.
  const std::string& address() const;
  Sockets& sockets() { return *sockets_; }

 private:
  std::unique_ptr<Sockets> sockets_;
};
// Port 0: any free one. Throws std::runtime_error naming host and port when they cannot be had.
std::unique_ptr<Listener> listen(const std::string& host, std::uint16_t port);

struct SocketOptions {
  NodeId rank = 0;
  NodeId nodes = 1;
  int channels = 1;
  // Peers that differ in one of these are refused, with a reason that names both values.
  int workers = 1;
  Technique technique = Technique::kAdaptive;
  NonFinite nonfinite = NonFinite::kRaise;
  std::uint64_t fingerprint = 0;  // of the tables
  bool frame_mac = false;         // every frame carries a MAC
  std::string secret{};           // of the job; a peer that does not know it is refused
  LinkShape shape{};
  double connect_timeout_seconds = 60.0;
  double peer_timeout_seconds = 5.0;  // the same on every node: a peer that is silent for so long is down
};

// Written by the channel's thread; bytes as they are on the wire, frames without keep-alives.
struct TransportCounters {
  Counter frames_sent, frames_received, bytes_sent, bytes_received;
};

// One channel's connections. All calls from the channel's thread, except wake() and counters().
class SocketTransport : public Transport {
 public:
  // Frames leave with the next poll(). std::length_error for more than kMaxFrameBytes.
  void send(NodeId to, Frame frame) override = 0;
  // What was sent leaves at once, as far as the peers have room. Also while poll() handles a frame.
  virtual void flush() = 0;
  // Handles what is ready, waiting for at most `timeout` (kNever: until something happens or wake() is
  // called). May return earlier without having called any event.
  virtual void poll(Micros timeout, TransportEvents& events) = 0;
  // Makes a poll that waits, or the next one, return at once. From any thread.
  virtual void wake() = 0;
  // From now on a peer that closes its connection is not lost.
  virtual void expect_close() = 0;
  // Writes what is still buffered, waits until the peers have read it and closed too, for at most `timeout`
  // in all, and closes every connection. What still arrives is discarded.
  virtual void shutdown(Micros timeout) = 0;
  virtual const TransportCounters& counters() const = 0;
};

// Connects every pair of nodes on every channel; addresses[i] is node i's Listener::address(). Blocks until
// all are connected, then stops listening; throws std::runtime_error that names the missing ranks at the
// timeout, or the one that was started with other tables or settings. `interrupted` is called several times
// per second and may throw.
std::vector<std::unique_ptr<SocketTransport>> connect_all(Listener& listener,
                                                          const std::vector<std::string>& addresses,
                                                          const SocketOptions& options,
                                                          const std::function<void()>& interrupted);

}  // namespace adaps
