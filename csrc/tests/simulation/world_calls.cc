// The calls of a world's workers.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "node/snapshot.h"
#include "protocol/id_listings.h"
#include "protocol/local_access.h"
#include "protocol/row_assignment.h"
#include "simulation/text.h"
#include "simulation/violation.h"
#include "simulation/world.h"

namespace adaps::simulation {

namespace {

OperationKind operation_kind(CallKind kind) {
  static const std::map<CallKind, OperationKind> kinds = {
      {CallKind::kPush, OperationKind::kPush},
      {CallKind::kPushGradients, OperationKind::kPushGradients},
      {CallKind::kSet, OperationKind::kSet},
      {CallKind::kPullState, OperationKind::kPullState},
      {CallKind::kSetState, OperationKind::kSetState},
      {CallKind::kWaitIntent, OperationKind::kLocalize},
      {CallKind::kSync, OperationKind::kSync},
      {CallKind::kBarrier, OperationKind::kBarrier},
      {CallKind::kRowsOf, OperationKind::kRowsOf},
      {CallKind::kUsedIds, OperationKind::kUsedIds},
  };
  const auto found = kinds.find(kind);
  return found == kinds.end() ? OperationKind::kPull : found->second;
}

// Number of floats of one row in the arrays of a call.
std::size_t floats_of(OperationKind kind, const Table& table) {
  return is_about_state(kind) ? table.state_length() : table.length();
}

// All rows of a table have the same initial state.
std::vector<float> initial_state(const Table& table) {
  std::vector<float> state(table.state_length());
  table.spec().rule.init_state(state.data(), table.length());
  return state;
}

}  // namespace

// If the node does not know the id of a row, or may have retired the row since the worker found it, the call
// does not access this row.
void World::perform(Caller& caller, const Call& given) {
  Call call = given;
  if (!spec_.ids.empty() && call.kind != CallKind::kRowsOf) {
    std::erase_if(call.keys, [&](std::uint32_t position) { return !may_use(caller, position); });
    if (call.keys.empty() && !given.keys.empty()) {
      continue_later(caller);
      return;
    }
  }
  if (log_ != nullptr) {
    cluster_.note(joined("n", caller.node, " worker ", caller.worker, ": ", describe(call)));
  }
  switch (call.kind) {
    case CallKind::kIntent:
      signal_intent(caller, call);
      break;
    case CallKind::kPrepareSample:
      prepare_sample(caller, call);
      break;
    case CallKind::kPullSample:
      if (caller.samples.empty()) break;
      call_operation(caller, call);
      return;
    case CallKind::kClock:
      advance_clock(caller, 1);
      break;
    case CallKind::kWaitAll:
      caller.waits_for_all = !caller.pending.empty();
      // A worker can also wait by asking repeatedly whether the call is complete, which hurries nothing.
      for (const auto& pending : caller.pending) {
        if (random_.chance(0.5)) hurry_sync(cluster_.node(caller.node), pending->operation);
      }
      break;
    case CallKind::kFreeze:
      freeze(cluster_.node(caller.node));
      break;
    case CallKind::kCount:
      count_rows(caller);
      break;
    case CallKind::kTake:
      take_snapshot(caller);
      break;
    case CallKind::kThaw:
      thaw(cluster_.node(caller.node));
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
  pending.clock = clock(caller.node, caller.worker);
  pending.start = step_;
  pending.used_since = used_since();
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
    operation.clock = clock(caller.node, caller.worker);
    operation.patient.store(call.patient);
    node.epochs.wait(operation);
    caller.parts_left = cluster_.channels();
  } else if (call.kind == CallKind::kBarrier) {
    operation.left.store(1);
    if (node.barrier.arrive(operation)) node.partitions[0]->submit_arrival(false);
    return;
  } else {
    if (call.kind == CallKind::kPullSample) {
      start_pull_of_sample(caller, pending);
    } else if (call.kind == CallKind::kRowsOf) {
      start_rows_of_call(caller, call, pending);
    } else if (call.kind == CallKind::kUsedIds) {
      pending.used_before = accessed_;
      pending.retired = std::accumulate(retired_.begin(), retired_.end(), std::size_t{0});
      operation.id_listing = std::make_unique<IdListing>(&node.tables[call.table]);
      start_used_ids(node, operation);
    } else {
      use_rows(caller, call.keys);
      fill(caller, call, pending);
      if (call.kind != CallKind::kWaitIntent) accessed_.insert(call.keys.begin(), call.keys.end());
      if (call.kind == CallKind::kPull) {
        start_pull(caller, pending);
      } else {
        start(node, operation, pending.keys);
      }
    }
    if (operation.done.load()) return;
    caller.parts_left = 1;
  }
  caller.submitting = &pending;
  if (spec_.submit[caller.number] == 0.0) {
    while (caller.submitting != nullptr && !caller.waits_for_room) submit_part(caller);
  } else {
    continue_later(caller);
  }
}

// The next action of a worker thread after it has started an operation. Other threads may act before.
void World::submit_part(Caller& caller) {
  Operation& operation = caller.submitting->operation;
  NodeState& node = cluster_.node(caller.node);
  caller.waits_for_room = operation.kind != OperationKind::kSync && !may_queue_more(node, caller.worker);
  if (caller.waits_for_room) return;
  --caller.parts_left;
  if (operation.kind == OperationKind::kSync) {
    node.partitions[static_cast<std::size_t>(caller.parts_left)]->submit_sync(operation);
  } else {
    if (operation.kind == OperationKind::kRowsOf) {
      submit_id_requests(node, operation);
    } else if (operation.kind == OperationKind::kUsedIds) {
      node.partitions[0]->submit_id_listing(operation);
    } else {
      submit_requests(node, operation);
    }
    if (operation.completion.queued_bytes.load() >= spec_.settings.max_queued_bytes + operation.bytes)
      throw Violation("queue: ", operation.completion.queued_bytes.load(), " bytes are on the way");
  }
  if (caller.parts_left == 0) {
    caller.submitting = nullptr;
    if (!caller.blocked()) continue_later(caller);
  } else if (spec_.submit[caller.number] > 0.0) {
    continue_later(caller);
  }
}

// A row may be retired after it was read, while other rows of the call are not answered yet.
void World::note_lives(Pending& pending) const {
  for (const std::uint32_t position : pending.positions) pending.lives.push_back(life(position));
}

// Fills the arrays of a call. Every write gets its own number.
void World::fill(const Caller& caller, const Call& call, Pending& pending) {
  Record& record = history_[pending.record];
  const Tables& tables = cluster_.node(0).tables;
  std::size_t floats = 0;
  for (const std::uint32_t position : call.keys) {
    pending.keys.push_back(key_at(caller.node, position).value());
    floats += floats_of(pending.operation.kind, tables.find(spec_.keys[position]));
  }
  pending.positions = call.keys;
  note_lives(pending);
  pending.floats.assign(floats, std::numeric_limits<float>::quiet_NaN());
  pending.operation.out = pending.floats.data();
  pending.operation.in = pending.floats.data();
  if (!is_write(pending.operation.kind)) return;
  float* at = pending.floats.data();
  for (const std::uint32_t position : call.keys) {
    const std::span<float> row(at, floats_of(pending.operation.kind, tables.find(spec_.keys[position])));
    at += row.size();
    if (call.kind == CallKind::kSetState) {
      fill_state(position, row, record);
      continue;
    }
    const std::uint32_t number = call.kind == CallKind::kSet ? ++sets_ : pushes_[life(position)]++;
    record.writes.push_back({life(position), number});
    if (spec_.rough) {
      write_rough(number, row);
    } else if (call.kind == CallKind::kSet) {
      write_set(number, row, spec_.coding());
    } else {
      write_push(number, row, spec_.coding());
    }
    if (call.kind == CallKind::kPushGradients) {  // with a learning rate of 1
      for (float& x : row) x = -x;
    }
  }
}

// In a rough world, a set_state writes the initial state, which is valid for every update rule.
void World::fill_state(std::uint32_t position, std::span<float> state, Record& record) {
  if (state.empty()) return;
  record.writes.push_back({life(position), ++state_sets_});
  if (spec_.rough) {
    const Key key = spec_.keys[position];
    std::ranges::copy(initial_state(cluster_.node(0).tables.find(key)), state.begin());
  } else {
    write_set(state_sets_, state, spec_.coding());
  }
}

StateContent World::read_state(Key key, std::span<const float> state) {
  return simulation::read_state(state, initial_state(cluster_.node(0).tables.find(key)), spec_.coding());
}

void World::signal_intent(Caller& caller, const Call& call) {
  NodeState& node = cluster_.node(caller.node);
  const Clock start = clock(caller.node, caller.worker) + call.start_in;
  std::vector<std::vector<Key>> by_channel(node.partitions.size());
  for (const std::uint32_t position : call.keys) {
    const Key key = key_at(caller.node, position).value();
    need(caller.node, caller.worker, position, start + call.length);
    if (node.counts_intent(key) || node.uses_of(key) != nullptr)
      by_channel[static_cast<std::size_t>(node.directory.channel(key))].push_back(key);
    if (node.settings.nodes > 1 && technique_of(spec_, key) != Technique::kStatic)
      intents_.push_back({caller.node, caller.worker, position, start, start + call.length});
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) {
      node.partitions[i]->submit_intent(caller.worker, std::move(by_channel[i]), start, start + call.length);
    }
  }
}

void World::prepare_sample(Caller& caller, const Call& call) {
  NodeState& node = cluster_.node(caller.node);
  caller.samplers.resize(node.tables.size());
  caller.pools.resize(node.tables.size());
  std::unique_ptr<Sampler>& sampler = caller.samplers[call.table];
  if (sampler == nullptr) sampler = Sampler::make(node, caller.worker, node.tables[call.table]);
  const Clock now = clock(caller.node, caller.worker);
  const Clock start = now + call.start_in;
  const Clock end = start + call.length;
  std::vector<Announcement> announcements;
  Sample sample = sampler->prepare(call.size, start, end, announcements);
  for (const Announcement& announced : announcements) {
    Call intent;
    intent.kind = CallKind::kIntent;
    for (const Key key : announced.keys) intent.keys.push_back(position_of(key));
    intent.start_in = announced.start - now;
    intent.length = announced.end - announced.start;
    signal_intent(caller, intent);
  }
  // Intent counts as signalled for every drawn key, also if the scheme signals none.
  for (const Key key : sample.keys) {
    if (node.settings.nodes > 1 && technique_of(spec_, key) != Technique::kStatic)
      intents_.push_back({caller.node, caller.worker, position_of(key), start, end});
  }
  if (sampler->table().spec().sampling->scheme == SamplingScheme::kPool)
    check_pool(caller, call.table, sample.keys);
  caller.samples.push_back({sampler.get(), std::move(sample)});
}

// Each pass returns the whole pool. With replacement, each pass renews a part of the pool. Without
// replacement, the whole pool is renewed when it is used up.
void World::check_pool(Caller& caller, std::size_t table, const std::vector<Key>& keys) {
  const SamplingSpec& sampling = *caller.samplers[table]->table().spec().sampling;
  const std::uint64_t rows = sampling.replacement
                                 ? sampling.pool_size
                                 : std::min(sampling.pool_size, sampling.distribution->possible());
  const std::uint64_t reuse = sampling.reuse;
  const auto is_new = [&](std::uint64_t row, std::uint64_t pass) {
    return sampling.replacement ? row % reuse == (pass + reuse - 1) % reuse : pass % reuse == 0;
  };
  PoolSeen& seen = caller.pools[table];
  for (const Key key : keys) {
    seen.handed_out.push_back(key);
    if (seen.handed_out.size() < rows) continue;
    std::vector<Key> pool = std::exchange(seen.handed_out, {});
    std::sort(pool.begin(), pool.end());
    std::vector<Key> common;
    std::set_intersection(pool.begin(), pool.end(), seen.before.begin(), seen.before.end(),
                          std::back_inserter(common));
    std::uint64_t stay = 0;
    for (std::uint64_t row = 0; row < rows; ++row) stay += is_new(row, seen.passes) ? 0 : 1;
    if (seen.passes > 0 && common.size() < stay)
      throw Violation("sample: of a pool of ", rows, " rows ", stay, " stay after pass ", seen.passes,
                      ", but ", common.size(), " of them were handed out");
    seen.before = std::move(pool);
    ++seen.passes;
  }
}

void World::start_pull_of_sample(Caller& caller, Pending& pending) {
  history_[pending.record].kind = CallKind::kPull;  // recorded like any other read
  const PreparedSample prepared = std::move(caller.samples.front());
  caller.samples.pop_front();
  const Table& table = prepared.sampler->table();
  pending.keys.resize(prepared.sample.size);
  pending.floats.assign(pending.keys.size() * table.length(), std::numeric_limits<float>::quiet_NaN());
  const std::size_t here = prepared.sampler->take(prepared.sample, pending.keys, pending.floats.data());
  for (const Key key : pending.keys) pending.positions.push_back(position_of(key));
  note_lives(pending);
  std::vector<Key> sorted = pending.keys;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (!table.spec().sampling->replacement && twice != sorted.end())
    throw Violation("sample: key ", *twice, " comes twice");
  pending.operation.out = pending.floats.data() + here * table.length();
  start(cluster_.node(caller.node), pending.operation, std::span<const Key>(pending.keys).subspan(here));
}

// Checks that a row that changed() reports as unchanged has the value of the last pull.
void World::start_pull(Caller& caller, Pending& pending) {
  const NodeState& node = cluster_.node(caller.node);
  std::map<Key, bool> unchanged;
  for (const Key key : pending.keys) {
    if (unchanged.contains(key)) continue;
    unchanged[key] = !is_changed(node, {&key, 1}, {&caller.pulled[key].seen, 1});
  }
  start(cluster_.node(caller.node), pending.operation, pending.keys);
  const float* at = pending.floats.data();
  for (const Key key : pending.keys) {
    const std::span<const float> row(at, node.tables.find(key).length());
    at += row.size();
    Pulled& pulled = caller.pulled[key];
    if (unchanged[key] && std::memcmp(pulled.row.data(), row.data(), row.size_bytes()) != 0)
      throw Violation("look: key ", key, " counts as unchanged, and is not what it was");
    if (pulled.seen != 0) pulled.row.assign(row.begin(), row.end());
  }
}

std::uint32_t World::position_of(Key key) const {
  const auto found = std::find(spec_.keys.begin(), spec_.keys.end(), key);
  if (found == spec_.keys.end()) throw Violation("sample: key ", key, " has no weight");
  return static_cast<std::uint32_t>(found - spec_.keys.begin());
}

void World::advance_clock(Caller& caller, Clock by) {
  const Clock clock = state(caller.node, caller.worker).clock.fetch_add(by) + by;
  cluster_.node(caller.node).end_uses(caller.worker);
  caller.found.assign(caller.found.size(), false);
  caller.advanced = step_;
  for (const auto& partition : cluster_.node(caller.node).partitions)
    partition->on_clock(caller.worker, clock);
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

void World::count_rows(Caller& caller) {
  const NodeState& node = cluster_.node(caller.node);
  caller.counted.clear();
  for (std::size_t i = 0; i < node.tables.size(); ++i)
    caller.counted.push_back(count_owned(node, node.tables[i]));
}

// Records the owned rows as a read. The snapshot contains every write, because no other call is running.
void World::take_snapshot(Caller& caller) {
  NodeState& node = cluster_.node(caller.node);
  const std::size_t number = caller.snapshots++;
  if (number == snapshots_.size()) snapshots_.push_back({0, std::vector<int>(spec_.keys.size()), {}});
  Snapshot& snapshot = snapshots_[number];
  const Micros now = cluster_.network().now();
  Record record{CallKind::kPull, caller.node, caller.number, false, step_, step_, now, now, {}, {}};
  for (std::size_t i = 0; i < node.tables.size(); ++i) {
    const Table& table = node.tables[i];
    std::vector<std::int64_t> rows(table.spec().rows);
    std::vector<float> values(rows.size() * table.length());
    std::vector<float> states(rows.size() * (table.width() - table.length()));
    const Taken taken = take_owned(node, table, 0, rows, values.data(), states.data());
    if (taken.rows != caller.counted[i])
      throw Violation("snapshot: ", caller.counted[i], " rows of ", table.spec().name, " were counted, and ",
                      taken.rows, " taken");
    for (std::size_t row = 0; row < taken.rows; ++row) {
      const std::span<const float> value(values.data() + row * table.length(), table.length());
      snapshot.rows[{i, rows[row]}].assign(value.begin(), value.end());
      const std::optional<std::uint32_t> found = named_position(table, rows[row]);
      if (!found) continue;
      const std::uint32_t position = *found;
      ++snapshot.owners[position];
      if (!spec_.rough) record.reads.push_back({life(position), read_content(value, spec_.coding())});
      const std::size_t length = table.width() - table.length();
      if (spec_.reads_tell() && length > 0)
        record.states.push_back(
            {life(position), read_state(spec_.keys[position], {states.data() + row * length, length})});
    }
  }
  history_.push_back(std::move(record));
  tell_changes(node, caller.node, number);
  if (++snapshot.nodes < cluster_.nodes()) return;
  check_snapshot(snapshot.owners);
  if (is_published(number)) check_export(snapshot.rows);
  snapshot.rows.clear();
}

// In half of the worlds, the second export is discarded, as if the disk were full. Its rows must be exported
// again.
bool World::is_published(std::size_t number) const { return number != 1 || spec_.seed % 2 == 0; }

void World::tell_changes(NodeState& node, NodeId rank, std::size_t number) {
  for (std::size_t i = 0; i < node.tables.size(); ++i) {
    const Table& table = node.tables[i];
    ChangedRows& changed = changed_.try_emplace({rank, i}, node, table).first->second;
    std::vector<std::int64_t> rows(changed.take(number == 0));
    std::vector<float> values(rows.size() * table.length());
    changed.read(0, rows, values.data());
    for (const std::int64_t id : changed.deleted()) {
      if (is_published(number)) told_.erase({i, id});
    }
    changed.settle(is_published(number));
    for (std::size_t row = 0; is_published(number) && row < rows.size(); ++row) {
      const RowName name{i, rows[row]};
      const std::span<const float> value(values.data() + row * table.length(), table.length());
      if (number == 0 && told_.contains(name))
        throw Violation("export: two nodes tell of row ", rows[row], " of ", table.spec().name);
      told_[name].assign(value.begin(), value.end());
    }
  }
}

// Checks that exported and owned rows are bitwise equal.
void World::check_export(const std::map<RowName, std::vector<float>>& owned) {
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < spec_.tables.size(); ++i) {
    rows += spec_.tables[i].has_ids ? 0 : spec_.tables[i].rows;
    for (NodeId node = 0; spec_.tables[i].has_ids && node < cluster_.nodes(); ++node)
      rows += cluster_.node(node).tables[i].ids()->assigned();
  }
  if (told_.size() != rows) throw Violation("export: of ", rows, " rows ", told_.size(), " are told");
  for (const auto& [name, value] : owned) {
    if (std::memcmp(told_.at(name).data(), value.data(), value.size() * sizeof(float)) != 0)
      throw Violation("export: row ", name.second, " is not what its owner has");
  }
}

void World::check_snapshot(const std::vector<int>& owners) const {
  std::vector<bool> written(lives());
  for (const Record& record : history_) {
    for (const Write& write : record.writes) written[write.key] = true;
  }
  for (std::uint32_t key = 0; key < owners.size(); ++key) {
    if (owners[key] > 1 || (owners[key] == 0 && written[life(key)]))
      throw Violation("snapshot: ", owners[key], " nodes own key ", key);
  }
}

void World::start_rows_of_call(Caller& caller, const Call& call, Pending& pending) {
  NodeState& node = cluster_.node(caller.node);
  std::vector<std::int64_t> ids;
  for (const std::uint32_t position : call.keys) ids.push_back(spec_.ids[position]);
  pending.positions = call.keys;
  for (const std::uint32_t position : call.keys) note_use(caller.node, position);
  pending.refused = refused_;
  pending.retired = std::accumulate(retired_.begin(), retired_.end(), std::size_t{0});
  pending.rows.resize(ids.size());
  for (const auto& [position, key] : assigned_) pending.assigned.insert(position);
  find_rows(node, node.tables[call.table], ids, pending.rows.data(), caller.worker, call.creates);
  pending.operation.id_call =
      std::make_unique<IdCall>(node.tables[call.table], ids, pending.rows.data(), call.creates);
  start_rows_of(node, pending.operation);
}

// Checks that a share that a node reports as full has more ids than rows. If rows are retired, only ids count
// that may have been in use during the call.
void World::check_full(const Pending& pending, NodeId full) const {
  const Table& table = *pending.operation.id_call->table;
  std::uint64_t ids = 0;
  for (std::uint32_t i = 0; i < spec_.keys.size(); ++i) {
    if (!has_id(spec_, i) || !table.contains(spec_.keys[i]) ||
        Directory(spec_.settings.nodes, 1).node_of_id(spec_.ids[i]) != full)
      continue;
    bool is_used = table.uses() == nullptr;
    for (NodeId node = 0; node < used_.size(); ++node)
      is_used = is_used || used_[node][i] >= pending.used_since[node];
    ids += is_used ? 1 : 0;
  }
  if (ids <= share_of(table.spec().rows, spec_.settings.nodes, full).size())
    throw Violation("ids: node ", full, " reports that its share is full, and there are ", ids, " ids");
}

// Checks that an id has the same row in all calls until it is retired, and no other id has it.
void World::check_rows(Caller& caller, const Pending& pending) {
  const IdCall& call = *pending.operation.id_call;
  const Table& table = *call.table;
  if (const int full = call.full.load(); full != IdCall::kNone) {
    check_full(pending, static_cast<NodeId>(full));
    return;
  }
  for (const std::uint32_t position : pending.positions) note_use(caller.node, position);
  if (!finish_rows_of(cluster_.node(caller.node), pending.operation)) {
    if (pending.clock == clock(caller.node, caller.worker))
      throw Violation("ids: a row was retired before its caller could use it");
    return;
  }
  std::set<std::uint32_t> refused;
  // An id that got a row and lost it is counted anew, so a refusal from before this does not count.
  const bool any_retired =
      pending.retired != std::accumulate(retired_.begin(), retired_.end(), std::size_t{0});
  for (std::size_t i = 0; i < pending.rows.size(); ++i) {
    const std::uint32_t position = pending.positions[i];
    if (pending.rows[i] == RowIds::kUnknown) {
      if (!call.creates) {
        if (!any_retired && pending.assigned.contains(position))
          throw Violation("ids: k", position, " is not found");
        continue;
      }
      if (!any_retired && pending.refused[position] + 1 >= table.spec().admit_seen &&
          !may_be_forgotten(table, position))
        throw Violation("ids: k", position, " is not admitted");
      if (!any_retired) refused.insert(position);
      continue;
    }
    if (static_cast<std::uint64_t>(pending.rows[i]) >= table.spec().rows)
      throw Violation("ids: k", position, " has row ", pending.rows[i], ", which does not exist");
    const Key key = table.first_key() + static_cast<Key>(pending.rows[i]);
    if (assigned_.try_emplace(position, key).first->second != key)
      throw Violation("ids: k", position, " has two rows");
    if (assigned_to_.try_emplace(key, position).first->second != position)
      throw Violation("ids: k", position, " has the row of another id");
    caller.found[position] = true;
  }
  for (const std::uint32_t position : refused) ++refused_[position];
}

// Whether the sketch may forget the requests of an id. If it counts another id together with this one, it
// forgets both when one of them gets a row. If it has no space for all ids, it forgets some of them.
bool World::may_be_forgotten(const Table& table, std::uint32_t position) const {
  const std::int64_t own = spec_.ids[position];
  const Directory directory(spec_.settings.nodes, 1);
  const NodeId node = directory.node_of_id(own);
  SeenSketch sketch(share_of(table.spec().rows, spec_.settings.nodes, node).size());
  sketch.set(own, 1);
  const auto is_other = [&](std::int64_t id) { return id != own && directory.node_of_id(id) == node; };
  const auto is_same = [&](std::int64_t id) { return is_other(id) && sketch.seen(id) > 0; };
  if (std::ranges::any_of(spec_.ids, is_same)) return true;
  for (const std::int64_t id : spec_.ids) {
    if (is_other(id)) sketch.set(id, 1);
  }
  return sketch.seen(own) == 0;
}

bool World::may_use(const Caller& caller, std::uint32_t position) {
  if (!key_at(caller.node, position)) return false;
  return !is_retired_at_times(spec_, position) || caller.found[position] || is_needed(caller.node, position);
}

// A call uses its rows until the worker's clock advances, although they may be needed only by an intent of
// another worker, which can end before.
void World::use_rows(Caller& caller, std::span<const std::uint32_t> positions) {
  NodeState& node = cluster_.node(caller.node);
  for (const std::uint32_t position : positions) {
    if (!is_retired_at_times(spec_, position) || caller.found[position]) continue;
    const Key key = key_at(caller.node, position).value();
    node.use(*node.uses_of(key), key - node.tables.find(key).first_key(), caller.worker);
    caller.found[position] = true;
    note_use(caller.node, position);
  }
}

bool World::is_needed(NodeId node, std::uint32_t position) {
  return std::any_of(needs_.begin(), needs_.end(), [&](const Need& need) {
    return need.node == node && need.position == position && need.end > clock(need.node, need.worker);
  });
}

void World::need(NodeId node, int worker, std::uint32_t position, Clock end) {
  if (!is_retired_at_times(spec_, position)) return;
  cluster_.node(node).pin(key_at(node, position).value());
  needs_.push_back({node, worker, position, end});
}

std::vector<Step> World::used_since() const {
  std::vector<Step> since(spec_.settings.nodes, step_);
  for (const auto& caller : callers_) since[caller->node] = std::min(since[caller->node], caller->advanced);
  return since;
}

void World::end_lives(NodeId node) {
  const Tables& tables = cluster_.node(node).tables;
  if (!tables.any_uses()) return;
  for (NodeId at = 0; at < cluster_.nodes(); ++at) {
    for (std::uint32_t i = 0; i < spec_.keys.size(); ++i) {
      if (is_retired_at_times(spec_, i) && is_needed(at, i)) note_use(at, i);
    }
  }
  for (const auto& caller : callers_) {
    for (const auto& pending : caller->pending) {
      for (const std::uint32_t position : pending->positions) note_use(caller->node, position);
    }
  }
  std::uint64_t retired = 0;
  for (std::size_t i = 0; i < tables.size(); ++i)
    retired += tables[i].uses() == nullptr ? 0 : tables[i].ids()->retired();
  if (retired == retired_[node]) return;
  std::size_t seen = 0;
  for (const TraceEvent& event : cluster_.node(node).trace.events()) {
    if (event.kind != TraceKind::kRetired || seen++ < retired_[node]) continue;
    const auto found = assigned_to_.find(event.key);
    if (found == assigned_to_.end()) continue;
    const std::uint32_t position = found->second;
    for (const auto& caller : callers_) {
      // A call does not record which of its requests are answered, so it counts until the first one is.
      const bool is_pending = std::ranges::any_of(caller->pending, [&](const auto& pending) {
        const auto& requests = pending->operation.requests;
        return pending->operation.left.load() == requests.size() &&
               std::ranges::find(requests, event.key, &KeyRequest::key) != requests.end();
      });
      if (is_pending || caller->found[position] || is_needed(caller->node, position))
        throw Violation("ids: the row of k", position, " is retired while node ", caller->node, " uses it");
    }
    assigned_.erase(position);
    accessed_.erase(position);
    assigned_to_.erase(found);
    lives_[position] = next_life_++;
    for (const auto& caller : callers_) caller->pulled.erase(event.key);
  }
  retired_[node] = retired;
  refused_.assign(refused_.size(), 0);
}

std::optional<std::uint32_t> World::named_position(const Table& table, std::int64_t name) const {
  for (std::uint32_t i = 0; i < spec_.keys.size(); ++i) {
    if (!table.contains(spec_.keys[i])) continue;
    if (name ==
        (has_id(spec_, i) ? spec_.ids[i] : static_cast<std::int64_t>(spec_.keys[i] - table.first_key())))
      return i;
  }
  return std::nullopt;
}

// Checks that a listing has all ids that were used before it began, and no id that was never used.
void World::check_used_ids(const Pending& pending) const {
  const IdListing& listing = *pending.operation.id_listing;
  const std::set<std::int64_t> listed(listing.ids.begin(), listing.ids.end());
  const bool any_retired =
      pending.retired != std::accumulate(retired_.begin(), retired_.end(), std::size_t{0});
  std::size_t used = 0;
  for (std::uint32_t i = 0; i < spec_.keys.size(); ++i) {
    if (!has_id(spec_, i) || !listing.table->contains(spec_.keys[i])) continue;
    const bool is_listed = listed.contains(spec_.ids[i]);
    used += is_listed ? 1 : 0;
    if (any_retired) continue;
    if (!is_listed && pending.used_before.contains(i))
      throw Violation("ids: k", i, " was used and is not listed");
    if (is_listed && !accessed_.contains(i) && listing.table->uses() == nullptr)
      throw Violation("ids: k", i, " was not used and is listed");
  }
  if (listed.size() != used) throw Violation("ids: an id is listed that does not exist");
}

void World::complete(Caller& caller, Pending& pending) {
  if (pending.operation.kind == OperationKind::kRowsOf) check_rows(caller, pending);
  if (pending.operation.kind == OperationKind::kUsedIds) check_used_ids(pending);
  Record& record = history_[pending.record];
  record.end = step_;
  record.ended = cluster_.network().now();
  // A barrier waits for other workers and all their previous calls, so it has no time limit. A patient
  // wait_sync waits for frames of other nodes.
  const bool is_patient = record.kind == CallKind::kSync && record.asynchronous;
  if (record.kind != CallKind::kBarrier && !is_patient && record.ended - record.started > kAges / 2)
    throw Violation("promptness: ", name_of(record.kind), " waits for a frame that waits");
  const bool reads_state = record.kind == CallKind::kPullState;
  if ((record.kind == CallKind::kPull || reads_state) && spec_.reads_tell()) {
    const Tables& tables = cluster_.node(0).tables;
    const float* at = pending.floats.data();
    for (std::size_t i = 0; i < pending.keys.size(); ++i) {
      const std::span<const float> row(at, floats_of(pending.operation.kind, tables.find(pending.keys[i])));
      at += row.size();
      if (!reads_state) {
        record.reads.push_back({pending.lives[i], read_content(row, spec_.coding())});
      } else if (!row.empty()) {
        record.states.push_back({pending.lives[i], read_state(pending.keys[i], row)});
      }
    }
  }
  if (log_ != nullptr) {
    std::string line =
        joined("n", caller.node, " worker ", caller.worker, ":   ", name_of(record.kind), " done");
    for (const Read& read : record.reads) line += joined(" k", read.key, "=", to_string(read.content));
    for (const StateRead& read : record.states) line += joined(" k", read.key, "=", to_string(read.content));
    for (const Write& write : record.writes) {
      line += joined(" k", write.key,
                     record.kind == CallKind::kSet        ? "=set "
                     : record.kind == CallKind::kSetState ? "=set_state "
                                                          : "+",
                     write.number);
    }
    cluster_.note(line);
  }
}

}  // namespace adaps::simulation
