#include "protocol/context.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace adaps {

namespace {

void validate(const Settings& settings) {
  const auto within = [](long value, long most, const char* name) {
    if (value < 1 || value > most)
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + "; it must be " +
                                  (value < 1 ? "at least 1" : "at most " + std::to_string(most)));
  };
  within(settings.nodes, kMaxNodes, "the number of nodes");
  within(settings.workers, kMaxWorkers, "workers");
  within(settings.channels, kMaxChannels, "channels");
  if (settings.max_queued_bytes == 0)
    throw std::invalid_argument("max_queued_bytes is 0; it must be above 0");
  if (settings.max_unsent_bytes == 0)
    throw std::invalid_argument("max_unsent_bytes is 0; it must be above 0");
  if (settings.rank >= settings.nodes) {
    throw std::invalid_argument("rank " + std::to_string(settings.rank) + " in a cluster of " +
                                std::to_string(settings.nodes) + " nodes; ranks begin at 0");
  }
  if (!(settings.max_rounds_per_second > 0.0)) {
    throw std::invalid_argument("max_rounds_per_second is " + std::to_string(settings.max_rounds_per_second) +
                                "; it must be above 0");
  }
  if (!(settings.max_round_bytes_per_second > 0.0)) {
    throw std::invalid_argument("max_round_bytes_per_second is " +
                                std::to_string(settings.max_round_bytes_per_second) + "; it must be above 0");
  }
}

Settings validated(const Settings& settings) {
  validate(settings);
  return settings;
}

bool any_other_technique(const Tables& tables, Technique technique) {
  const auto is_another = [&](const Management& management) {
    return management.technique.value_or(technique) != technique;
  };
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (std::any_of(tables[i].managements().begin(), tables[i].managements().end(), is_another)) return true;
  }
  return false;
}

// Every node needs a share of the rows. A node with a permanent copy of all rows would need their ids.
void check_ids(const Settings& settings, const Table& table) {
  const std::string name = "table '" + table.spec().name + "' has ids as keys";
  if (table.spec().rows < settings.nodes)
    throw std::invalid_argument(name + " and a capacity of " + std::to_string(table.spec().rows) +
                                "; it must be at least the number of nodes, " +
                                std::to_string(settings.nodes));
  const Technique technique = table.managements().front().technique.value_or(settings.technique);
  if (technique == Technique::kFullReplication)
    throw std::invalid_argument(name +
                                " and the technique full_replication; give it another one, such as "
                                "adaptive");
}

// Each channel needs memory for the row that it brings into memory.
void check_memory(const Settings& settings, const Table& table) {
  for (const Management& management : table.managements()) {
    if (management.technique.value_or(settings.technique) == Technique::kFullReplication)
      throw std::invalid_argument(
          "table '" + table.spec().name +
          "' has memory for some of its rows and the technique full_replication, which "
          "needs all of them on every node; give it another one, such as adaptive");
  }
  if (table.resident_rows() >= static_cast<std::uint64_t>(settings.channels)) return;
  throw std::invalid_argument("table '" + table.spec().name +
                              "' has memory=" + std::to_string(table.spec().memory) +
                              " bytes, which suffice for " + std::to_string(table.resident_rows()) +
                              " rows; it needs at least one for each of the " +
                              std::to_string(settings.channels) + " channels, so increase memory");
}

Directory directory_of(const Settings& settings, const Tables& tables) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].ids() != nullptr) check_ids(settings, tables[i]);
    if (tables[i].is_limited()) check_memory(settings, tables[i]);
    for (const HomeRange& home : tables[i].spec().homes) {
      if (home.node != kHomeByHash && home.node >= settings.nodes)
        throw std::invalid_argument("rows of table '" + tables[i].spec().name + "' have the home node " +
                                    std::to_string(home.node) + "; there are " +
                                    std::to_string(settings.nodes) + " nodes");
    }
  }
  return decisions().directory(settings, tables);
}

}  // namespace

void Trace::choose(std::span<const Key> keys) {
  const std::lock_guard guard(mutex_);
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  std::sort(keys_.begin(), keys_.end());
  keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  active_.store(!keys_.empty(), std::memory_order_relaxed);
}

bool Trace::contains(Key key) const {
  const std::lock_guard guard(mutex_);
  return std::binary_search(keys_.begin(), keys_.end(), key);
}

void Trace::add(Micros time, Key key, TraceKind kind) {
  const std::lock_guard guard(mutex_);
  events_.push_back({time, key, kind});
}

std::vector<TraceEvent> Trace::events() const {
  const std::lock_guard guard(mutex_);
  return events_;
}

bool LocalBarrier::arrive(Operation& operation, bool failed) {
  const std::lock_guard guard(mutex_);
  failed_ = failed_ || failed;
  withdraw(operation.worker);
  waiting_.push_back(&operation);
  return completes();
}

bool LocalBarrier::leave(int worker) {
  const std::lock_guard guard(mutex_);
  withdraw(worker);
  --present_;
  return present_ > 0 && completes();
}

void LocalBarrier::withdraw(int worker) {
  std::erase_if(waiting_, [worker](const Operation* operation) { return operation->worker == worker; });
}

bool LocalBarrier::completes() {
  if (has_arrived_ || static_cast<int>(waiting_.size()) != present_) return false;
  return has_arrived_ = true;
}

bool LocalBarrier::all_left() const {
  const std::lock_guard guard(mutex_);
  return present_ == 0;
}

bool LocalBarrier::failed() const {
  const std::lock_guard guard(mutex_);
  return failed_;
}

std::vector<Operation*> LocalBarrier::take(std::optional<NodeId> failed_node) {
  const std::lock_guard guard(mutex_);
  failed_ = false;
  has_arrived_ = false;
  failed_node_ = failed_node;
  return std::exchange(waiting_, {});
}

std::optional<NodeId> LocalBarrier::failed_node() const {
  const std::lock_guard guard(mutex_);
  return failed_node_;
}

NodeContext::NodeContext(std::vector<TableSpec> specs, const Settings& settings_in,
                         const MakeStorage& make_storage)
    : settings(validated(settings_in)),
      tables(std::move(specs)),
      mixed(any_other_technique(tables, settings.technique)),
      directory(directory_of(settings, tables)),
      store(tables, directory, settings.rank),
      storage(tables.any_limited() ? make_storage(tables, settings) : nullptr),
      barrier(settings.workers) {
  for (int i = 0; i < settings.workers; ++i) workers.push_back(std::make_unique<WorkerState>(tables.size()));
  for (int i = 0; i < settings.channels; ++i)
    partitions.push_back(std::make_unique<Partition>(settings, tables, workers));
  if (storage != nullptr)
    storage->set_waker([this](int channel) { partitions[static_cast<std::size_t>(channel)]->wake(); });
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const TableSpec& spec = tables[i].spec();
    const std::uint64_t share = share_of(spec.rows, settings.nodes, settings.rank).size();
    if (tables[i].ids() != nullptr) tables[i].ids()->set_admission(spec.admit_seen, share);
    if (tables[i].uses() == nullptr) continue;
    tables[i].uses()->set_order(spec.evict, share, static_cast<Tick>(spec.ttl * settings.workers),
                                partitions.size(), settings.workers);
  }
}

void NodeContext::end_uses(int worker) {
  if (!tables.any_uses()) return;
  if (workers[static_cast<std::size_t>(worker)]->tick.load() == WorkerState::kLeft) return;
  const std::uint64_t now = tick.fetch_add(1) + 1;
  workers[static_cast<std::size_t>(worker)]->tick.store(now, std::memory_order_release);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (RowUses* const uses = tables[i].uses()) uses->renew(now, [this](RowUse use) { return is_over(use); });
  }
}

void NodeContext::end_all_uses(int worker) {
  workers[static_cast<std::size_t>(worker)]->tick.store(WorkerState::kLeft, std::memory_order_release);
}

std::uint64_t NodeContext::used_since(RowUse use) const {
  if (use.worker != RowUse::kSeveral) return workers[use.worker]->tick.load(std::memory_order_acquire);
  std::uint64_t since = WorkerState::kLeft;
  for (const auto& worker : workers) since = std::min(since, worker->tick.load(std::memory_order_acquire));
  return since;
}

void NodeContext::wake_channels() const {
  for (const auto& partition : partitions) partition->wake();
}

void NodeContext::check() const {
  if (!failed.load(std::memory_order_acquire)) return;
  const std::lock_guard guard(failure_mutex);
  throw PeerLost(failed_peer, failure_reason);
}

std::optional<NodeId> NodeContext::lost_peer() const {
  if (!failed.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard guard(failure_mutex);
  return failed_peer;
}

void NodeContext::fail(NodeId peer, const std::string& reason) {
  {
    const std::lock_guard guard(failure_mutex);
    if (failed.load(std::memory_order_relaxed)) return;
    failed_peer = peer;
    failure_reason = "rank " + std::to_string(peer) + " is lost: " + reason;
    failed.store(true, std::memory_order_release);
  }
  for (const auto& worker : workers) {
    const std::lock_guard guard(worker->completion.mutex);
    worker->completion.changed.notify_all();
  }
  announce_ending();
}

void NodeContext::announce_ending() {
  const std::lock_guard guard(ending_mutex);
  ending_changed.notify_all();
}

}  // namespace adaps
