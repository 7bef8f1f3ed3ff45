#include "simulation/scenario.h"

#include <algorithm>
#include <utility>

#include "simulation/quiescence.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

constexpr std::size_t kKeys = 3;

WorldSpec scenario_spec(NodeId nodes, RuleKind rule, Clock exchange, int times_alone) {
  WorldSpec spec;
  spec.seed = 1;
  spec.settings.nodes = nodes;
  spec.settings.timing = false;
  spec.settings.max_rounds_per_second = 1e6;
  spec.settings.slice = 1;
  spec.settings.times_alone = times_alone;
  TableSpec table{.name = "t",
                  .rows = 64,
                  .length = content_length(kPushesPerFloat),
                  .rule = {.kind = rule},
                  .management = {.exchange = exchange}};
  spec.rough = rule != RuleKind::kSgd;
  if (spec.rough) table.length = 8;  // long enough that the gradient itself is sent
  spec.tables.push_back(table);
  for (Key key = 0; spec.keys.size() < kKeys; ++key) {
    if (Directory(nodes, 1).home(key) == 0) spec.keys.push_back(key);
  }
  spec.programs.resize(nodes);
  spec.think.assign(nodes, 0.0);
  spec.submit.assign(nodes, 0.0);
  spec.tick.assign(nodes, 0.0);
  spec.links.resize(static_cast<std::size_t>(nodes) * nodes);
  return spec;
}

}  // namespace

Scenario::Scenario(NodeId nodes, RuleKind rule, Clock exchange, int times_alone)
    : spec_(scenario_spec(nodes, rule, exchange, times_alone)), world_(spec_, &log_) {}

void Scenario::call(NodeId node, const Call& call) {
  const auto submitted = world_.history().size();
  world_.perform(node, 0, call);
  // A call that the worker could complete alone needs no tick of the channel, which would have further
  // effects.
  if (world_.history()[submitted].end == kOpen) tick(node);
}

void Scenario::patient_sync(NodeId node) {
  constexpr Micros kPatience = 10'000;
  call(node, {.kind = CallKind::kSync, .asynchronous = true, .patient = true});
  tick(node, kPatience);
}

void Scenario::intent(NodeId node, std::uint32_t key, Clock length) {
  world_.perform(node, 0, {CallKind::kIntent, false, {key}, 0, length});
  tick(node);
}

void Scenario::end_intent(NodeId node) {
  world_.perform(node, 0, {CallKind::kClock, false, {}, 0, 0});
  tick(node);
}

void Scenario::flush(NodeId node) {
  world_.cluster().channel(node, 0).partition().request_round();
  tick(node);
}

void Scenario::tick(NodeId node, Micros later) {
  SimulatedNetwork& network = world_.cluster().network();
  network.advance(network.now() + later);
  world_.cluster().tick(node, 0);
  world_.settle(node);
}

void Scenario::come_to_rest(NodeId node) {
  Micros next = 0;
  for (int left = 1'000; next <= world_.cluster().network().now(); --left) {
    if (left == 0) throw Violation("progress: the channel does not come to rest");
    next = world_.cluster().tick(node, 0);
  }
  world_.settle(node);
}

void Scenario::deliver(NodeId from, NodeId to, std::size_t messages) {
  SimulatedNetwork& network = world_.cluster().network();
  for (; messages > 0 && network.waiting(link(from, to)) > 0; --messages) {
    world_.cluster().deliver(link(from, to), network.take(link(from, to), 1));
    world_.settle(to);
  }
}

void Scenario::deliver_all(std::initializer_list<Pair> except) {
  const NodeId nodes = spec_.settings.nodes;
  for (bool again = true; again;) {
    again = false;
    for (NodeId from = 0; from < nodes; ++from) {
      for (NodeId to = 0; to < nodes; ++to) {
        if (std::find(except.begin(), except.end(), Pair(from, to)) != except.end()) continue;
        if (world_.cluster().network().waiting(link(from, to)) == 0) continue;
        deliver(from, to);
        again = true;
      }
    }
  }
}

State Scenario::state(NodeId node) {
  LockedKey key(world_.cluster().node(node).store, spec_.keys[0]);
  return key.state();
}

void Scenario::expect_owner(NodeId node) {
  if (state(node) != State::kOwner) throw Violation("owner: node ", node, " does not own the key");
}

void Scenario::finish() { run_and_check(world_); }

}  // namespace adaps::simulation
