// Several nodes of the transport in one process, for tests.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "transport/event_loop.h"
#include "transport/socket_transport.h"

namespace adaps::testing {

using Transports = std::vector<std::unique_ptr<SocketTransport>>;

inline constexpr Micros kMillisecond = 1000;
inline constexpr Micros kSecond = 1'000'000;

enum class Medium { kMemory, kUnix, kTcp };
inline constexpr Medium kMedia[] = {Medium::kMemory, Medium::kUnix, Medium::kTcp};

// Reduces an address to one medium: removes the Unix-domain name, or replaces the port by a closed port.
inline std::string only(Medium medium, const std::string& address) {
  std::istringstream fields(address);
  std::string host, port, name;
  fields >> host >> port >> name;
  return medium == Medium::kTcp ? host + " " + port : host + " 1 " + name;
}

inline SocketOptions options_of(NodeId rank, NodeId nodes) {
  return {.rank = rank,
          .nodes = nodes,
          .secret = "of this test",
          .connect_timeout_seconds = 30.0,
          .peer_timeout_seconds = 20.0};
}

// Events of a node.
struct Events : TransportEvents {
  void on_frame(NodeId from, std::span<const std::byte> payload) override {
    ++frames;
    if (handle) handle(from, payload);
  }
  void on_peer_down(NodeId peer, const std::string& reason) override { down.emplace_back(peer, reason); }
  void on_sent(Frame frame) override { sent += frame.size(); }

  std::size_t frames = 0;
  std::size_t sent = 0;  // bytes
  std::function<void(NodeId, std::span<const std::byte>)> handle;
  std::vector<std::pair<NodeId, std::string>> down;
};

using Change = std::function<void(SocketOptions&)>;

// Connects one transport for each node (its channel 0), with a thread for each.
inline Transports cluster(NodeId nodes, Medium medium, const Change& change = {}) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (NodeId rank = 0; rank < nodes; ++rank) {
    listeners.push_back(listen("127.0.0.1", 0));
    addresses.push_back(only(medium, listeners.back()->address()));
  }
  std::vector<std::future<Transports>> joining;
  for (NodeId rank = 0; rank < nodes; ++rank) {
    joining.push_back(std::async(std::launch::async, [&, rank] {
      SocketOptions options = options_of(rank, nodes);
      options.shape.sockets = medium == Medium::kUnix;
      if (change) change(options);
      return connect_all(*listeners[rank], addresses, options, {});
    }));
  }
  Transports transports;
  for (auto& node : joining) transports.push_back(std::move(node.get().front()));
  return transports;
}

// Polls all transports until the condition is true. Returns false if it is not true within `patience`.
inline bool pump(const std::vector<std::pair<SocketTransport*, Events*>>& nodes,
                 const std::function<bool()>& condition, Micros patience = 20 * kSecond) {
  const Micros deadline = monotonic_now() + patience;
  while (!condition()) {
    if (monotonic_now() > deadline) return false;
    for (const auto& [transport, events] : nodes) transport->poll(200, *events);
  }
  return true;
}

// Like the function above, for all nodes of a cluster.
inline bool pump(const Transports& nodes, std::span<Events> events, const std::function<bool()>& condition,
                 Micros patience = 20 * kSecond) {
  std::vector<std::pair<SocketTransport*, Events*>> all;
  for (std::size_t i = 0; i < nodes.size(); ++i) all.emplace_back(nodes[i].get(), &events[i]);
  return pump(all, condition, patience);
}

inline Frame frame_of(std::size_t bytes, std::uint32_t seed) {
  Frame frame(bytes);
  for (std::size_t i = 0; i < bytes; ++i) frame[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  return frame;
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Captures log messages during its lifetime.
class CapturedLog {
 public:
  CapturedLog() {
    set_log_sink([this](LogLevel level, const std::string& message) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::kWarning) text_ += message + "\n";
    });
  }
  ~CapturedLog() { set_log_sink({}); }
  bool contains(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return text_.find(part) != std::string::npos;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

}  // namespace adaps::testing
