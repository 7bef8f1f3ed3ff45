// Keys, reads, and nodes of one process that are connected by sockets.
#pragma once

#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "node/node.h"
#include "node/worker.h"
#include "protocol/message.h"
#include "store/directory.h"

namespace adaps::testing {

inline std::vector<Key> keys_below(std::size_t count) {
  std::vector<Key> keys(count);
  std::iota(keys.begin(), keys.end(), Key{0});
  return keys;
}

// Returns the first `count` keys with the home node `home`.
inline std::vector<Key> keys_at(const Directory& directory, NodeId home, std::size_t count) {
  std::vector<Key> keys;
  for (Key key = 0; keys.size() < count; ++key) {
    if (directory.home(key) == home) keys.push_back(key);
  }
  return keys;
}

inline std::vector<float> pulled(Worker& worker, std::span<const Key> keys, std::size_t length) {
  std::vector<float> values(keys.size() * length);
  worker.pull(keys, values.data(), values.size(), false);
  return values;
}

// A message and the floats behind it.
template <typename Message>
Frame frame_of(const Message& message, std::size_t floats = 0) {
  Frame frame(sizeof(Message) + floats * sizeof(float));
  std::memcpy(frame.data(), &message, sizeof(Message));
  return frame;
}

using Nodes = std::vector<std::unique_ptr<Node>>;

// Calls function(node) for all nodes concurrently, with a thread for each.
template <typename Function>
void on_all(const Nodes& nodes, Function function) {
  std::vector<std::future<void>> calls;
  for (const auto& node : nodes)
    calls.push_back(std::async(std::launch::async, [&, own = node.get()] { function(*own); }));
  for (std::future<void>& call : calls) call.get();
}

// The timeout is long, because nodes are slow with a sanitizer.
inline ConnectOptions connect_options() {
  return {.secret = "of this test", .shape = {}, .peer_timeout_seconds = 60.0};
}

inline Nodes connected(const std::vector<TableSpec>& tables, Settings settings,
                       const ConnectOptions& options = connect_options()) {
  Nodes nodes;
  std::vector<std::string> addresses;
  for (settings.rank = 0; settings.rank < settings.nodes; ++settings.rank) {
    nodes.push_back(std::make_unique<Node>(tables, settings));
    addresses.push_back(nodes.back()->listen("127.0.0.1", 0));
  }
  on_all(nodes, [&](Node& node) { node.connect(addresses, options, [] {}); });
  return nodes;
}

inline void close_all(const Nodes& nodes) {
  on_all(nodes, [](Node& node) { node.close([] {}); });
}

}  // namespace adaps::testing
