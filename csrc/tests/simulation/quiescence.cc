#include "simulation/quiescence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "protocol/local_access.h"
#include "simulation/checker.h"
#include "simulation/violation.h"
#include "store/codec.h"

namespace adaps::simulation {

namespace {

struct View {
  State state = State::kNone;
  bool readable = false;
  std::vector<float> value;  // value and optimizer state; empty unless the node holds the key
  std::vector<float> rest;   // rest of its changes on a lossy wire; empty if there is none
};

View look(NodeState& node, Key name) {
  LockedKey key(node.store, name);
  View view;
  view.state = key.state();
  if (view.state == State::kStored) {
    const Table& table = key.table();
    const RowFile& file = node.storage->file(node.tables.number_of(table));
    std::vector<float> words(file.words());
    const std::uint64_t row = name - table.first_key();
    const RowFile::Record record = read_row(table, file, row, file.entry(row), words);
    if (!record.problem.empty()) throw Violation("at rest: ", record.problem);
    view.value.resize(key.width());
    table.unpack(words.data(), view.value.data());
    view.state = State::kOwner;
    return view;
  }
  if (key.untouched_here()) {
    view.state = State::kOwner;
    view.value.resize(key.width());
    key.table().init(name, view.value.data());
  } else if (view.state == State::kOwner || view.state == State::kReplica || view.state == State::kDropping) {
    apply_pending_changes(node.partition_of(name), key);
    view.value.assign(key.value(), key.value() + key.width());
  }
  view.readable = view.state == State::kReplica ||
                  (view.state == State::kOwner && (key.has_slot() || !key.table().is_limited()));
  if (view.state == State::kReplica && key.header().has_changes()) {
    const Unapplied& changes = node.partition_of(name).tables.unapplied.at(key.header().changes());
    if (changes.in_flight || !changes.unsent.is_rest()) throw Violation("at rest: a change was not sent");
    view.rest.assign(changes.unsent.floats.get(), changes.unsent.floats.get() + key.width());
  }
  return view;
}

std::size_t writes_of(const World& world, std::size_t position) {
  const std::uint32_t life = world.life(static_cast<std::uint32_t>(position));
  std::size_t count = 0;
  for (const Record& record : world.history()) {
    for (const Write& write : record.writes) count += write.key == life ? 1 : 0;
  }
  return count;
}

// Maximum difference between a replica and its owner. In a rough world, a replica may receive changes one by
// one that its owner has summed first. In a rounded world, the first value of a replica was rounded, and the
// error is relative to this value, which may have been larger by the sum of all later writes. A packed
// replica has the owner's bits, unless a lossy wire makes it round differently.
float tolerance(World& world, std::size_t position, const std::vector<float>& owner) {
  constexpr float kRounding = 1e-4F;
  const WorldSpec& spec = world.spec();
  if (spec.reads_tell()) return 0.0F;
  const Wire wire = wire_of(spec, spec.keys[position]);
  const bool is_packed = world.cluster().node(0).tables.find(spec.keys[position]).is_packed();
  if (is_packed && wire == Wire::kFloat32) return 0.0F;
  float largest = 1.0F;
  for (const float x : owner) largest = std::max(largest, std::abs(x));
  float bound = spec.rough ? kRounding * largest : 0.0F;
  if (spec.rounds()) {
    largest *= 1.1F;  // rests can also decrease a value
    if (spec.rough) largest += static_cast<float>(writes_of(world, position));
    if (wire == Wire::kFloat32) return bound;
    bound = std::max(bound, rounding_bound(wire, largest));
    bound = std::max(bound, rounding_bound(Wire::kBfloat16, largest));  // for the optimizer state
    if (is_packed) bound += 2.0F * rounding_bound(Wire::kBfloat16, largest);
  }
  return bound;
}

bool equal(const View& replica, const std::vector<float>& owner, float tolerance) {
  for (std::size_t i = 0; i < owner.size(); ++i) {
    const float rest = replica.rest.empty() ? 0.0F : replica.rest[i];
    if (!(std::abs(replica.value[i] - rest - owner[i]) <= tolerance)) return false;
  }
  return true;
}

// The owner's value plus the changes that it has not received yet.
std::vector<float> whole_value(const View& owner, const std::vector<View>& views) {
  std::vector<float> value = owner.value;
  for (const View& view : views) {
    for (std::size_t i = 0; i < view.rest.size(); ++i) value[i] += view.rest[i];
  }
  return value;
}

// Checks the number of gradients that a row received, which some rules count.
void check_gradients(World& world, std::size_t position, const std::vector<float>& row) {
  for (const float x : row) {
    if (!std::isfinite(x)) throw Violation("value: a row holds ", x);
  }
  const RuleKind kind = world.cluster().node(0).tables.find(world.spec().keys[position]).spec().rule.kind;
  if (kind != RuleKind::kAdam && kind != RuleKind::kSparseAdam) return;
  std::size_t gradients = 0;
  for (const Record& record : world.history()) {
    for (const Write& write : record.writes) {
      if (write.key != world.life(static_cast<std::uint32_t>(position))) continue;
      if (record.kind == CallKind::kSetState) return;  // the set_state has replaced the number of gradients
      gradients += record.kind == CallKind::kPushGradients ? 1 : 0;
    }
  }
  if (row.back() != static_cast<float>(gradients))
    throw Violation("lost update: ", row.back(), " of ", gradients, " gradients");
}

std::string where(Key key, NodeId node) { return joined(" (key ", key, " at node ", node, ")"); }

bool replicates(Technique technique) {
  return technique == Technique::kReplication || technique == Technique::kFullReplication;
}

bool any_permanent(const World& world) {
  const std::vector<TableSpec>& tables = world.spec().tables;
  return std::any_of(tables.begin(), tables.end(), [&](const TableSpec& table) {
    return any_technique(world.spec(), table,
                         [](Technique technique) { return technique == Technique::kFullReplication; });
  });
}

// Nodes that certainly have intent for a key, and nodes that may have. A node may act early on an intent that
// begins later.
struct Interested {
  std::vector<bool> certainly;
  std::vector<bool> possibly;
  std::vector<bool> for_good;
};

Interested interested(World& world, std::uint32_t key) {
  const NodeId nodes = world.cluster().nodes();
  Interested result{std::vector<bool>(nodes), std::vector<bool>(nodes), std::vector<bool>(nodes)};
  for (const Intent& intent : world.intents()) {
    if (intent.key != key) continue;
    const Clock clock = world.clock(intent.node, intent.worker);
    if (intent.end <= clock) continue;
    result.possibly[intent.node] = true;
    if (intent.start <= clock || !world.spec().settings.timing) result.certainly[intent.node] = true;
    if (intent.end >= kForGood) result.for_good[intent.node] = true;
  }
  return result;
}

void check_stays_at_home(World& world, Key key) {
  NodeState& home = world.cluster().node(home_of(world.spec(), key));
  if (look(home, key).state != State::kOwner)
    throw Violation("technique: a key left its home", where(key, home.settings.rank));
}

// Requests with a wrong location are sent to the home node, so it must have the right location.
void check_home_knows(World& world, Key key, NodeId owner) {
  const NodeId home = home_of(world.spec(), key);
  const LockedKey locked(world.cluster().node(home).store, key);
  if (home != owner && locked.location() != owner)
    throw Violation("at rest: home looks for a key elsewhere", where(key, home));
}

void check_effect(World& world, std::uint32_t position) {
  const std::optional<Key> known = world.key_of(position);
  if (!known) return;
  const Key key = *known;
  const Technique technique = technique_of(world.spec(), key);
  if (technique != Technique::kAdaptive && technique != Technique::kRelocation)
    check_stays_at_home(world, key);
  if (technique == Technique::kStatic || technique == Technique::kRelocation) return;
  const Interested who = interested(world, position);
  const bool is_at_home = look(world.cluster().node(home_of(world.spec(), key)), key).state == State::kOwner;
  const bool often = world.spec().settings.times_until_leaving_home() > 1;
  const auto possibly = std::count(who.possibly.begin(), who.possibly.end(), true);
  for (NodeId node = 0; node < world.cluster().nodes(); ++node) {
    const View view = look(world.cluster().node(node), key);
    const bool permanent = technique == Technique::kFullReplication;
    if ((who.certainly[node] || permanent) && !view.readable) {
      throw Violation("intent: no effect", where(key, node));
    }
    if (technique == Technique::kAdaptive && who.certainly[node] && possibly == 1 &&
        view.state != State::kOwner && !(is_at_home && (often || who.for_good[node]))) {
      throw Violation("intent: the only interested node is not the owner", where(key, node));
    }
    if (!who.possibly[node] && !permanent && view.state == State::kReplica) {
      throw Violation("intent: a replica without intent", where(key, node));
    }
  }
}

void check_silence(World& world, std::uint64_t messages, const char* what) {
  world.run_until_quiet();
  if (world.cluster().messages() != messages) throw Violation("economy: ", what, " sends messages");
}

// Lets each channel measure clocks and times once more. An intent that waits may then be due at a later time.
void hold_rounds(World& world) {
  Cluster& cluster = world.cluster();
  for (NodeId node = 0; node < cluster.nodes(); ++node) {
    for (int channel = 0; channel < cluster.channels(); ++channel)
      cluster.channel(node, channel).partition().request_round();
  }
  world.run_until_quiet();
}

void extend_intents(World& world) {
  constexpr Clock kLonger = 50;
  const std::vector<Intent>& intents = world.intents();
  for (std::size_t i = 0; i < intents.size(); ++i) {
    const Intent& intent = intents[i];
    const Technique technique = technique_of(world.spec(), world.spec().keys[intent.key]);
    if (technique != Technique::kAdaptive && !replicates(technique)) continue;
    const Clock clock = world.clock(intent.node, intent.worker);
    if (intent.start <= clock && clock < intent.end) world.extend_intent(intent, kLonger);
  }
}

std::vector<Key> used_keys(World& world) {
  std::vector<Key> keys;
  for (std::uint32_t i = 0; i < world.spec().keys.size(); ++i) {
    if (const std::optional<Key> key = world.key_of(i)) keys.push_back(*key);
  }
  return keys;
}

void read_local_values(World& world) {
  for (const Key key : used_keys(world)) {
    for (NodeId rank = 0; rank < world.cluster().nodes(); ++rank) {
      NodeState& node = world.cluster().node(rank);
      const View view = look(node, key);
      if (!view.readable) continue;
      Operation operation(OperationKind::kPull, 0, node.workers[0]->completion);
      std::vector<float> out(node.tables.find(key).length());
      operation.out = out.data();
      start(node, operation, std::span<const Key>(&key, 1));
      if (!operation.done.load()) throw Violation("economy: a key is not read where it is", where(key, rank));
      if (std::memcmp(out.data(), view.value.data(), out.size() * sizeof(float)) != 0) {
        throw Violation("value: a local read is not what is stored", where(key, rank));
      }
    }
  }
}

void be_idle(World& world) {
  Cluster& cluster = world.cluster();
  constexpr Micros kLong = 10'000'000;
  for (int i = 0; i < 2; ++i) {
    cluster.network().advance(cluster.network().now() + kLong);
    for (NodeId node = 0; node < cluster.nodes(); ++node) {
      for (int channel = 0; channel < cluster.channels(); ++channel) {
        if (cluster.tick(node, channel) != kNever)
          throw Violation("economy: an idle channel wants to be called");
      }
    }
  }
}

// Checks that no row is pinned. Returns the number of rows that were retired and have no id. They keep their
// slots.
std::uint64_t check_retired_rows(NodeState& node, const Table& table) {
  std::uint64_t retired = 0;
  for (std::uint64_t row = 0; table.uses() != nullptr && row < table.spec().rows; ++row) {
    const Key key = table.first_key() + row;
    if (table.uses()->pins(row) != 0)
      throw Violation("left over: a row is pinned", where(key, node.settings.rank));
    const LockedKey locked(node.store, key);
    retired += !table.ids()->knows(row) && locked.state() == State::kOwner ? 1 : 0;
  }
  return retired;
}

void check_left_over(World& world) {
  const bool permanent = any_permanent(world) && world.cluster().nodes() > 1;
  for (NodeId rank = 0; rank < world.cluster().nodes(); ++rank) {
    NodeState& node = world.cluster().node(rank);
    if (node.epochs.outstanding() != 0) throw Violation("left over: writes are counted as not applied");
    if (node.epochs.anyone_waits()) throw Violation("left over: a wait_sync");
    std::uint64_t owned = 0;
    for (const Key key : used_keys(world)) {
      LockedKey locked(node.store, key);
      owned += locked.state() == State::kOwner ? 1 : 0;
      if (!permanent && node.store.intents(key) != 0)
        throw Violation("left over: an intent is counted", where(key, rank));
    }
    for (std::size_t i = 0; i < node.tables.size(); ++i) owned += check_retired_rows(node, node.tables[i]);
    if (!permanent && node.store.slots_in_use() != owned)
      throw Violation("left over: a slot that nobody uses");
    for (const auto& partition : node.partitions) {
      // Rests of permanent replicas remain.
      if (partition->tables.unapplied.in_use() != 0 && !(permanent && world.spec().rounds()))
        throw Violation("left over: changes of a replica");
      if (!permanent && partition->tables.holders.in_use() != 0) throw Violation("left over: holders");
    }
  }
}

// Advances the clocks until all changes whose exchange depends on clocks have been exchanged: from replicas
// to their owners, from owners to the holders, and also changes that occurred during a flush.
void pass_exchanges(World& world) {
  const Clock exchange = longest_exchange(world.spec());
  for (int i = 0; i < 3 && exchange > 0; ++i) {
    world.advance_clocks(exchange);
    world.run_until_quiet();
  }
}

// Checks that all nodes agree on the rows of ids, and that each row has one id.
void check_ids(World& world) {
  const WorldSpec& spec = world.spec();
  std::set<Key> rows;
  for (std::uint32_t i = 0; i < spec.keys.size(); ++i) {
    const std::optional<Key> key = world.key_of(i);
    if (!has_id(spec, i) || !key) continue;
    for (NodeId node = 0; node < world.cluster().nodes(); ++node) {
      if (world.key_at(node, i).value_or(*key) != *key) throw Violation("ids: k", i, " has two rows");
    }
    const NodeId home = Directory(spec.settings.nodes, 1).node_of_id(spec.ids[i]);
    if (home_of(spec, *key) != home) throw Violation("ids: k", i, " has a row of another node's share");
    if (!world.key_at(home, i)) throw Violation("ids: the node that assigns k", i, " does not know it");
    if (!rows.insert(*key).second) throw Violation("ids: k", i, " has the row of another id");
  }
}

// Checks that the value of a row that was never written follows from its id.
void check_initial_value(World& world, std::uint32_t position, Key key, const std::vector<float>& row) {
  const Table& table = world.cluster().node(0).tables.find(key);
  if (!has_id(world.spec(), position) || table.is_packed() || writes_of(world, position) > 0) return;
  std::vector<float> initial(table.length());
  table.spec().init.fill(static_cast<std::uint64_t>(world.spec().ids[position]), initial.data(),
                         initial.size());
  if (!std::equal(initial.begin(), initial.end(), row.begin()))
    throw Violation("ids: the initial value of k", position, " is that of another row");
}

}  // namespace

Rows check_at_rest(World& world) {
  Rows rows;
  std::vector<Content>& contents = rows.values;
  check_ids(world);
  for (std::uint32_t i = 0; i < world.spec().keys.size(); ++i) {
    const std::optional<Key> known = world.key_of(i);
    if (!known) {
      contents.emplace_back();
      continue;
    }
    const Key key = *known;
    std::vector<View> views;
    for (NodeId node = 0; node < world.cluster().nodes(); ++node)
      views.push_back(look(world.cluster().node(node), key));
    const auto owns = [](const View& view) { return view.state == State::kOwner; };
    const auto owners = std::count_if(views.begin(), views.end(), owns);
    if (owners != 1) {
      throw Violation("at rest: key ", key, " has ", owners, " owners");
    }
    const auto owner_at = std::find_if(views.begin(), views.end(), owns);
    check_home_knows(world, key, static_cast<NodeId>(owner_at - views.begin()));
    const View& owner = *owner_at;
    for (NodeId node = 0; node < views.size(); ++node) {
      const View& view = views[node];
      if (view.state == State::kPending)
        throw Violation("at rest: an intent without answer", where(key, node));
      if (view.state == State::kDropping) throw Violation("at rest: a drop without answer", where(key, node));
      if (view.state == State::kReplica &&
          !equal(view, owner.value, tolerance(world, contents.size(), owner.value))) {
        throw Violation("at rest: a replica differs from its owner", where(key, node));
      }
    }
    const Table& table = world.cluster().node(0).tables.find(key);
    if (world.spec().rough) {
      check_gradients(world, contents.size(), owner.value);
      check_initial_value(world, i, key, owner.value);
      contents.emplace_back();
      continue;
    }
    const std::span<const float> state = std::span<const float>(owner.value).subspan(table.length());
    const bool changes = table.spec().rule.kind == RuleKind::kMomentum;
    if (world.spec().reads_tell()) {
      if (!state.empty()) rows.states.push_back({world.life(i), world.read_state(key, state)});
    } else if (!changes && world.read_state(key, state) != StateContent{}) {
      throw Violation("at rest: optimizer state changed without a gradient");
    }
    const std::vector<float> value = whole_value(owner, views);
    contents.push_back(
        read_content(std::span<const float>(value).first(table.length()), world.spec().coding()));
  }
  return rows;
}

void check_intents(World& world) {
  for (std::uint32_t key = 0; key < world.spec().keys.size(); ++key) check_effect(world, key);
  hold_rounds(world);
  const std::uint64_t messages = world.cluster().messages();
  read_local_values(world);
  be_idle(world);
  check_silence(world, messages, "an idle world");
  extend_intents(world);
  check_silence(world, messages, "extending an intent");
}

void check_after_end(World& world, const Rows& before) {
  world.end_all_intents();
  world.run_until_quiet();
  const Rows after = check_at_rest(world);
  if (after.values != before.values) throw Violation("at rest: a value changed when all intents ended");
  if (after.states != before.states) throw Violation("at rest: a state changed when all intents ended");
  check_left_over(world);
}

namespace {

// The contents of the lives that have not ended.
Rows by_life(const World& world, const Rows& last) {
  Rows rows{std::vector<Content>(world.lives()), last.states, std::vector<bool>(world.lives(), true)};
  for (std::uint32_t i = 0; i < last.values.size(); ++i) {
    rows.values[world.life(i)] = last.values[i];
    rows.has_ended[world.life(i)] = false;
  }
  return rows;
}

}  // namespace

void run_and_check(World& world) {
  try {
    world.run_until_quiet();
    pass_exchanges(world);
    const Rows last = check_at_rest(world);
    if (!world.spec().rough) check_history(world.history(), by_life(world, last));
    check_intents(world);
    check_after_end(world, last);
  } catch (const ProtocolError& error) {
    throw Violation("protocol error: ", error.what());
  }
}

}  // namespace adaps::simulation
