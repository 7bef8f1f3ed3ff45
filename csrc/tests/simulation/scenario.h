// Worlds that are scheduled by hand: one key, one worker a node, and every delivery is asked for.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "simulation/world.h"

namespace adaps::simulation {

class Scenario {
 public:
  // Node 0 is the key's home.
  explicit Scenario(NodeId nodes);

  // All calls are asynchronous.
  void pull(NodeId node) { call(node, CallKind::kPull, 1); }
  void push(NodeId node) { call(node, CallKind::kPush, 1); }
  // The key as often as that in one call.
  void set(NodeId node, std::size_t times) { call(node, CallKind::kSet, times); }
  void sync(NodeId node) { call(node, CallKind::kSync, 0); }
  void intent(NodeId node);
  void end_intent(NodeId node);
  // A round: what is dirty is sent.
  void flush(NodeId node);

  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  void deliver(NodeId from, NodeId to, std::size_t messages = kAll);
  using Pair = std::pair<NodeId, NodeId>;
  // On all links but these, until nothing is on its way there.
  void deliver_all(std::initializer_list<Pair> except = {});

  State state(NodeId node);
  // Everything else happens, and everything is checked; throws Violation.
  void finish();
  const std::vector<std::string>& log() const { return log_; }

 private:
  void call(NodeId node, CallKind kind, std::size_t times);
  void tick(NodeId node);
  Link link(NodeId from, NodeId to) const { return {0, from, to}; }

  std::vector<std::string> log_;
  const WorldSpec spec_;
  World world_;
};

}  // namespace adaps::simulation
