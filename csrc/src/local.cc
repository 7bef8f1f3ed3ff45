#include "adaps/local.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "adaps/add.h"
#include "adaps/channel.h"
#include "adaps/mutant.h"
#include "adaps/node_state.h"

namespace adaps {

namespace {

// What a unit takes on its way beside its floats: messages, and its own memory.
constexpr std::size_t kUnitBytes = sizeof(RequestMessage) + sizeof(Unit) + sizeof(Occurrence);
// Keys whose memory is asked for ahead of their use.
constexpr std::size_t kBlock = 32;

constexpr std::uint32_t needed_bits(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPull:
    case OperationKind::kLocalize:
      return word::kSlot | word::kReadable;
    case OperationKind::kSet:
      return word::kSlot | word::kSet;
    default:
      return word::kSlot | word::kPush;
  }
}

// The units of an operation by key: a hash table with open addressing that exists only once something was
// missed.
class Misses {
 public:
  Misses(Operation& operation, std::size_t keys) : operation_(operation), keys_(keys) {}

  bool any() const { return !slots_.empty(); }

  // Adds an occurrence if the key was missed before.
  bool add_again(Key key, std::size_t offset, std::uint32_t most) {
    const std::uint32_t unit = slots_[find(key)];
    if (unit == kFree || ADAPS_MUTANT(duplicates_torn)) return false;
    append(unit, offset, most);
    return true;
  }

  // A unit takes at most so many occurrences; further ones go to a unit that follows it.
  void add(Key key, std::size_t offset, std::uint32_t most) {
    if (slots_.empty()) slots_.assign(std::bit_ceil(2 * keys_ + 2), kFree);
    const std::size_t slot = find(key);
    if (slots_[slot] == kFree || ADAPS_MUTANT(duplicates_torn)) slots_[slot] = new_unit(key);
    append(slots_[slot], offset, most);
  }

 private:
  static constexpr std::uint32_t kFree = 0xffffffffU;

  std::size_t find(Key key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = mix(key) & mask;
    while (slots_[slot] != kFree && operation_.units[slots_[slot]].key != key) slot = (slot + 1) & mask;
    return slot;
  }

  std::uint32_t new_unit(Key key) {
    Unit unit;
    unit.operation = &operation_;
    unit.key = key;
    operation_.units.push_back(unit);
    return static_cast<std::uint32_t>(operation_.units.size() - 1);
  }

  void append(std::uint32_t name, std::size_t offset, std::uint32_t most) {
    if (operation_.units[name].occurrences == most) {
      const Key key = operation_.units[name].key;
      const std::uint32_t full = name;
      name = slots_[find(key)] = new_unit(key);
      operation_.units[full].next_part = name;
      operation_.units[name].follows = true;
    }
    const auto occurrence = static_cast<std::uint32_t>(operation_.occurrences.size());
    operation_.occurrences.push_back({offset, Occurrence::kEnd});
    Unit& unit = operation_.units[name];
    if (unit.occurrences++ == 0) {
      unit.first = occurrence;
    } else {
      operation_.occurrences[unit.last].next = occurrence;
    }
    unit.last = occurrence;
  }

  Operation& operation_;
  const std::size_t keys_;
  std::vector<std::uint32_t> slots_;
};

std::uint32_t gradients_in_message(const Settings& settings, const Table& table) {
  const std::size_t fit = settings.max_gradient_bytes / (table.length() * sizeof(float));
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(fit, 1, kMaxGradients));
}

bool sends_gradients(const Table& table) { return kGradientHeader + table.length() < table.width(); }

bool allowed(OperationKind kind, LockedKey& key) {
  switch (key.state()) {
    case State::kOwner:
      return true;
    case State::kReplica:
      return kind != OperationKind::kSet || ADAPS_MUTANT(set_as_delta);
    case State::kDropping:
      return needed_bits(kind) == needed_bits(OperationKind::kPull) &&
             (key.header().flags & kUnreadable) == 0;
    case State::kPending:
    case State::kNone:
      return false;
  }
  return false;
}

void write_at_owner(OperationKind kind, LockedKey& key, const float* in) {
  if (kind == OperationKind::kPush) {
    add_to(key.value(), in, key.length());
  } else if (kind == OperationKind::kPushGradients) {
    key.table().apply_gradient(key.value(), in, nullptr);
  } else {
    std::memcpy(key.value(), in, key.length() * sizeof(float));
  }
  key.header().version = next_version(key.header().version);
}

void write_at_replica(NodeState& node, Channel& channel, OperationKind kind, LockedKey& key,
                      const float* in) {
  SlotHeader& header = key.header();
  if (header.side == 0) header.side = channel.sides().unapplied.allocate();
  Unapplied& unapplied = channel.sides().unapplied.at(header.side);
  Delta& unsent = unapplied.unsent;
  const UpdateStep step = key.table().now();
  const std::size_t change_length = key.table().change_length();
  if (!unsent) {
    unsent.epoch = node.epochs.add();
    if (kind == OperationKind::kPushGradients && sends_gradients(key.table())) {
      unsent.floats = std::make_unique<float[]>(change_length + kGradientHeader + key.length());
      unsent.change = Change::kGradient;
      unsent.hyperparameters = step.with.fingerprint();
      // With something in flight it is no version of the owner's, until on_ack knows that it is.
      const Version base = unapplied.in_flight ? header.version - 1 : header.version;
      const GradientHeader applied{step.with.learning_rate, static_cast<std::uint32_t>(step.number), base};
      std::memcpy(unsent.floats.get() + change_length, &applied, sizeof(applied));
      std::memcpy(unsent.floats.get() + change_length + kGradientHeader, in, key.length() * sizeof(float));
    } else {
      unsent.floats = std::make_unique<float[]>(change_length);
      unsent.change = Change::kDelta;
    }
    key.table().spec().rule.init_change(unsent.floats.get(), key.length());
  } else if (!ADAPS_MUTANT(gradient_of_many)) {
    unsent.change = Change::kDelta;
  }
  if (kind == OperationKind::kPush) {
    add_to(key.value(), in, key.length());
    add_to(unsent.floats.get(), in, key.length());
  } else if (kind == OperationKind::kSet) {  // only by mutation: a set goes to the owner
    for (std::size_t i = 0; i < key.length(); ++i) {
      unsent.floats[i] += in[i] - key.value()[i];
      key.value()[i] = in[i];
    }
  } else {
    key.table().apply_gradient(key.value(), in, unsent.floats.get(), step);
  }
}

// One occurrence, in a state that allows it.
void serve(NodeState& node, LockedKey& key, OperationKind kind, float* out, const float* in) {
  if (kind == OperationKind::kPull) {
    std::memcpy(out, key.value(), key.length() * sizeof(float));
    return;
  }
  if (key.state() == State::kOwner && key.header().side == 0) {
    write_at_owner(kind, key, in);
    return;
  }
  Channel& channel = *node.channels[static_cast<std::size_t>(node.directory.channel(key.key()))];
  if (key.state() == State::kOwner) {
    write_at_owner(kind, key, in);
    if (ADAPS_MUTANT(owner_push_not_dirty)) return;
  } else {
    write_at_replica(node, channel, kind, key, in);
  }
  channel.mark_dirty(key);
}

// A read of a replica, for the statistics.
void note_age(const NodeState& node, Key key, WorkerCounters& counters) {
  const Channel& channel = *node.channels[static_cast<std::size_t>(node.directory.channel(key))];
  const std::optional<Micros> age = channel.ages().age(key, node.clock());
  if (!age) return;
  counters.staleness_micros.add(static_cast<std::uint64_t>(std::max<Micros>(*age, 0)));
  counters.staleness_reads.add();
}

// Asks for the memory that the next keys need: their words first, the slots that those name a block later.
void prefetch_block(Store& store, std::span<const Key> keys, std::size_t at, const Table* hint, bool writes) {
  const std::size_t words_end = std::min(at + 2 * kBlock, keys.size());
  for (std::size_t i = std::min(at + kBlock, keys.size()); i < words_end; ++i) store.prefetch_word(keys[i]);
  const std::size_t slots_end = std::min(at + kBlock, keys.size());
  for (std::size_t i = at; i < slots_end; ++i) {
    const std::uint32_t seen = store.peek(keys[i]);
    if ((seen & word::kSlot) == 0) continue;
    const Table& table = store.tables().find(keys[i], hint);
    Arena& arena = store.arena(table);
    Store::prefetch_value(arena, seen, writes ? arena.width() : table.length());
    if (writes) __builtin_prefetch(&arena.header(seen & word::kIndexMask), 1);
  }
}

template <OperationKind kKind>
void run(NodeState& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kNeeded = needed_bits(kKind);
  Store& store = node.store;
  WorkerCounters& counters = node.workers[static_cast<std::size_t>(operation.worker)]->counters;
  Misses misses(operation, keys.size());
  const Table* hint = nullptr;
  const Table* limited = nullptr;
  std::uint32_t most_gradients = 0;
  std::uint64_t at_owner = 0;
  std::uint64_t at_replica = 0;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < std::min(kBlock, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kBlock == 0) prefetch_block(store, keys, i, hint, kKind != OperationKind::kPull);
    const Key key = keys[i];
    const Table& table = store.tables().find(key, hint);
    const std::size_t here = offset;
    offset += table.length();
    // Of gradients each is sent, of what else is given for a key just one value.
    std::uint32_t most = Occurrence::kEnd;
    if constexpr (kKind == OperationKind::kPushGradients) {
      if (&table != limited) most_gradients = gradients_in_message(node.settings, *(limited = &table));
      most = most_gradients;
    }
    if (misses.any() && misses.add_again(key, here, most)) continue;
    float* out = kKind == OperationKind::kPull ? operation.out + here : nullptr;
    const float* in = kKind == OperationKind::kPull ? nullptr : operation.in + here;
    const std::uint32_t word = store.lock_if(key, kNeeded);
    if (word != 0 && (kKind == OperationKind::kPull || (word & word::kTracked) == 0)) {
      Arena& arena = store.arena(table);
      float* value = arena.value(word & word::kIndexMask);
      if constexpr (kKind == OperationKind::kPull) {
        std::memcpy(out, value, table.length() * sizeof(float));
      } else {
        if constexpr (kKind == OperationKind::kPush) {
          add_to(value, in, table.length());
        } else if constexpr (kKind == OperationKind::kPushGradients) {
          table.apply_gradient(value, in, nullptr);
        } else {
          std::memcpy(value, in, table.length() * sizeof(float));
        }
        Version& version = arena.header(word & word::kIndexMask).version;
        version = next_version(version);
      }
      store.unlock(key, word);
      const bool owned = (word & word::kSet) != 0;
      ++(owned ? at_owner : at_replica);
      if constexpr (kKind == OperationKind::kPull) {
        if (!owned && ReplicaAges::sampled(key)) note_age(node, key, counters);
      }
      continue;
    }
    LockedKey locked(store, key, word != 0 ? word : store.lock(key));
    if (locked.untouched_here()) {
      locked.materialize();
      if (node.trace.wants(key))
        node.trace.add(node.now.load(std::memory_order_relaxed), key, TraceKind::kAlloc);
    }
    if (allowed(kKind, locked)) {
      serve(node, locked, kKind, out, in);
      ++(locked.state() == State::kOwner ? at_owner : at_replica);
    } else {
      misses.add(key, here, most);
    }
  }
  AccessCounters& access = kKind == OperationKind::kPull  ? counters.pulled
                           : kKind == OperationKind::kSet ? counters.set
                                                          : counters.pushed;
  access.local.add(at_owner);
  access.replica.add(at_replica);
  access.remote.add(keys.size() - at_owner - at_replica);
}

// The keys that cannot be read here now.
void find_absent(NodeState& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kReadable = needed_bits(OperationKind::kLocalize);
  Misses misses(operation, keys.size());
  for (const Key key : keys) {
    const std::uint32_t seen = node.store.peek(key);
    const bool untouched_here = seen == 0 && node.directory.home(key) == node.settings.rank;
    if ((seen & kReadable) != kReadable && !untouched_here) misses.add(key, 0, Occurrence::kEnd);
  }
}

}  // namespace

void start(NodeState& node, Operation& operation, std::span<const Key> keys) {
  switch (operation.kind) {
    case OperationKind::kPull:
      run<OperationKind::kPull>(node, operation, keys);
      break;
    case OperationKind::kPush:
      run<OperationKind::kPush>(node, operation, keys);
      break;
    case OperationKind::kPushGradients:
      run<OperationKind::kPushGradients>(node, operation, keys);
      break;
    case OperationKind::kSet:
      run<OperationKind::kSet>(node, operation, keys);
      break;
    case OperationKind::kLocalize:
      find_absent(node, operation, keys);
      break;
    case OperationKind::kSync:
    case OperationKind::kBarrier:
      break;
  }
  operation.left.store(static_cast<std::uint32_t>(operation.units.size()), std::memory_order_relaxed);
  if (operation.units.empty()) operation.done.store(true, std::memory_order_release);
}

void catch_up(NodeState& node, const Table& table, std::span<const Key> keys, Idle idle) {
  const UpdateStep now = table.now();
  if (now.history == nullptr) return;
  const UpdateRule& rule = table.spec().rule;
  Store& store = node.store;
  for (std::size_t i = 0; i < std::min(kBlock, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kBlock == 0) prefetch_block(store, keys, i, &table, true);
    const bool untouched = (store.peek(keys[i]) & word::kSlot) == 0;
    if (untouched && (now.with.weight_decay == 0.0F || idle == Idle::kForgotten)) continue;
    LockedKey key(store, keys[i]);
    if (key.untouched_here()) {
      key.materialize();
      if (node.trace.wants(keys[i]))
        node.trace.add(node.now.load(std::memory_order_relaxed), keys[i], TraceKind::kAlloc);
    }
    if (key.state() != State::kOwner) continue;
    if (idle == Idle::kMadeUp) {
      rule.catch_up(key.value(), key.length(), now);
    } else {
      rule.restart(key.value(), key.length(), now);
    }
    key.header().version = next_version(key.header().version);
  }
}

bool has_room(const NodeState& node, int worker) {
  const Completion& completion = node.workers[static_cast<std::size_t>(worker)]->completion;
  return completion.queued_bytes.load() < node.settings.max_queued_bytes || ADAPS_MUTANT(queue_without_limit);
}

void submit_units(NodeState& node, Operation& operation) {
  std::vector<std::vector<Unit*>> by_channel(node.channels.size());
  const bool gradients = operation.kind == OperationKind::kPushGradients;
  const Table* hint = nullptr;
  for (const Unit& unit : operation.units) {
    if (operation.kind == OperationKind::kLocalize) break;
    const std::size_t rows = gradients ? unit.occurrences : 1;
    operation.bytes += kUnitBytes + rows * node.tables.find(unit.key, hint).length() * sizeof(float);
  }
  operation.completion.queued_bytes.fetch_add(operation.bytes);
  for (Unit& unit : operation.units) {
    if (is_write(operation.kind)) unit.epoch = node.epochs.add();
    if (unit.follows && !ADAPS_MUTANT(parts_at_once)) continue;
    by_channel[static_cast<std::size_t>(node.directory.channel(unit.key))].push_back(&unit);
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) node.channels[i]->submit(by_channel[i]);
  }
}

bool try_local(NodeState& node, LockedKey& key, const Unit& unit) {
  const Operation& operation = *unit.operation;
  if (!allowed(operation.kind, key)) return false;
  for (std::uint32_t i = unit.first; i != Occurrence::kEnd; i = operation.occurrences[i].next) {
    const std::size_t offset = operation.occurrences[i].offset;
    if (operation.kind == OperationKind::kLocalize) continue;
    if (operation.kind == OperationKind::kPull) {
      serve(node, key, operation.kind, operation.out + offset, nullptr);
    } else {
      serve(node, key, operation.kind, nullptr, operation.in + offset);
    }
    if (ADAPS_MUTANT(first_duplicate_wins) && operation.kind == OperationKind::kSet) break;
  }
  return true;
}

std::span<const float> summed(const Unit& unit, std::size_t length, std::vector<float>& scratch) {
  const Operation& operation = *unit.operation;
  const float* first = operation.in + operation.occurrences[unit.first].offset;
  if (unit.occurrences == 1) return {first, length};
  scratch.assign(first, first + length);
  for (std::uint32_t i = operation.occurrences[unit.first].next; i != Occurrence::kEnd;
       i = operation.occurrences[i].next) {
    add_to(scratch.data(), operation.in + operation.occurrences[i].offset, length);
  }
  return scratch;
}

}  // namespace adaps
