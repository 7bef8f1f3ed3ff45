// A node: the tables' share of one process, its worker handles and its channel threads.
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

// Life: construct, [listen, connect], use workers, close. A cluster of one needs neither listen nor connect.
class Node {
 public:
  Node(std::vector<TableSpec> tables, const Settings& settings);
  ~Node();  // closes without the collective part if close() was not called

  // This node's address for the others.
  std::string listen(const std::string& host, std::uint16_t port);
  void connect(const std::vector<std::string>& addresses, const ConnectOptions& options,
               const std::function<void()>& interrupted);

  Worker& worker(int index);
  Tables& tables();
  const Settings& settings() const;
  // For snapshots (snapshot.h).
  NodeContext& context();

  // Throws PeerLost if a peer is.
  void check() const;

  // Names and numbers of everything that is counted; see stats.h.
  std::map<std::string, double> stats() const;
  // What is counted of one table: its keys by how they were served, and messages about them.
  std::map<std::string, double> table_stats(std::size_t table) const;
  // Records the events of these keys from now on, beginning with one for each key's current state.
  void trace(std::span<const Key> keys);
  std::vector<TraceEvent> trace_events() const;

  // Collective and idempotent: finalizes the workers, waits until every node is here, ends the threads.
  // `interrupted` as for Worker.
  void close(const std::function<void()>& interrupted);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace adaps
