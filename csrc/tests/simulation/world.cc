#include "simulation/world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "adaps/local.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

// Far more than a world needs that comes to rest.
constexpr Step kStepsPerCall = 400;
constexpr Step kStepsAnyway = 20'000;

OperationKind operation_kind(CallKind kind) {
  switch (kind) {
    case CallKind::kPush:
      return OperationKind::kPush;
    case CallKind::kPushGradients:
      return OperationKind::kPushGradients;
    case CallKind::kSet:
      return OperationKind::kSet;
    case CallKind::kSync:
      return OperationKind::kSync;
    case CallKind::kBarrier:
      return OperationKind::kBarrier;
    default:
      return OperationKind::kPull;
  }
}

}  // namespace

struct World::Pending {
  Pending(OperationKind kind, int worker, Completion& completion) : operation(kind, worker, completion) {}

  Operation operation;
  std::size_t record = 0;
  std::vector<Key> keys;
  std::vector<std::uint32_t> positions;  // of the keys in the world's list
  std::vector<float> floats;
};

struct World::Caller {
  NodeId node = 0;
  int worker = 0;
  std::uint32_t number = 0;
  const Program* program = nullptr;
  std::size_t next = 0;
  std::vector<std::unique_ptr<Pending>> pending;
  Pending* submitting = nullptr;
  int parts_left = 0;
  const Pending* waits_for = nullptr;
  bool waits_for_all = false;
  bool waits_for_others = false;

  bool blocked() const { return waits_for != nullptr || waits_for_all || waits_for_others; }
  bool finished() const { return next == program->size() && pending.empty() && !blocked(); }
};

World::World(const WorldSpec& spec, std::vector<std::string>* log)
    : spec_(spec),
      log_(log),
      cluster_(spec, static_cast<std::uint32_t>(spec.programs.size())),
      random_(spec.seed, 0x776f726c64),
      first_caller_timer_(static_cast<std::uint32_t>(spec.settings.nodes * spec.settings.channels)),
      pushes_(spec.keys.size()) {
  SimulatedNetwork& network = cluster_.network();
  cluster_.set_log(log);
  network.set_merging(spec.merging);
  network.set_reordering(spec.reordering);
  for (NodeId from = 0; from < cluster_.nodes(); ++from) {
    for (NodeId to = 0; to < cluster_.nodes(); ++to) {
      network.set_traits(from, to, spec.links[static_cast<std::size_t>(from) * cluster_.nodes() + to]);
    }
  }
  if (spec.freeze_probability > 0.0) {
    cluster_.on_sent = [this](const Link& link, MessageType type) { freeze_after(link, type); };
  }
  for (NodeId node = 0; node < cluster_.nodes(); ++node) {
    for (int channel = 0; channel < cluster_.channels(); ++channel) {
      cluster_.channel(node, channel).set_waker([this, node, channel] { wake_later(node, channel); });
      wake_later(node, channel);
    }
  }
  std::size_t calls = 0;
  for (const Program& program : spec.programs) {
    auto caller = std::make_unique<Caller>();
    caller->number = static_cast<std::uint32_t>(callers_.size());
    caller->node = static_cast<NodeId>(callers_.size() / static_cast<std::size_t>(spec.settings.workers));
    caller->worker = static_cast<int>(callers_.size() % static_cast<std::size_t>(spec.settings.workers));
    caller->program = &program;
    calls += program.size();
    callers_.push_back(std::move(caller));
    continue_later(*callers_.back());
  }
  history_.reserve(calls);
  step_limit_ = kStepsAnyway + kStepsPerCall * static_cast<Step>(calls);
}

World::~World() = default;

void World::run_until_quiet() {
  SimulatedNetwork& network = cluster_.network();
  for (;;) {
    const SimulatedNetwork::Event event = network.next();
    if (event.kind == SimulatedNetwork::Event::Kind::kNothingLeft) break;
    if (++step_ > step_limit_) throw Violation("progress: the world does not come to rest");
    if (event.kind == SimulatedNetwork::Event::Kind::kFrame) {
      cluster_.deliver(event.link, event.frame);
      wake_later(event.link.to, event.link.channel);
      collect(event.link.to);
    } else if (event.timer < first_caller_timer_) {
      const auto node = static_cast<NodeId>(event.timer / static_cast<std::uint32_t>(cluster_.channels()));
      const int channel = static_cast<int>(event.timer) % cluster_.channels();
      const Micros due = cluster_.tick(node, channel);
      if (due != kNever) network.set_timer(event.timer, std::max(due, network.now() + 1));
      collect(node);
    } else {
      Caller& caller = *callers_[event.timer - first_caller_timer_];
      if (caller.submitting != nullptr) {
        submit_part(caller);
      } else if (!caller.blocked() && caller.next < caller.program->size()) {
        perform(caller, (*caller.program)[caller.next++]);
      }
      collect(caller.node);
    }
  }
  for (const auto& caller : callers_) {
    if (!caller->finished()) {
      throw Violation("progress: worker " + std::to_string(caller->worker) + " of node " +
                      std::to_string(caller->node) + " waits for ever");
    }
  }
}

void World::perform(NodeId node, int worker, const Call& call) {
  ++step_;
  perform(*callers_[static_cast<std::size_t>(node * spec_.settings.workers + worker)], call);
  collect(node);
}

void World::settle(NodeId node) {
  ++step_;
  collect(node);
}

void World::extend_intent(const Intent& intent, Clock length) {
  const Key key = spec_.keys[intent.key];
  const Clock now = clock(intent.node, intent.worker);
  cluster_.channel(intent.node, cluster_.node(intent.node).directory.channel(key))
      .submit_intent(intent.worker, {key}, now, now + length);
}

void World::end_all_intents() {
  constexpr Clock kBeyond = 1000;
  for (const auto& caller : callers_) advance_clock(*caller, kBeyond);
}

// --- workers
// ---------------------------------------------------------------------------------------------------------

void World::perform(Caller& caller, const Call& call) {
  if (log_ != nullptr) {
    cluster_.note("n" + std::to_string(caller.node) + " worker " + std::to_string(caller.worker) + ": " +
                  describe(call));
  }
  switch (call.kind) {
    case CallKind::kIntent:
      signal_intent(caller, call);
      break;
    case CallKind::kClock:
      advance_clock(caller, 1);
      break;
    case CallKind::kWaitAll:
      caller.waits_for_all = !caller.pending.empty();
      break;
    case CallKind::kBarrier:
      if (spec_.weak_barrier) {
        arrive_at_barrier(caller);
        return;
      }
      call_operation(caller, call);
      return;
    default:
      call_operation(caller, call);
      return;
  }
  if (!caller.blocked()) continue_later(caller);
}

void World::call_operation(Caller& caller, const Call& call) {
  NodeState& node = cluster_.node(caller.node);
  auto owned = std::make_unique<Pending>(operation_kind(call.kind), caller.worker,
                                         state(caller.node, caller.worker).completion);
  Pending& pending = *owned;
  caller.pending.push_back(std::move(owned));
  pending.record = history_.size();
  history_.push_back({call.kind,
                      caller.node,
                      caller.number,
                      call.asynchronous,
                      step_,
                      kOpen,
                      cluster_.network().now(),
                      0,
                      {},
                      {}});
  if (!call.asynchronous) caller.waits_for = &pending;
  Operation& operation = pending.operation;
  if (call.kind == CallKind::kSync) {
    operation.left.store(static_cast<std::uint32_t>(cluster_.channels()) + 1);
    node.epochs.wait(operation);
    caller.parts_left = cluster_.channels();
  } else if (call.kind == CallKind::kBarrier) {
    operation.left.store(1);
    if (node.gathering.arrive(operation)) node.channels[0]->submit_gathered(false);
    return;
  } else {
    fill(call, pending);
    start(node, operation, pending.keys);
    if (operation.done.load()) return;
    caller.parts_left = 1;
  }
  caller.submitting = &pending;
  if (spec_.submit[caller.number] == 0.0) {
    while (caller.submitting != nullptr) submit_part(caller);
  } else {
    continue_later(caller);
  }
}

// What a worker thread does after it started an operation; other threads may act in between.
void World::submit_part(Caller& caller) {
  Operation& operation = caller.submitting->operation;
  NodeState& node = cluster_.node(caller.node);
  --caller.parts_left;
  if (operation.kind == OperationKind::kSync) {
    node.channels[static_cast<std::size_t>(caller.parts_left)]->submit_sync(operation);
  } else {
    submit_units(node, operation);
  }
  if (caller.parts_left == 0) {
    caller.submitting = nullptr;
    if (!caller.blocked()) continue_later(caller);
  } else if (spec_.submit[caller.number] > 0.0) {
    continue_later(caller);
  }
}

// The arrays of a call. Everything it writes gets a number of its own.
void World::fill(const Call& call, Pending& pending) {
  Record& record = history_[pending.record];
  const Tables& tables = cluster_.node(0).tables;
  std::size_t floats = 0;
  for (const std::uint32_t position : call.keys) {
    pending.keys.push_back(spec_.keys[position]);
    floats += tables.find(spec_.keys[position]).length();
  }
  pending.positions = call.keys;
  pending.floats.assign(floats, std::numeric_limits<float>::quiet_NaN());
  pending.operation.out = pending.floats.data();
  pending.operation.in = pending.floats.data();
  if (call.kind == CallKind::kPull) return;
  float* at = pending.floats.data();
  for (const std::uint32_t position : call.keys) {
    const std::span<float> row(at, tables.find(spec_.keys[position]).length());
    at += row.size();
    const std::uint32_t number = call.kind == CallKind::kSet ? ++sets_ : pushes_[position]++;
    record.writes.push_back({position, number});
    if (call.kind == CallKind::kSet) {
      write_set(number, row);
    } else {
      write_push(number, row);
    }
    if (call.kind == CallKind::kPushGradients) {  // with a learning rate of 1
      for (float& x : row) x = -x;
    }
  }
}

void World::signal_intent(Caller& caller, const Call& call) {
  if (!spec_.settings.uses_intent()) return;
  NodeState& node = cluster_.node(caller.node);
  const Clock start = clock(caller.node, caller.worker) + call.start_in;
  std::vector<std::vector<Key>> by_channel(node.channels.size());
  for (const std::uint32_t position : call.keys) {
    const Key key = spec_.keys[position];
    by_channel[static_cast<std::size_t>(node.directory.channel(key))].push_back(key);
    intents_.push_back({caller.node, caller.worker, position, start, start + call.length});
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) {
      node.channels[i]->submit_intent(caller.worker, std::move(by_channel[i]), start, start + call.length);
    }
  }
}

void World::advance_clock(Caller& caller, Clock by) {
  const Clock clock = state(caller.node, caller.worker).clock.fetch_add(by) + by;
  for (const auto& channel : cluster_.node(caller.node).channels) channel->on_clock(caller.worker, clock);
}

void World::arrive_at_barrier(Caller& caller) {
  caller.waits_for_others = true;
  if (++at_weak_barrier_ < callers_.size()) return;
  at_weak_barrier_ = 0;
  for (const auto& other : callers_) {
    other->waits_for_others = false;
    continue_later(*other);
  }
}

void World::complete(Caller& caller, Pending& pending) {
  Record& record = history_[pending.record];
  record.end = step_;
  record.ended = cluster_.network().now();
  if (record.kind == CallKind::kPull) {
    const Tables& tables = cluster_.node(0).tables;
    const float* at = pending.floats.data();
    for (std::size_t i = 0; i < pending.keys.size(); ++i) {
      const std::span<const float> row(at, tables.find(pending.keys[i]).length());
      at += row.size();
      record.reads.push_back({pending.positions[i], read_content(row)});
    }
  }
  if (log_ != nullptr) {
    std::string line = "n" + std::to_string(caller.node) + " worker " + std::to_string(caller.worker) +
                       ":   " + name_of(record.kind) + " done";
    for (const Read& read : record.reads)
      line += " k" + std::to_string(read.key) + "=" + to_string(read.content);
    for (const Write& write : record.writes) {
      line += " k" + std::to_string(write.key) + (record.kind == CallKind::kSet ? "=set " : "+") +
              std::to_string(write.number);
    }
    cluster_.note(line);
  }
}

void World::collect(NodeId node) {
  const auto workers = static_cast<std::size_t>(spec_.settings.workers);
  for (std::size_t i = node * workers; i < (node + 1) * workers; ++i) {
    Caller& caller = *callers_[i];
    for (std::size_t p = 0; p < caller.pending.size();) {
      Pending& pending = *caller.pending[p];
      if (!pending.operation.done.load()) {
        ++p;
        continue;
      }
      complete(caller, pending);
      if (caller.waits_for == &pending) caller.waits_for = nullptr;
      // Freed at once: what still touches it is a bug that AddressSanitizer sees.
      caller.pending.erase(caller.pending.begin() + static_cast<std::ptrdiff_t>(p));
      if (caller.pending.empty()) caller.waits_for_all = false;
      if (caller.submitting == nullptr && !caller.blocked()) continue_later(caller);
    }
  }
}

void World::continue_later(Caller& caller) {
  const double mean = caller.submitting != nullptr ? spec_.submit[caller.number] : spec_.think[caller.number];
  cluster_.network().set_timer(first_caller_timer_ + caller.number,
                               cluster_.network().now() + static_cast<Micros>(random_.exponential(mean)));
}

void World::wake_later(NodeId node, int channel) {
  cluster_.network().set_timer(
      cluster_.tick_timer(node, channel),
      cluster_.network().now() + static_cast<Micros>(random_.exponential(spec_.tick[node])));
}

void World::freeze_after(const Link& link, MessageType type) {
  if (type != spec_.freeze_type || !random_.chance(spec_.freeze_probability)) return;
  const double length = random_.uniform(spec_.freeze_shortest, spec_.freeze_longest);
  cluster_.network().freeze(link, cluster_.network().now() + static_cast<Micros>(length));
}

}  // namespace adaps::simulation
