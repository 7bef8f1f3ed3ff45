#include "scale/replay.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace adaps::scale {

namespace {

// From what wakes a channel's thread until it has looked at everything and sends.
constexpr Micros kTick = 20;
// What a tick takes that has more to do at once: it leaves the rest to the next one.
constexpr Micros kFullTick = 1000;
// A clock that no training reaches.
constexpr Clock kForGood = Clock{1} << 40;
constexpr float kGradient = 1e-3F;

std::vector<TableSpec> specs_of(const AccessStream& stream) {
  std::vector<TableSpec> specs;
  for (const StreamTable& table : stream.tables) {
    TableSpec spec;
    spec.name = "table " + std::to_string(specs.size());
    spec.rows = table.rows;
    spec.length = table.length;
    spec.rule.kind = RuleKind::kAdagrad;
    specs.push_back(std::move(spec));
  }
  return specs;
}

void check(const AccessStream& stream, const ReplaySettings& settings) {
  const std::size_t steps = stream.nodes.at(0).steps.size();
  const std::size_t needed = settings.warm_up + settings.lookahead + 1;
  if (steps < needed) {
    throw std::invalid_argument("the stream has " + std::to_string(steps) +
                                " steps; lookahead and warm-up need " + std::to_string(needed));
  }
}

}  // namespace

Replay::Replay(const AccessStream& stream, const ReplaySettings& settings)
    : stream_(stream),
      settings_(settings),
      network_(static_cast<NodeId>(stream.nodes.size()), 1,
               static_cast<std::uint32_t>(2 * stream.nodes.size()), settings.seed),
      random_(settings.seed, 0x7363616c65) {
  check(stream, settings);
  last_step_ = stream.nodes[0].steps.size() - settings.lookahead;
  Settings own;
  own.nodes = static_cast<NodeId>(stream.nodes.size());
  own.technique = settings.technique;
  const std::vector<TableSpec> specs = specs_of(stream);
  nodes_.resize(stream.nodes.size());
  for (NodeId rank = 0; rank < own.nodes; ++rank) {
    own.rank = rank;
    Node& node = nodes_[rank];
    node.state = std::make_unique<NodeState>(specs, own);
    node.worker = std::make_unique<Worker>(*node.state, 0);
    channel(rank).partition().set_waker([this, rank] { network_.set_timer(rank, network_.now() + kTick); });
    for (NodeId peer = 0; peer < own.nodes; ++peer) network_.set_traits(rank, peer, settings.link);
  }
  const Tables& tables = nodes_[0].state->tables;
  cutter_ = std::make_unique<simulation::EntryCutter>(tables, own.nodes);
  std::size_t longest = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    longest = std::max(longest, tables[i].length());
    if (!stream.tables[i].dense) continue;
    dense_floats_ += stream.tables[i].rows * tables[i].length();
    for (Key key = tables[i].first_key(); key < tables[i].end_key(); ++key) dense_.push_back(key);
  }
  std::size_t most = 0;
  for (const NodeStream& node : stream.nodes) {
    for (const std::vector<Key>& keys : node.steps) most = std::max(most, keys.size());
  }
  pulled_.resize(std::max(dense_floats_, most * longest));
  gradients_.assign(pulled_.size(), kGradient);
}

ReplayResult Replay::run() {
  set_up();
  for (NodeId rank = 0; rank < nodes_.size(); ++rank) {
    const auto later = static_cast<Micros>(random_.uniform(0.0, static_cast<double>(settings_.step)));
    network_.set_timer(worker_timer(rank), network_.now() + later);
  }
  if (settings_.warm_up == 0) {
    warm_ = nodes_.size();
    begin_counting();
  }
  while (finished_ == 0) {
    if (!advance())
      throw std::logic_error("the simulated cluster stands still before its training has ended");
  }
  return counted();
}

// What precedes the first step: initial weights are there, dense parameters everywhere, rows where the use
// case places them.
void Replay::set_up() {
  const Tables& tables = nodes_[0].state->tables;
  for (Key key = 0; key < tables.num_keys(); ++key) {
    const NodeId home = nodes_[0].state->directory.home(key);
    nodes_[home].worker->set(std::span(&key, 1), gradients_.data(), tables.find(key).length(), false);
  }
  for (NodeId rank = 0; rank < nodes_.size(); ++rank) {
    Worker& worker = *nodes_[rank].worker;
    network_.set_timer(rank, network_.now() + kTick);  // full replication begins by itself
    worker.intent(dense_, 0, kForGood);
    worker.intent(stream_.nodes[rank].placed, 0, 1);
  }
  run_until_quiet();
  for (NodeId rank = 0; rank < nodes_.size(); ++rank) {
    nodes_[rank].worker->advance_clock();
    for (std::size_t step = 0; step < settings_.lookahead; ++step) announce(rank, step);
  }
  run_until_quiet();
}

void Replay::announce(NodeId rank, std::size_t step) {
  if (settings_.lookahead == 0) return;
  Worker& worker = *nodes_[rank].worker;
  const auto clock = worker.current_clock() + static_cast<Clock>(step - nodes_[rank].step);
  worker.intent(stream_.nodes[rank].steps[step], clock, clock + 1);
}

void Replay::run_until_quiet() {
  while (advance()) {
  }
}

bool Replay::advance() {
  const SimulatedNetwork::Event event = network_.next();
  switch (event.kind) {
    case SimulatedNetwork::Event::Kind::kNothingLeft:
      return false;
    case SimulatedNetwork::Event::Kind::kFrame:
      channel(event.link.to).set_now(network_.now());
      channel(event.link.to).on_frame(event.link.from, event.frame);
      network_.set_timer(event.link.to, network_.now() + kTick);
      return true;
    case SimulatedNetwork::Event::Kind::kTimer:
      break;
  }
  const auto nodes = static_cast<std::uint32_t>(nodes_.size());
  if (event.timer < nodes) {
    tick(static_cast<NodeId>(event.timer));
  } else {
    proceed(static_cast<NodeId>(event.timer - nodes));
  }
  return true;
}

void Replay::tick(NodeId rank) {
  Channel& driven = channel(rank);
  driven.set_now(network_.now());
  const Micros due = driven.on_tick();
  if (due != kNever) network_.set_timer(rank, due <= network_.now() ? network_.now() + kFullTick : due);
  driven.outbox().drain([&](NodeId to, Frame frame) {
    ++result_.frames;
    std::span<const std::byte> rest(frame);
    while (!rest.empty()) {
      const simulation::Entry entry = cutter_->cut(rank, to, rest);
      const auto count = [&](ReplayResult::Traffic& traffic) {
        ++traffic.messages;
        traffic.bytes += entry.bytes.size();
      };
      count(result_.by_type[static_cast<std::size_t>(entry.type)]);
      if (entry.type >= MessageType::kMark) continue;
      const Tables& tables = nodes_[0].state->tables;
      const auto table = static_cast<std::size_t>(&tables.find(entry.key) - &tables[0]);
      count(stream_.tables[table].dense ? result_.dense : result_.rows);
    }
    network_.send({0, rank, to}, frame);
  });
  Node& node = nodes_[rank];
  if (node.ticket != kDone && node.worker->is_done(node.ticket)) {
    node.ticket = kDone;
    result_.waited += network_.now() - node.began;
    proceed(rank);
  }
}

void Replay::proceed(NodeId rank) {
  while (begin(rank)) {
  }
}

bool Replay::begin(NodeId rank) {
  Node& node = nodes_[rank];
  Worker& worker = *node.worker;
  const auto called = [&](Ticket ticket, Phase next) {
    node.phase = next;
    node.ticket = ticket;
    node.began = network_.now();
    return ticket == kDone;
  };
  const auto& rows = stream_.nodes[rank].steps[node.step];
  const Tables& tables = node.state->tables;
  switch (node.phase) {
    case Phase::kPullDense:
      return called(worker.pull(dense_, pulled_.data(), dense_floats_, true), Phase::kPullRows);
    case Phase::kPullRows:
      return called(pull_rows(rank), Phase::kCompute);
    case Phase::kCompute:
      node.phase = Phase::kPushDense;
      network_.set_timer(worker_timer(rank), network_.now() + settings_.step);
      return false;
    case Phase::kPushDense:
      return called(worker.push_gradients(dense_, gradients_.data(), dense_floats_, true), Phase::kPushRows);
    case Phase::kPushRows: {
      std::size_t floats = 0;
      for (const Key key : rows) floats += tables.find(key).length();
      return called(worker.push_gradients(rows, gradients_.data(), floats, true), Phase::kEnd);
    }
    case Phase::kEnd:
      break;
  }
  worker.advance_clock();
  ++node.step;
  ++result_.node_steps;
  node.phase = Phase::kPullDense;
  if (node.step == settings_.warm_up && ++warm_ == nodes_.size()) begin_counting();
  if (node.step == last_step_) {
    ++finished_;
    return false;
  }
  announce(rank, node.step + settings_.lookahead - 1);
  return true;
}

Ticket Replay::pull_rows(NodeId rank) {
  Node& node = nodes_[rank];
  const std::vector<Key>& rows = stream_.nodes[rank].steps[node.step];
  std::size_t floats = 0;
  for (const Key key : rows) floats += node.state->tables.find(key).length();
  const auto pulled_so_far = [&](Counter AccessCounters::* how) {
    std::uint64_t sum = 0;
    for (const TableAccesses& table : node.state->workers[0]->accesses) sum += (table.pulled.*how).get();
    return sum;
  };
  result_.pulled_local -= pulled_so_far(&AccessCounters::local);
  result_.pulled_replica -= pulled_so_far(&AccessCounters::replica);
  result_.pulled_remote -= pulled_so_far(&AccessCounters::remote);
  const Ticket ticket = node.worker->pull(rows, pulled_.data(), floats, true);
  result_.pulled_local += pulled_so_far(&AccessCounters::local);
  result_.pulled_replica += pulled_so_far(&AccessCounters::replica);
  result_.pulled_remote += pulled_so_far(&AccessCounters::remote);
  return ticket;
}

namespace {

// What channels count by themselves, of all nodes.
template <typename Nodes>
void add_counters(ReplayResult& result, const Nodes& nodes, std::uint64_t sign) {
  for (const auto& node : nodes) {
    const ChannelCounters& counters = node.state->channels[0]->counters();
    result.relocations += sign * counters.relocations.get();
    result.replicas_set_up += sign * counters.replicas_set_up.get();
    result.replicas_dropped += sign * counters.replicas_dropped.get();
  }
}

}  // namespace

void Replay::begin_counting() {
  result_ = {};
  result_.elapsed = -network_.now();
  add_counters(result_, nodes_, ~std::uint64_t{0});  // modulo 2^64: minus what was counted before
}

ReplayResult Replay::counted() {
  if (warm_ < nodes_.size())
    throw std::invalid_argument("a node ended before all were warm: the stream needs more steps");
  result_.elapsed += network_.now();
  add_counters(result_, nodes_, 1);
  for (const Node& node : nodes_)
    result_.resident_bytes = std::max(result_.resident_bytes, node.state->store.resident_bytes());
  return result_;
}

}  // namespace adaps::scale
