#include "replay/replay.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "node/node_stats.h"
#include "protocol/message.h"

namespace adaps {

namespace {

constexpr float kGradient = 1e-3F;
constexpr auto kInterruptDistance = std::chrono::milliseconds(200);
// Numbers of a node's other timers, which come after the timers of its threads.
constexpr std::size_t kProcessorTimer = 0;  // used only for the first node of a host
constexpr std::size_t kLookTimer = 1;       // check for lost nodes
constexpr std::size_t kStallTimer = 2;
constexpr std::size_t kOtherTimers = 3;

NodeId nodes_of(const Accesses& accesses, const ReplaySettings& settings) {
  return static_cast<NodeId>(accesses.workers.size() / static_cast<std::size_t>(settings.workers));
}

std::size_t longest_lookahead(const Accesses& accesses, const ReplaySettings& settings) {
  std::size_t longest = 0;
  for (std::size_t table = 0; table < accesses.tables.size(); ++table) {
    if (!accesses.dense[table]) longest = std::max(longest, settings.lookahead[table]);
  }
  return longest;
}

void check(const Accesses& accesses, const ReplaySettings& settings) {
  const std::size_t needed =
      settings.warm_up ? *settings.warm_up + longest_lookahead(accesses, settings) + 1 : 1;
  for (std::size_t worker = 0; worker < accesses.workers.size(); ++worker) {
    const std::size_t steps = accesses.workers[worker].steps();
    if (steps < needed) {
      throw std::invalid_argument("the stream of worker " + std::to_string(worker) + " has " +
                                  std::to_string(steps) + " steps; lookahead and warm-up need " +
                                  std::to_string(needed));
    }
  }
}

}  // namespace

const char* name_of(ReplaySpan::Kind kind) {
  static constexpr const char* kNames[] = {"announce",    "pull", "compute", "push",    "request",
                                           "synchronize", "meet", "wait",    "channel", "frame"};
  return name_in(kNames, kind);
}

Replay::Replay(const Accesses& accesses, const ReplaySettings& settings)
    : accesses_(accesses),
      settings_(settings),
      threads_(static_cast<std::size_t>(settings.channels + settings.workers)),
      network_(nodes_of(accesses, settings), settings.channels,
               static_cast<std::uint32_t>(nodes_of(accesses, settings) * (threads_ + kOtherTimers)),
               settings.seed),
      random_(settings.seed, 0x7363616c65) {
  check(accesses, settings);
  const NodeId count = nodes_of(accesses, settings);
  const std::size_t announced = settings.warm_up ? longest_lookahead(accesses, settings) : 0;
  Settings own{.nodes = count,
               .workers = settings.workers,
               .channels = settings.channels,
               .technique = settings.technique,
               .timing = settings.timing,
               .max_rounds_per_second = settings.max_rounds_per_second};
  nodes_.resize(count);
  for (NodeId rank = 0; rank < count; ++rank) {
    own.rank = rank;
    Node& node = nodes_[rank];
    const Machine& machine = settings.machines[rank];
    node.state = std::make_unique<NodeState>(accesses.tables, own);
    node.channels.resize(static_cast<std::size_t>(own.channels));
    for (int channel = 0; channel < own.channels; ++channel) {
      const auto thread = static_cast<std::size_t>(channel);
      Channel& driven = *node.state->channels[thread];
      driven.partition().set_waker([this, rank, thread] {
        nodes_[rank].channels[thread].woken = true;
        network_.set_timer(timer(rank, thread), network_.now());
      });
      driven.set_backlog([this, channel, rank](NodeId to) { return network_.backlog({channel, rank, to}); });
      network_.set_timer(timer(rank, thread), 0);  // full replication starts without a message
    }
    for (int worker = 0; worker < own.workers; ++worker) {
      WorkerThread thread;
      thread.worker = std::make_unique<Worker>(*node.state, worker);
      thread.accesses = &accesses.workers[static_cast<std::size_t>(rank) * own.workers + worker];
      thread.last_step = thread.accesses->steps() - announced;
      node.workers.push_back(std::move(thread));
    }
    network_.set_card(rank, machine.card);
    for (NodeId peer = 0; peer < count; ++peer)
      network_.set_traits(rank, peer, settings.links[static_cast<std::size_t>(rank) * count + peer]);
  }
  make_hosts();
  const Tables& tables = nodes_[0].state->tables;
  std::size_t most = 0;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    std::vector<Key>& keys = dense_.emplace_back();
    longest = std::max(longest, tables[i].length());
    if (!accesses.dense[i]) continue;
    for (Key key = tables[i].first_key(); key < tables[i].end_key(); ++key) keys.push_back(key);
    most = std::max(most, keys.size());
  }
  for (const WorkerAccesses& worker : accesses.workers) {
    for (std::size_t step = 0; step < worker.steps(); ++step) most = std::max(most, worker.step(step).size());
  }
  pulled_.resize(most * longest);
  gradients_.assign(pulled_.size(), kGradient);
}

void Replay::make_hosts() {
  std::map<NodeId, std::size_t> numbers;
  for (NodeId rank = 0; rank < static_cast<NodeId>(nodes_.size()); ++rank) {
    const auto [found, is_new] =
        numbers.try_emplace(settings_.machines[rank].host.value_or(rank), hosts_.size());
    if (is_new) hosts_.emplace_back();
    Node& node = nodes_[rank];
    node.host = found->second;
    node.first_thread = hosts_[node.host].nodes.size() * threads_;
    hosts_[node.host].nodes.push_back(rank);
  }
  for (Host& host : hosts_) {
    const Machine& machine = settings_.machines[host.nodes.front()];
    host.processor = std::make_unique<Processor>(machine.cores, machine.speed, host.nodes.size() * threads_);
  }
}

ReplayResult Replay::run(const std::function<void()>& interrupted) {
  set_up();
  for (NodeId rank = 0; rank < static_cast<NodeId>(nodes_.size()); ++rank) {
    for (std::size_t worker = 0; worker < nodes_[rank].workers.size(); ++worker) {
      const auto later = static_cast<Micros>(random_.uniform(0.0, settings_.compute));
      network_.set_timer(timer(rank, nodes_[rank].channels.size() + worker), network_.now() + later);
    }
  }
  if (settings_.warm_up.value_or(0) == 0) {
    warm_ = accesses_.workers.size();
    begin_counting();
  }
  for (NodeId rank = 0; rank < static_cast<NodeId>(nodes_.size()); ++rank) apply_incident(rank, 0);
  auto asked = std::chrono::steady_clock::now();
  for (std::size_t event = 0; !has_ended(); ++event) {
    if (!advance()) throw std::logic_error("the simulated cluster stopped before the end of its training");
    if (event % 1024 != 0 || std::chrono::steady_clock::now() < asked + kInterruptDistance) continue;
    interrupted();
    asked = std::chrono::steady_clock::now();
  }
  if (warm_ < accesses_.workers.size())
    throw std::invalid_argument("a worker ended before all were warm: the streams need more steps");
  tracing_ = false;
  if (!settings_.warm_up && lost_.empty()) run_until_quiet();
  return counted();
}

bool Replay::has_ended() const {
  if (lost_.empty()) return ended_ >= (settings_.warm_up ? 1 : accesses_.workers.size());
  // A worker that has done all its steps waits for the others at the end, and detects the loss there.
  const auto knows = [](const Node& node) { return node.lost || node.times.peer_lost; };
  return ended_ == accesses_.workers.size() && std::all_of(nodes_.begin(), nodes_.end(), knows);
}

// Prepares the state before the first step: initial weights are set, dense parameters are on all nodes, and
// rows are on the nodes where the use case places them.
void Replay::set_up() {
  const Tables& tables = nodes_[0].state->tables;
  for (Key key = 0; key < tables.num_keys(); ++key) {
    const NodeId home = nodes_[0].state->directory.home(key);
    nodes_[home].workers[0].worker->set(std::span(&key, 1), gradients_.data(), tables.find(key).length(),
                                        false);
  }
  for (Node& node : nodes_) {
    for (WorkerThread& thread : node.workers) {
      for (std::size_t table = 0; table < tables.size(); ++table) {
        if (settings_.lookahead[table] > 0) thread.worker->intent(dense_[table], 0, kForGood);
      }
      thread.worker->intent(thread.accesses->placed, 0, 1);
    }
    // Node 0 is the first in this loop, so it requests dense parameters before the other nodes do.
    if (&node == &nodes_.front()) run_until_quiet();
  }
  run_until_quiet();
  for (Node& node : nodes_) {
    for (WorkerThread& thread : node.workers) {
      thread.worker->advance_clock();
      if (settings_.epoch > 0) continue;  // with epochs, a worker signals no intent before its loop begins
      for (std::size_t table = 0; table < tables.size(); ++table) {
        for (std::size_t step = 0; step < settings_.lookahead[table]; ++step) announce(thread, table, step);
      }
    }
  }
  run_until_quiet();
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
      arrive(event.link, event.frame);
      return true;
    case SimulatedNetwork::Event::Kind::kTimer:
      break;
  }
  const auto rank = static_cast<NodeId>(event.timer / (threads_ + kOtherTimers));
  const std::size_t thread = event.timer % (threads_ + kOtherTimers);
  Node& node = nodes_[rank];
  if (thread == threads_ + kProcessorTimer) {
    end_work(hosts_[node.host]);
  } else if (node.lost) {
    return true;
  } else if (thread == threads_ + kLookTimer) {
    check_lost_nodes(rank);
  } else if (thread == threads_ + kStallTimer) {
    end_stall(rank);
  } else if (thread >= node.channels.size()) {
    const std::size_t worker = thread - node.channels.size();
    if (node.workers[worker].at_barrier) {
      node.workers[worker].at_barrier = false;
      resume(rank, worker);
    } else {
      begin_work(rank, worker);
    }
  } else if (const ChannelThread& channel = node.channels[thread];
             !channel.busy && (channel.woken || channel.due <= network_.now())) {
    begin_turn(rank, thread, true);
  }
  return true;
}

void Replay::arrive(const NetworkLink& link, std::span<const std::byte> frame) {
  for (const NodeId end : {link.from, link.to}) {
    Node& node = nodes_[end];
    if (--node.under_way == 0) node.network_time += network_.now() - node.network_since;
  }
  if (nodes_[link.from].lost) nodes_[link.to].heard[link.from] = network_.now();
  if (nodes_[link.to].lost) return;
  const auto thread = static_cast<std::size_t>(link.channel);
  ChannelThread& channel = nodes_[link.to].channels[thread];
  channel.inbox.push_back({link.from, Frame(frame.begin(), frame.end())});
  if (!channel.busy) begin_turn(link.to, thread, true);
}

void Replay::work(NodeId rank, std::size_t thread, double micros) {
  const Host& host = hosts_[nodes_[rank].host];
  host.processor->begin(nodes_[rank].first_thread + thread, micros, network_.now());
  set_timer_of(host);
}

void Replay::set_timer_of(const Host& host) {
  if (const Micros next = host.processor->next_end(); next != kNever)
    network_.set_timer(timer(host.nodes.front(), threads_ + kProcessorTimer), next);
}

void Replay::end_work(Host& host) {
  for (const std::size_t number : host.processor->take_ended(network_.now())) {
    const NodeId rank = host.nodes[number / threads_];
    const std::size_t thread = number % threads_;
    const Node& node = nodes_[rank];
    if (node.lost) continue;
    if (thread < node.channels.size()) {
      end_turn(rank, thread);
    } else {
      end_work_of(rank, thread - node.channels.size());
    }
  }
  set_timer_of(host);
}

// A channel thread processes all its input at once, then works for the time that this takes, and then sends.
void Replay::begin_turn(NodeId rank, std::size_t number, bool slept) {
  ChannelThread& thread = nodes_[rank].channels[number];
  Channel& channel = *nodes_[rank].state->channels[number];
  ChannelCounters& counters = channel.counters();
  const ReplayCosts& costs = settings_.costs;
  const Processor& processor = *hosts_[nodes_[rank].host].processor;
  if (nodes_[rank].stalled) {
    thread.woken = true;
    return;
  }
  const std::uint64_t intents = counters.intents_acted.get();
  double micros = costs.call + (slept ? costs.wake : 0.0);
  const auto add_cost_of = [&](const Frame& frame) {
    micros += costs.frame + costs.byte * static_cast<double>(frame.size());
  };
  thread.busy = true;
  thread.woken = false;
  thread.began = network_.now();
  channel.set_now(network_.now());
  for (const Received& received : thread.inbox) {
    counters.frames_received.add();
    counters.bytes_received.add(received.frame.size());
    add_cost_of(received.frame);
    channel.on_frame(received.from, received.frame);
  }
  thread.inbox.clear();
  thread.due = channel.on_tick();
  channel.outbox().drain([&](NodeId to, Frame frame) {
    add_cost_of(frame);
    queue(rank, number, to, std::move(frame));
  });
  const Handled now = handled_by(channel);
  const Handled before = std::exchange(thread.handled, now);
  micros += costs.message * static_cast<double>(now.messages - before.messages) +
            costs.upkeep * static_cast<double>(now.upkeep - before.upkeep) +
            costs.intent * static_cast<double>(counters.intents_acted.get() - intents);
  counters.thread.add(micros / processor.speed(nodes_[rank].first_thread + number));
  work(rank, number, micros);
}

void Replay::end_turn(NodeId rank, std::size_t number) {
  Node& node = nodes_[rank];
  ChannelThread& thread = node.channels[number];
  const std::uint64_t bytes = send_all(rank, number);
  thread.busy = false;
  trace(ReplaySpan::Kind::kChannel, rank, number, bytes, thread.began, network_.now());
  note_failure(rank);
  check_calls(rank);
  if (node.lost) return;
  if (thread.woken || !thread.inbox.empty() || thread.due <= network_.now()) {
    begin_turn(rank, number, false);
  } else if (thread.due != kNever) {
    network_.set_timer(timer(rank, number), thread.due);
  }
}

void Replay::queue(NodeId rank, std::size_t number, NodeId to, Frame frame) {
  ChannelCounters& counters = nodes_[rank].state->channels[number]->counters();
  counters.frames_sent.add();
  counters.bytes_sent.add(frame.size());
  nodes_[rank].channels[number].sending.emplace_back(to, std::move(frame));
}

std::uint64_t Replay::send_all(NodeId rank, std::size_t number) {
  ChannelThread& thread = nodes_[rank].channels[number];
  std::uint64_t bytes = 0;
  for (const auto& [to, frame] : thread.sending) {
    bytes += frame.size();
    const Micros due = network_.send({static_cast<int>(number), rank, to}, frame);
    for (const NodeId end : {rank, to}) {
      if (nodes_[end].under_way++ == 0) nodes_[end].network_since = network_.now();
    }
    trace(ReplaySpan::Kind::kFrame, rank, to, frame.size(), network_.now(), due);
  }
  thread.sending.clear();
  return bytes;
}

Replay::Handled Replay::handled_by(const Channel& channel) const {
  const ChannelCounters& counters = channel.counters();
  const std::uint64_t upkeep = counters.upkeep_received.get();
  Handled found{.messages = counters.messages_received.get() - upkeep, .upkeep = upkeep};
  for (std::size_t table = 0; table <= accesses_.tables.size(); ++table) {
    for (std::size_t number = 1; number < kMessageTypes; ++number) {
      const auto type = static_cast<MessageType>(number);
      (is_upkeep(type) ? found.upkeep : found.messages) += channel.outbox().sent_of(table, type).messages;
    }
  }
  return found;
}

// In the simulation, a call first takes its time, and then it has its effect.
void Replay::begin_work(NodeId rank, std::size_t number) {
  WorkerThread& thread = nodes_[rank].workers[number];
  if (thread.actions.empty()) thread.actions = actions_of(thread);
  const Action& action = thread.actions[thread.next];
  const ReplayCosts& costs = settings_.costs;
  double micros = settings_.compute;
  if (action.kind != ReplaySpan::Kind::kCompute) {
    const bool announces = action.kind == ReplaySpan::Kind::kAnnounce;
    const std::size_t keys = announces ? keys_announced_in(thread) : action.keys.size();
    micros = costs.call + costs.key * static_cast<double>(keys) +
             costs.value * static_cast<double>(floats_of(action) * sizeof(float));
  }
  if (std::exchange(thread.slept, false)) micros += costs.wake;
  if (action.kind == ReplaySpan::Kind::kCompute && std::exchange(thread.cold, false)) micros += costs.resume;
  micros += std::exchange(thread.owed, 0.0);
  Node& node = nodes_[rank];
  const std::size_t own = node.channels.size() + number;
  thread.began = network_.now();
  node.times.working += micros / hosts_[node.host].processor->speed(node.first_thread + own);
  work(rank, own, micros);
}

void Replay::end_work_of(NodeId rank, std::size_t number) {
  Node& node = nodes_[rank];
  WorkerThread& thread = node.workers[number];
  const Action& action = thread.actions[thread.next++];
  const Micros now = network_.now();
  (action.kind == ReplaySpan::Kind::kCompute ? node.times.computing : node.times.visiting) +=
      now - thread.began;
  trace(action.kind, rank, node.channels.size() + number, action.keys.size(), thread.began, now);
  Ticket ticket = kDone;
  const double accessed = micros_of_accesses(rank, number, action.table);
  try {
    switch (action.kind) {
      case ReplaySpan::Kind::kAnnounce:
        for (std::size_t table = 0; table < accesses_.tables.size(); ++table) {
          const auto [first, end] = announced_in(thread, table);
          for (std::size_t step = first; step < end; ++step) announce(thread, table, step);
        }
        break;
      case ReplaySpan::Kind::kPull:
        ticket = thread.worker->pull(action.keys, pulled_.data(), floats_of(action), true);
        break;
      case ReplaySpan::Kind::kPush:
        ticket = thread.worker->push_gradients(action.keys, gradients_.data(), floats_of(action), true);
        break;
      case ReplaySpan::Kind::kRequest:
        ticket = std::exchange(thread.requested, thread.worker->wait_sync(true));
        if (ticket != kDone) thread.worker->hurry(ticket);
        break;
      case ReplaySpan::Kind::kSynchronize:
        ticket = thread.worker->wait_sync(true);
        thread.worker->hurry(ticket);
        break;
      default:
        break;
    }
  } catch (const PeerLost&) {
    end_worker(thread);
    return;
  }
  thread.owed = micros_of_accesses(rank, number, action.table) - accessed;
  thread.at_barrier = action.kind == ReplaySpan::Kind::kMeet;
  if (ticket == kDone && !thread.at_barrier) {
    continue_worker(rank, number);
    return;
  }
  thread.ticket = ticket;
  thread.waits = true;
  thread.began = now;
  thread.network_then = network_time(node);
  if (thread.at_barrier) release_workers_if_all_wait();
}

double Replay::micros_of_accesses(NodeId rank, std::size_t worker, std::size_t table) const {
  const TableAccesses& accesses = nodes_[rank].state->workers[worker]->accesses[table];
  const auto both = [&](const Counter AccessCounters::* way) {
    return static_cast<double>((accesses.pulled.*way).get() + (accesses.pushed.*way).get());
  };
  return settings_.costs.copy * both(&AccessCounters::replica) +
         settings_.costs.elsewhere * both(&AccessCounters::remote);
}

// Each worker learns of the release after the time of a round trip to the farthest node.
void Replay::release_workers_if_all_wait() {
  for (const Node& node : nodes_) {
    for (const WorkerThread& thread : node.workers) {
      if (!thread.ended && !thread.at_barrier) return;
    }
  }
  for (NodeId rank = 0; rank < static_cast<NodeId>(nodes_.size()); ++rank) {
    double farthest = 0.0;
    for (NodeId peer = 0; peer < static_cast<NodeId>(nodes_.size()); ++peer) {
      if (peer != rank) farthest = std::max(farthest, settings_.links[rank * nodes_.size() + peer].latency);
    }
    Node& node = nodes_[rank];
    for (std::size_t worker = 0; worker < node.workers.size(); ++worker) {
      if (node.workers[worker].ended) continue;
      network_.set_timer(timer(rank, node.channels.size() + worker),
                         network_.now() + static_cast<Micros>(2 * farthest));
    }
  }
}

void Replay::resume(NodeId rank, std::size_t number) {
  Node& node = nodes_[rank];
  WorkerThread& thread = node.workers[number];
  thread.waits = false;
  thread.slept = true;
  thread.cold = true;
  node.times.waiting += network_.now() - thread.began;
  node.times.on_network += network_time(node) - thread.network_then;
  trace(ReplaySpan::Kind::kWait, rank, node.channels.size() + number, 0, thread.began, network_.now());
  continue_worker(rank, number);
}

void Replay::continue_worker(NodeId rank, std::size_t number) {
  WorkerThread& thread = nodes_[rank].workers[number];
  if (thread.next == thread.actions.size()) {
    thread.actions.clear();
    thread.next = 0;
    thread.worker->advance_clock();
    ++thread.step;
    ++nodes_[rank].times.steps;
    nodes_[rank].times.last_step = network_.now() - counting_since_;
    if (thread.step == settings_.warm_up && ++warm_ == accesses_.workers.size()) begin_counting();
    if (thread.step == traced_until_) tracing_ = false;
    if (thread.step == thread.last_step) end_worker(thread);
    if (number == 0) apply_incident(rank, thread.step);
    if (thread.ended) return;
  }
  begin_work(rank, number);
}

void Replay::end_worker(WorkerThread& thread) {
  thread.ended = true;
  thread.waits = false;
  thread.at_barrier = false;
  ++ended_;
}

// Resumes each worker whose waiting call has completed, and ends each worker whose call or barrier has
// failed.
void Replay::check_calls(NodeId rank) {
  Node& node = nodes_[rank];
  for (std::size_t worker = 0; worker < node.workers.size() && !node.lost; ++worker) {
    WorkerThread& thread = node.workers[worker];
    if (!thread.waits) continue;
    if (thread.at_barrier) {
      if (node.state->failed.load()) end_worker(thread);
      continue;
    }
    try {
      if (!thread.worker->is_done(thread.ticket)) continue;
    } catch (const PeerLost&) {
      end_worker(thread);
      continue;
    }
    resume(rank, worker);
  }
}

void Replay::apply_incident(NodeId rank, std::size_t step) {
  if (settings_.incidents.empty()) return;
  Node& node = nodes_[rank];
  const Host& host = hosts_[node.host];
  const Micros now = network_.now();
  const auto each_thread = [&](auto&& act) {
    for (std::size_t thread = 0; thread < threads_; ++thread) act(node.first_thread + thread);
  };
  for (const Incident& incident : settings_.incidents) {
    if (incident.node != rank || incident.step != step) continue;
    switch (incident.kind) {
      case Incident::Kind::kSpeed:
        each_thread([&](std::size_t thread) { host.processor->slow_down(thread, incident.amount, now); });
        break;
      case Incident::Kind::kStall:
        node.stalled = true;
        each_thread([&](std::size_t thread) { host.processor->suspend(thread, now); });
        network_.set_timer(timer(rank, threads_ + kStallTimer), now + static_cast<Micros>(incident.amount));
        break;
      case Incident::Kind::kLoss:
        if (warm_ < accesses_.workers.size())
          throw std::invalid_argument("node " + std::to_string(rank) + " is lost after " +
                                      std::to_string(step) +
                                      " steps, before all nodes are warm: let it be lost later");
        node.lost = true;
        node.times.lost = now - counting_since_;
        lost_.push_back({rank, now});
        each_thread([&](std::size_t thread) { host.processor->suspend(thread, now); });
        for (WorkerThread& thread : node.workers) {
          if (!thread.ended) end_worker(thread);
        }
        for (NodeId other = 0; other < static_cast<NodeId>(nodes_.size()); ++other)
          network_.set_timer(timer(other, threads_ + kLookTimer), now);
        break;
    }
  }
  set_timer_of(host);
}

void Replay::end_stall(NodeId rank) {
  Node& node = nodes_[rank];
  node.stalled = false;
  for (std::size_t thread = 0; thread < threads_; ++thread)
    hosts_[node.host].processor->resume(node.first_thread + thread, network_.now());
  set_timer_of(hosts_[node.host]);
  for (std::size_t channel = 0; channel < node.channels.size(); ++channel) {
    if (node.channels[channel].woken) network_.set_timer(timer(rank, channel), network_.now());
  }
}

// Detects lost nodes by their silence. The simulation sends no keep-alive frames: it assumes that a node
// which is not lost was heard.
void Replay::check_lost_nodes(NodeId rank) {
  Node& node = nodes_[rank];
  if (node.state->failed.load()) return;
  const Micros now = network_.now();
  for (const auto& [lost, at] : lost_) {
    const Micros heard = std::max(node.heard[lost], at);  // frames that were on the network still arrive
    const Micros due = heard + patience(settings_.peer_timeout);
    if (now < due) {
      network_.set_timer(timer(rank, threads_ + kLookTimer), due);
      continue;
    }
    const std::string reason = "node " + std::to_string(lost) + " is gone: it sent nothing for " +
                               std::to_string((now - heard) / 1000) + " ms";
    for (std::size_t number = 0; number < node.channels.size(); ++number) {
      Channel& channel = *node.state->channels[number];
      channel.set_now(now);
      channel.on_peer_down(lost, reason);
      channel.outbox().drain([&](NodeId to, Frame frame) { queue(rank, number, to, std::move(frame)); });
      // a busy channel sends them at the end of its turn
      if (!node.channels[number].busy) send_all(rank, number);
      channel.membership().fail_for_lost_peer();
    }
    note_failure(rank);
    check_calls(rank);
    return;
  }
}

void Replay::note_failure(NodeId rank) {
  Node& node = nodes_[rank];
  if (node.times.peer_lost || node.lost) return;
  node.times.peer_lost = node.state->lost_peer();
  if (node.times.peer_lost) node.times.peer_lost_at = network_.now() - counting_since_;
}

std::pair<std::size_t, std::size_t> Replay::announced_in(const WorkerThread& thread,
                                                         std::size_t table) const {
  const std::size_t ahead = settings_.lookahead[table];
  if (ahead == 0) return {0, 0};
  const std::size_t end = thread.step + ahead;
  if (settings_.epoch == 0) return {thread.step == 0 ? end : end - 1, end};
  const std::size_t in_epoch = thread.step % settings_.epoch;
  const std::size_t last = thread.step - in_epoch + settings_.epoch;
  return {in_epoch == 0 ? thread.step : std::min(end - 1, last), std::min(end, last)};
}

void Replay::announce(WorkerThread& thread, std::size_t table, std::size_t step) {
  const auto clock = thread.worker->current_clock() + static_cast<Clock>(step - thread.step);
  const std::span<const Key> rows = rows_of(thread, table, step);
  if (!rows.empty()) thread.worker->intent(rows, clock, clock + 1);
}

std::size_t Replay::keys_announced_in(const WorkerThread& thread) const {
  std::size_t keys = 0;
  for (std::size_t table = 0; table < accesses_.tables.size(); ++table) {
    const auto [first, end] = announced_in(thread, table);
    for (std::size_t step = first; step < end; ++step) keys += rows_of(thread, table, step).size();
  }
  return keys;
}

std::span<const Key> Replay::rows_of(const WorkerThread& thread, std::size_t table, std::size_t step) const {
  if (accesses_.dense[table] || step >= thread.accesses->steps()) return {};
  const Table& own = nodes_[0].state->tables[table];
  const std::span<const Key> keys = thread.accesses->step(step);
  const auto first = std::lower_bound(keys.begin(), keys.end(), own.first_key());
  return {first, std::lower_bound(first, keys.end(), own.end_key())};
}

std::vector<Replay::Action> Replay::actions_of(const WorkerThread& thread) const {
  using enum ReplaySpan::Kind;
  const Tables& tables = nodes_[0].state->tables;
  const std::span<const Key> all = thread.accesses->step(thread.step);
  std::vector<Action> actions{{kAnnounce, 0, all}};
  const auto dense = [&](ReplaySpan::Kind kind) {
    for (std::size_t table = 0; table < dense_.size(); ++table) {
      if (!dense_[table].empty()) actions.push_back({kind, table, dense_[table]});
    }
  };
  const auto rows = [&](ReplaySpan::Kind kind) {
    for (std::span<const Key> rest = all; !rest.empty();) {
      const Table& table = tables.find(rest.front());
      const auto end = std::lower_bound(rest.begin(), rest.end(), table.end_key());
      const auto count = static_cast<std::size_t>(end - rest.begin());
      actions.push_back({kind, tables.number_of(table), rest.first(count)});
      rest = rest.subspan(count);
    }
  };
  if (thread.step > 0) dense(kPull);
  rows(kPull);
  actions.push_back({kCompute, 0, {}});
  rows(kPush);
  dense(kPush);
  dense(kPull);
  const std::vector<std::size_t>& requests = settings_.requests;
  if (nodes_.size() > 1 && std::binary_search(requests.begin(), requests.end(), thread.step + 1))
    actions.push_back({kRequest, 0, {}});
  if (settings_.epoch > 0 && (thread.step + 1) % settings_.epoch == 0) {
    for (const ReplaySpan::Kind kind : {kSynchronize, kMeet, kSynchronize}) actions.push_back({kind, 0, {}});
  }
  return actions;
}

std::size_t Replay::floats_of(const Action& action) const {
  if (action.kind == ReplaySpan::Kind::kAnnounce) return 0;
  return action.keys.size() * nodes_[0].state->tables[action.table].length();
}

void Replay::begin_counting() {
  tracing_ = settings_.traced_steps > 0;
  traced_until_ = settings_.warm_up.value_or(0) + settings_.traced_steps;
  counting_since_ = network_.now();
  for (Node& node : nodes_) {
    node.times = {};
    node.times.counters = stats_of(*node.state);
    for (std::size_t table = 0; table < accesses_.tables.size(); ++table)
      node.times.tables.push_back(stats_of(*node.state, table));
  }
}

ReplayResult Replay::counted() {
  const auto since = [](std::map<std::string, double> now, const std::map<std::string, double>& then) {
    for (auto& [name, count] : now) {
      // These values are current sizes and not counts of events, so the values at the beginning are not
      // subtracted.
      if (name != "resident_bytes" && name != "slots" && name != "queued_bytes") count -= then.at(name);
    }
    return now;
  };
  for (Node& node : nodes_) {
    NodeReplay& own = node.times;
    result_.elapsed = std::max(result_.elapsed, own.last_step);
    own.counters = since(stats_of(*node.state), own.counters);
    for (std::size_t table = 0; table < own.tables.size(); ++table)
      own.tables[table] = since(stats_of(*node.state, table), own.tables[table]);
    result_.nodes.push_back(std::move(own));
  }
  return std::move(result_);
}

void Replay::trace(ReplaySpan::Kind kind, NodeId rank, std::size_t thread, std::uint64_t amount, Micros begin,
                   Micros end) {
  if (tracing_) result_.spans.push_back({kind, rank, static_cast<std::uint32_t>(thread), amount, begin, end});
}

Micros Replay::network_time(const Node& node) const {
  return node.network_time + (node.under_way == 0 ? 0 : network_.now() - node.network_since);
}

std::uint32_t Replay::timer(NodeId rank, std::size_t thread) const {
  return static_cast<std::uint32_t>(rank * (threads_ + kOtherTimers) + thread);
}

}  // namespace adaps
