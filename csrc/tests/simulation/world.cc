#include "simulation/world.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

// Limits for the number of steps, far more than a world needs to come to rest.
constexpr Step kStepsPerCall = 400;
constexpr Step kStepsAnyway = 20'000;

}  // namespace

World::World(const WorldSpec& spec, std::vector<std::string>* log)
    : spec_(spec),
      log_(log),
      cluster_(spec, static_cast<std::uint32_t>(spec.programs.size())),
      random_(spec.seed, 0x776f726c64),
      first_caller_timer_(cluster_.first_further_timer()),
      lives_(spec.keys.size()),
      next_life_(static_cast<std::uint32_t>(spec.keys.size())),
      retired_(spec.settings.nodes),
      refused_(spec.keys.size()),
      used_(spec.settings.nodes, std::vector<Step>(spec.keys.size(), -1)) {
  std::iota(lives_.begin(), lives_.end(), 0U);
  SimulatedNetwork& network = cluster_.network();
  cluster_.set_log(log);
  network.set_merging(spec.merging);
  for (NodeId from = 0; from < cluster_.nodes(); ++from) {
    for (NodeId to = 0; to < cluster_.nodes(); ++to) {
      network.set_traits(from, to, spec.links[static_cast<std::size_t>(from) * cluster_.nodes() + to]);
    }
  }
  const bool checks_exchanges = longest_exchange(spec) > 0;
  const bool checks_room = limits_room(spec);
  if (spec.freeze_probability > 0.0 || checks_exchanges || checks_room) {
    cluster_.on_sent = [this, checks_exchanges, checks_room](const NetworkLink& link, const Entry& entry) {
      if (checks_room) check_room(link, entry);
      if (checks_exchanges) check_exchange(link, entry);
      if (spec_.freeze_probability > 0.0) freeze_after(link, entry.type);
    };
  }
  for (NodeId node = 0; node < cluster_.nodes(); ++node) {
    const Tables& tables = cluster_.node(node).tables;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].uses() == nullptr) continue;
      std::vector<Key> rows(tables[i].spec().rows);
      std::iota(rows.begin(), rows.end(), tables[i].first_key());
      cluster_.node(node).trace.choose(rows);
    }
    for (int channel = 0; channel < cluster_.channels(); ++channel) {
      cluster_.channel(node, channel).partition().set_waker([this, node, channel] {
        wake_later(node, channel);
      });
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
    caller->found.resize(spec.keys.size());
    calls += program.size();
    callers_.push_back(std::move(caller));
    continue_later(*callers_.back());
  }
  history_.reserve(calls);
  step_limit_ = kStepsAnyway + kStepsPerCall * static_cast<Step>(calls);
}

void World::run_until_quiet() {
  SimulatedNetwork& network = cluster_.network();
  for (;;) {
    const SimulatedNetwork::Event event = network.next();
    if (event.kind == SimulatedNetwork::Event::Kind::kNothingLeft) break;
    if (++step_ > step_limit_) throw Violation("progress: the world does not come to rest");
    if (event.kind == SimulatedNetwork::Event::Kind::kFrame) {
      cluster_.deliver(event.link, event.frame);
      wake_later(event.link.to, event.link.channel);
      if (spec_.backlog) wake_later(event.link.from, event.link.channel);
      collect(event.link.to);
    } else if (cluster_.transfer(event.timer)) {
      continue;
    } else if (event.timer < first_caller_timer_) {
      const auto node = static_cast<NodeId>(event.timer / static_cast<std::uint32_t>(cluster_.channels()));
      const int channel = static_cast<int>(event.timer) % cluster_.channels();
      const Micros due = cluster_.tick(node, channel);
      if (due <= network.now()) {
        wake_later(node, channel);  // a slice takes time, during which frames arrive
      } else if (due != kNever) {
        network.set_timer(event.timer, due);
      }
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
      throw Violation("progress: worker ", caller->worker, " of node ", caller->node, " waits for ever");
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
  const Key key = key_of(intent.key).value();
  const Clock now = clock(intent.node, intent.worker);
  need(intent.node, intent.worker, intent.key, now + length);
  cluster_.channel(intent.node, cluster_.node(intent.node).directory.channel(key))
      .partition()
      .submit_intent(intent.worker, {key}, now, now + length);
}

std::optional<Key> World::key_at(NodeId node, std::uint32_t position) {
  const Key key = spec_.keys[position];
  if (!has_id(spec_, position)) return key;
  const Table& table = cluster_.node(node).tables.find(key);
  const std::int64_t row = table.ids()->find(spec_.ids[position]);
  if (row == RowIds::kUnknown) return std::nullopt;
  return table.first_key() + static_cast<Key>(row);
}

std::optional<Key> World::key_of(std::uint32_t position) {
  for (NodeId node = 0; node < cluster_.nodes(); ++node) {
    if (const std::optional<Key> key = key_at(node, position)) return key;
  }
  return std::nullopt;
}

void World::end_all_intents() { advance_clocks(2 * kForGood); }

void World::advance_clocks(Clock by) {
  for (const auto& caller : callers_) advance_clock(*caller, by);
}

void World::collect(NodeId node) {
  check_capacity(node);
  end_lives(node);
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
      if (pending.operation.kind == OperationKind::kSync) exchanged_.clear();
      if (caller.waits_for == &pending) caller.waits_for = nullptr;
      // The operation is freed at once, so that AddressSanitizer detects any later access to it.
      caller.pending.erase(caller.pending.begin() + static_cast<std::ptrdiff_t>(p));
      if (caller.pending.empty()) caller.waits_for_all = false;
      if (caller.waits_for_room || (caller.submitting == nullptr && !caller.blocked()))
        continue_later(caller);
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

// Checks that no table has more rows in memory than its memory allows, nor more rows with ids than its
// capacity.
void World::check_capacity(NodeId rank) {
  const NodeState& node = cluster_.node(rank);
  for (std::size_t i = 0; i < node.tables.size(); ++i) {
    const Table& table = node.tables[i];
    if (!table.is_limited()) continue;
    if (const std::uint64_t slots = node.store.arena(table).in_use(); slots > table.resident_rows())
      throw Violation("memory: ", slots, " rows of ", table.spec().name, " are in memory for ",
                      table.resident_rows());
    const RowIds* ids = table.ids();
    const std::uint64_t share = share_of(table.spec().rows, cluster_.nodes(), rank).size();
    if (ids != nullptr && ids->assigned() > share)
      throw Violation("capacity: ", ids->assigned(), " ids have rows of ", share);
  }
}

// Checks that changes of a key are sent at most once per exchange interval, counted in clocks of their
// sender. Changes for which a call waits are exceptions: during any wait_sync, before an answer to a holder,
// and before a set. Changes that the network delayed, or for which a link had no room, are sent as soon as
// possible.
void World::check_exchange(const NetworkLink& link, const Entry& entry) {
  const bool refresh = entry.type == MessageType::kRefresh;
  if (entry.type != MessageType::kDelta && (!refresh || spec_.backlog)) return;
  if (limits_room(spec_)) return;
  const Clock exchange = exchange_of(spec_, entry.key);
  if (exchange == 0 || any_sync() || calls_with(refresh ? link.to : link.from, entry.key)) return;
  Clock now = 0;
  for (int worker = 0; worker < spec_.settings.workers; ++worker)
    now = std::max(now, clock(link.from, worker));
  const auto [before, first] = exchanged_.try_emplace({link.from, link.to, entry.key, entry.type}, now);
  if (!first && now - before->second < exchange) {
    throw Violation("exchange: key ", entry.key, " after ", now - before->second, " clocks, not ", exchange);
  }
  before->second = now;
}

// Checks that messages without a waiting caller are kept back while too many bytes of such messages wait. Two
// kinds of messages may be sent because a call needs them: a refresh of the replica on the caller's node, and
// the change that must precede it.
void World::check_room(const NetworkLink& link, const Entry& entry) {
  const bool refresh = entry.type == MessageType::kRefresh;
  const bool setup = entry.type == MessageType::kSetup;
  if (!refresh && !setup && entry.type != MessageType::kDelta) return;
  if (!setup && calls_with(refresh ? link.to : link.from, entry.key)) return;
  const std::uint64_t limit = std::max<std::uint64_t>(
      spec_.settings.max_unsent_bytes / static_cast<std::size_t>(cluster_.channels()), 1);
  const bool has_value = !setup || entry.bytes.size() > sizeof(SetupMessage);
  if (const std::uint64_t waiting = cluster_.waiting(link); has_value && waiting >= limit)
    throw Violation("room: ", waiting, " bytes wait on a link with room for ", limit);
  cluster_.add_waiting(link, entry.bytes.size());
}

bool World::any_sync() const {
  return std::any_of(callers_.begin(), callers_.end(), [](const auto& caller) {
    return std::any_of(caller->pending.begin(), caller->pending.end(),
                       [](const auto& pending) { return pending->operation.kind == OperationKind::kSync; });
  });
}

bool World::calls_with(NodeId node, Key key) const {
  return std::any_of(callers_.begin(), callers_.end(), [&](const auto& caller) {
    return caller->node == node &&
           std::any_of(caller->pending.begin(), caller->pending.end(), [&](const auto& pending) {
             return std::find(pending->keys.begin(), pending->keys.end(), key) != pending->keys.end();
           });
  });
}

void World::freeze_after(const NetworkLink& link, MessageType type) {
  if (type != spec_.freeze_type || !random_.chance(spec_.freeze_probability)) return;
  const double length = random_.uniform(spec_.freeze_shortest, spec_.freeze_longest);
  cluster_.network().freeze(link, cluster_.network().now() + static_cast<Micros>(length));
}

}  // namespace adaps::simulation
