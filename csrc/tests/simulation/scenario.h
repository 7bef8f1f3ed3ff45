// Worlds with a manual schedule: one key or a few, one worker per node, slices of one key, and explicit
// deliveries.
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
  // Node 0 is the home of all keys. With any rule except plain SGD, the world is rough.
  explicit Scenario(NodeId nodes, RuleKind rule = RuleKind::kSgd, Clock exchange = 0, int times_alone = 1);

  // All calls are asynchronous.
  void pull(NodeId node, std::uint32_t key = 0) { call(node, {CallKind::kPull, true, {key}}); }
  void push(NodeId node, std::uint32_t key = 0) { call(node, {CallKind::kPush, true, {key}}); }
  void push_gradient(NodeId node) { call(node, {CallKind::kPushGradients, true, {0}}); }
  // Sets the first key `times` times in one call.
  void set(NodeId node, std::size_t times) {
    call(node, {CallKind::kSet, true, std::vector<std::uint32_t>(times, 0)});
  }
  void sync(NodeId node) { call(node, {CallKind::kSync, true}); }
  // Begins at once, because enough time passes.
  void patient_sync(NodeId node);
  void intent(NodeId node, std::uint32_t key = 0, Clock length = 1);
  void end_intent(NodeId node);
  // Runs a round, which sends the dirty keys.
  void flush(NodeId node);
  // Runs the channel after messages have arrived. By default, the next round may just begin.
  void tick(NodeId node, Micros later = 10);
  // Runs the channel until it has nothing to do at this time. Throws a Violation if this never happens.
  void come_to_rest(NodeId node);

  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  void deliver(NodeId from, NodeId to, std::size_t messages = kAll);
  using Pair = std::pair<NodeId, NodeId>;
  // Delivers on all links except these, until no message is left on them.
  void deliver_all(std::initializer_list<Pair> except = {});

  State state(NodeId node);
  // Throws a Violation if the node does not own the first key.
  void expect_owner(NodeId node);
  // Completes the world and checks everything. Throws Violation.
  void finish();
  const std::vector<std::string>& log() const { return log_; }

 private:
  void call(NodeId node, const Call& call);
  NetworkLink link(NodeId from, NodeId to) const { return {0, from, to}; }

  std::vector<std::string> log_;
  const WorldSpec spec_;
  World world_;
};

}  // namespace adaps::simulation
