// A node: one process's part of the tables, its worker handles and its channel threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"
#include "node/worker.h"
#include "store/table.h"
#include "transport/socket_transport.h"

namespace adaps {

struct NodeContext;

struct ConnectOptions {
  std::string secret{};
  bool frame_mac = false;
  LinkShape shape{};
  double connect_timeout_seconds = 60.0;
  double peer_timeout_seconds = 5.0;
};

// Life cycle: construct, listen, connect, use workers, close. A cluster of one node needs neither listen nor
// connect.
class Node {
 public:
  Node(std::vector<TableSpec> tables, const Settings& settings);
  ~Node();  // closes without waiting for the other nodes, unless close() was called

  // Starts to listen. Returns this node's address for the other nodes.
  std::string listen(const std::string& host, std::uint16_t port);
  void connect(const std::vector<std::string>& addresses, const ConnectOptions& options,
               const std::function<void()>& interrupted);

  Worker& worker(int index);
  Tables& tables();
  const Settings& settings() const;
  // The shared state of the node, which snapshots use (snapshot.h).
  NodeContext& context();

  // Throws PeerLost if a peer was lost.
  void check() const;

  // Names and values of all counters of the node; see stats.h.
  std::map<std::string, double> stats() const;
  // Names and values of one table's counters: accesses by the place that served them, and messages about keys
  // of the table.
  std::map<std::string, double> table_stats(std::size_t table) const;
  // Records all later events of these keys, starting with an event for each key's current state.
  void trace(std::span<const Key> keys);
  std::vector<TraceEvent> trace_events() const;

  // Collective and idempotent. Finalizes the workers, waits until all nodes have called close(), and ends the
  // threads. `interrupted` is used as in Worker.
  void close(const std::function<void()>& interrupted);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace adaps
