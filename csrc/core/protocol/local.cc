#include "protocol/local.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "common/assert.h"
#include "common/random.h"
#include "protocol/context.h"
#include "protocol/encoded.h"
#include "protocol/message.h"
#include "protocol/rules.h"
#include "store/add.h"
#include "store/finite.h"

namespace adaps {

namespace {

// Bytes that a request takes while it is under way, beside its floats: its message and its own memory.
constexpr std::size_t kRequestBytes = sizeof(RequestMessage) + sizeof(KeyRequest) + sizeof(Occurrence);
// How many keys are prefetched at a time.
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

// The requests of an operation by key: a hash table with open addressing that exists only once something was
// missed.
class Misses {
 public:
  Misses(Operation& operation, std::size_t keys) : operation_(operation), keys_(keys) {}

  bool any() const { return !slots_.empty(); }

  // Adds an occurrence if the key was missed before.
  bool add_again(Key key, std::size_t offset, std::uint32_t most) {
    const std::uint32_t index = slots_[find(key)];
    if (index == kFree) return false;
    append(index, offset, most);
    return true;
  }

  // A request takes at most `most` occurrences; further ones go to a request that follows it.
  void add(Key key, std::size_t offset, std::uint32_t most) {
    if (slots_.empty()) slots_.assign(std::bit_ceil(2 * keys_ + 2), kFree);
    const std::size_t slot = find(key);
    if (slots_[slot] == kFree) slots_[slot] = new_request(key);
    append(slots_[slot], offset, most);
  }

 private:
  static constexpr std::uint32_t kFree = 0xffffffffU;

  std::size_t find(Key key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = mix(key) & mask;
    while (slots_[slot] != kFree && !rules().go_together(operation_.requests[slots_[slot]].key, key))
      slot = (slot + 1) & mask;
    return slot;
  }

  std::uint32_t new_request(Key key) {
    KeyRequest request;
    request.operation = &operation_;
    request.key = key;
    operation_.requests.push_back(request);
    return static_cast<std::uint32_t>(operation_.requests.size() - 1);
  }

  void append(std::uint32_t index, std::size_t offset, std::uint32_t most) {
    if (operation_.requests[index].occurrences == most) {
      const Key key = operation_.requests[index].key;
      const std::uint32_t full = index;
      index = slots_[find(key)] = new_request(key);
      operation_.requests[full].next_part = index;
      operation_.requests[index].follows = true;
    }
    const auto occurrence = static_cast<std::uint32_t>(operation_.occurrences.size());
    operation_.occurrences.push_back({offset, Occurrence::kEnd});
    KeyRequest& request = operation_.requests[index];
    if (request.occurrences++ == 0) {
      request.first = occurrence;
    } else {
      operation_.occurrences[request.last].next = occurrence;
    }
    request.last = occurrence;
  }

  Operation& operation_;
  const std::size_t keys_;
  std::vector<std::uint32_t> slots_;
};

std::uint32_t gradients_in_message(const Settings& settings, const Table& table) {
  const std::size_t fit = settings.max_gradient_bytes / (table.length() * sizeof(float));
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(fit, 1, kMaxGradients));
}

bool sends_gradients(const Table& table, Key key) {
  const std::size_t otherwise =
      rules().rounds(table, key) ? encoded_floats(table, rules().wire_of(table, key), table.change_length())
                                 : table.width();
  return kGradientHeader + table.length() < otherwise;
}

bool allowed(OperationKind kind, LockedKey& key) {
  switch (key.state()) {
    case State::kOwner:
      return true;
    case State::kReplica:
      return rules().is_served_by_replica(kind);
    case State::kDropping:
      return needed_bits(kind) == needed_bits(OperationKind::kPull) &&
             (key.header().flags & kUnreadable) == 0;
    case State::kPending:
    case State::kNone:
      return false;
  }
  return false;
}

// Writes one occurrence to the owner's value.
template <OperationKind kKind>
void write(const Table& table, SlotHeader& header, float* value, const float* in) {
  if constexpr (kKind == OperationKind::kPush) {
    add_to(value, in, table.length());
  } else if constexpr (kKind == OperationKind::kPushGradients) {
    table.apply_gradient(value, in, nullptr);
  } else {
    std::memcpy(value, in, table.length() * sizeof(float));
  }
  rules().count_change(header);
}

// The changes of a replica to which one more is added.
Delta& unsent_changes(NodeContext& node, Partition& partition, OperationKind kind, LockedKey& key,
                      const float* in, const UpdateStep& step) {
  SlotHeader& header = key.header();
  if (!header.has_changes()) header.changes() = partition.tables.unapplied.allocate();
  Unapplied& changes = partition.tables.unapplied.at(header.changes());
  Delta& unsent = changes.unsent;
  if (unsent) {
    take_up(node.epochs, unsent);
    unsent.change = rules().change_of_several(unsent.change);
    return unsent;
  }
  const std::size_t change_length = key.table().change_length();
  unsent.epoch = node.epochs.add();
  if (kind == OperationKind::kPushGradients && sends_gradients(key.table(), key.key())) {
    unsent.floats = std::make_unique<float[]>(change_length + kGradientHeader + key.length());
    unsent.change = Change::kGradient;
    unsent.hyperparameters = step.with.fingerprint();
    // With a change in flight the row equals no version of the owner's, so the base is one that cannot match;
    // on_ack corrects it if that change turns out to be exact.
    const Version base = changes.in_flight ? header.version() - 1 : header.version();
    const GradientHeader applied{step.with.learning_rate, static_cast<std::uint32_t>(step.number), base};
    std::memcpy(unsent.floats.get() + change_length, &applied, sizeof(applied));
    std::memcpy(unsent.floats.get() + change_length + kGradientHeader, in, key.length() * sizeof(float));
  } else {
    unsent.floats = std::make_unique<float[]>(change_length);
    unsent.change = Change::kDelta;
  }
  key.table().spec().rule.init_change(unsent.floats.get(), key.length());
  return unsent;
}

// The value that a worker reads.
void read(Partition& partition, LockedKey& key, float* out) {
  show_changes(partition, key);
  if (key.is_unpacked()) {
    std::memcpy(out, key.value(), key.length() * sizeof(float));
  } else {
    key.table().read_value(key.stored(key.length()).data(), out);
  }
}

// One occurrence, in a state that allows it.
template <OperationKind kKind>
void serve(NodeContext& node, Partition& partition, LockedKey& key, float* out, const float* in) {
  if constexpr (kKind == OperationKind::kPull) {
    read(partition, key, out);
  } else if (key.state() == State::kOwner) {
    write<kKind>(key.table(), key.header(), key.value(), in);
    rules().keep(key);
    if (rules().is_to_be_refreshed(key.header())) partition.mark_dirty(key);
  } else {
    const UpdateStep step = key.table().now();
    Delta& unsent = unsent_changes(node, partition, kKind, key, in, step);
    show_changes(partition, key);
    rules().apply_at_replica(kKind, key, in, unsent.floats.get(), step);
    key.discard();  // of a packed copy: the change says it
    partition.mark_dirty(key);
  }
}

// All occurrences of a request, in a state that allows them.
template <OperationKind kKind>
void serve_all(NodeContext& node, Partition& partition, LockedKey& key, const KeyRequest& request) {
  const Operation& operation = *request.operation;
  if constexpr (kKind == OperationKind::kSet) {
    const std::uint32_t last = rules().occurrence_that_counts(request);
    serve<kKind>(node, partition, key, nullptr, operation.in + operation.occurrences[last].offset);
  } else {
    for (std::uint32_t i = request.first; i != Occurrence::kEnd; i = operation.occurrences[i].next) {
      const std::size_t offset = operation.occurrences[i].offset;
      if constexpr (kKind == OperationKind::kPull) {
        serve<kKind>(node, partition, key, operation.out + offset, nullptr);
      } else {
        serve<kKind>(node, partition, key, nullptr, operation.in + offset);
      }
    }
  }
}

// The initial value of a key that is at home here and was never used.
void touch(NodeContext& node, LockedKey& key) {
  if (!key.untouched_here()) return;
  key.materialize();
  if (node.trace.wants(key.key()))
    node.trace.add(node.now.load(std::memory_order_relaxed), key.key(), TraceKind::kAlloc);
}

// A read of a replica, for the statistics.
void note_age(const NodeContext& node, Key key, WorkerCounters& counters) {
  const std::optional<Micros> age = node.partition_of(key).ages.age(key, node.clock());
  if (!age) return;
  counters.staleness_micros.add(static_cast<std::uint64_t>(std::max<Micros>(*age, 0)));
  counters.staleness_reads.add();
}

// The value of a packed table's key whose lock is held, and the end of that.
void read_packed(NodeContext& node, const Table& table, Key key, std::uint32_t word, float* out) {
  if ((word & word::kSet) != 0) {  // an owner's: nothing is apart from it
    table.read_value(node.store.arena(table).value(word & word::kIndexMask), out);
    node.store.unlock(key, word);
    return;
  }
  LockedKey copy(node.store, key, word);
  read(node.partition_of(key), copy, out);
}

// Prefetches what the next keys need: the words of the block after next, the slots of the next block.
void prefetch_block(Store& store, std::span<const Key> keys, std::size_t at, const Table* hint, bool writes) {
  const std::size_t words_end = std::min(at + 2 * kBlock, keys.size());
  for (std::size_t i = std::min(at + kBlock, keys.size()); i < words_end; ++i) store.prefetch_word(keys[i]);
  const std::size_t slots_end = std::min(at + kBlock, keys.size());
  for (std::size_t i = at; i < slots_end; ++i) {
    const std::uint32_t seen = store.peek(keys[i]);
    if ((seen & word::kSlot) == 0) continue;
    const Table& table = store.tables().find(keys[i], hint);
    Arena& arena = store.arena(table);
    Store::prefetch_value(arena, seen, writes ? arena.width() : table.value_words());
    if (writes) __builtin_prefetch(&arena.header(seen & word::kIndexMask), 1);
  }
}

template <OperationKind kKind>
AccessCounters& accesses_of(TableAccesses& table) {
  return kKind == OperationKind::kPull  ? table.pulled
         : kKind == OperationKind::kSet ? table.set
                                        : table.pushed;
}

// `kMayPack`: whether values of a table are packed; where none are, no key is asked.
template <OperationKind kKind, bool kMayPack>
void run_over(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kNeeded = needed_bits(kKind);
  Store& store = node.store;
  WorkerState& worker = *node.workers[static_cast<std::size_t>(operation.worker)];
  Misses misses(operation, keys.size());
  const Table* hint = nullptr;
  const Table* limited = nullptr;
  std::uint32_t most_gradients = 0;
  std::uint64_t at_owner = 0;
  std::uint64_t at_replica = 0;
  std::size_t offset = 0;
  // The table of the current run of keys, and where that run begins.
  const Table* counted = nullptr;
  std::size_t counted_from = 0;
  const auto count_until = [&](std::size_t end) {
    if (counted == nullptr) return;
    AccessCounters& accesses = accesses_of<kKind>(worker.accesses[store.tables().number_of(*counted)]);
    accesses.local.add(at_owner);
    accesses.replica.add(at_replica);
    accesses.remote.add(end - counted_from - at_owner - at_replica);
    at_owner = at_replica = 0;
    counted_from = end;
  };
  for (std::size_t i = 0; i < std::min(kBlock, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kBlock == 0) prefetch_block(store, keys, i, hint, kKind != OperationKind::kPull);
    const Key key = keys[i];
    const Table& table = store.tables().find(key, hint);
    if (&table != counted) {
      count_until(i);
      counted = &table;
    }
    const std::size_t here = offset;
    offset += table.length();
    // A request carries every gradient for its key, but only one value of the other kinds.
    std::uint32_t most = Occurrence::kEnd;
    if constexpr (kKind == OperationKind::kPushGradients) {
      if (&table != limited) most_gradients = gradients_in_message(node.settings, *(limited = &table));
      most = most_gradients;
    }
    if (misses.any() && misses.add_again(key, here, most)) continue;
    float* out = kKind == OperationKind::kPull ? operation.out + here : nullptr;
    const float* in = kKind == OperationKind::kPull ? nullptr : operation.in + here;
    const std::uint32_t word = store.lock_if(key, kNeeded);
    const bool is_packed = kMayPack && table.is_packed();
    if (word != 0 && (kKind == OperationKind::kPull || ((word & word::kTracked) == 0 && !is_packed))) {
      if (is_packed) {
        read_packed(node, table, key, word, out);
      } else {
        Arena& arena = store.arena(table);
        float* value = arena.value(word & word::kIndexMask);
        if constexpr (kKind == OperationKind::kPull) {
          std::memcpy(out, value, table.length() * sizeof(float));
        } else {
          write<kKind>(table, arena.header(word & word::kIndexMask), value, in);
        }
        store.unlock(key, word);
      }
      const bool owned = (word & word::kSet) != 0;
      ++(owned ? at_owner : at_replica);
      if constexpr (kKind == OperationKind::kPull) {
        if (!owned && ReplicaAges::sampled(key)) note_age(node, key, worker.counters);
      }
      continue;
    }
    LockedKey locked(store, key, word != 0 ? word : store.lock(key));
    touch(node, locked);
    if (allowed(kKind, locked)) {
      serve<kKind>(node, node.partition_of(key), locked, out, in);
      ++(locked.state() == State::kOwner ? at_owner : at_replica);
    } else {
      misses.add(key, here, most);
    }
  }
  count_until(keys.size());
}

template <OperationKind kKind>
void run(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  if (node.tables.any_packed()) {
    run_over<kKind, true>(node, operation, keys);
  } else {
    run_over<kKind, false>(node, operation, keys);
  }
}

// The keys that cannot be read here now.
void find_absent(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kReadable = needed_bits(OperationKind::kLocalize);
  Misses misses(operation, keys.size());
  for (const Key key : keys) {
    const std::uint32_t seen = node.store.peek(key);
    const bool is_here = (seen & kReadable) == kReadable || node.store.untouched_here(key, seen);
    if (!is_here) misses.add(key, 0, Occurrence::kEnd);
  }
}

}  // namespace

bool pull_if_here(NodeContext& node, int worker, const Table& table, Key key, float* out) {
  Store& store = node.store;
  const std::uint32_t seen = store.peek(key);
  const std::uint32_t needed = rules().needed_for_sample();
  if ((seen & needed) != needed && !store.untouched_here(key, seen)) return false;
  if (out == nullptr) return true;
  WorkerState& state = *node.workers[static_cast<std::size_t>(worker)];
  AccessCounters& pulled = state.accesses[store.tables().number_of(table)].pulled;
  if (const std::uint32_t word = store.lock_if(key, needed); word != 0) {
    if (table.is_packed()) {
      read_packed(node, table, key, word, out);
    } else {
      std::memcpy(out, store.arena(table).value(word & word::kIndexMask), table.length() * sizeof(float));
      store.unlock(key, word);
    }
    const bool owned = (word & word::kSet) != 0;
    (owned ? pulled.local : pulled.replica).add();
    if (!owned && ReplicaAges::sampled(key)) note_age(node, key, state.counters);
    return true;
  }
  LockedKey locked(store, key);
  touch(node, locked);
  if (locked.state() != State::kOwner) return false;
  serve<OperationKind::kPull>(node, node.partition_of(key), locked, out, nullptr);
  pulled.local.add();
  return true;
}

void start(NodeContext& node, Operation& operation, std::span<const Key> keys) {
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
  operation.left.store(static_cast<std::uint32_t>(operation.requests.size()), std::memory_order_relaxed);
  if (operation.requests.empty()) operation.done.store(true, std::memory_order_release);
}

void catch_up(NodeContext& node, const Table& table, std::span<const Key> keys, MissedSteps missed) {
  const UpdateStep now = table.now();
  if (now.history == nullptr) return;
  const UpdateRule& rule = table.spec().rule;
  Store& store = node.store;
  for (std::size_t i = 0; i < std::min(kBlock, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kBlock == 0) prefetch_block(store, keys, i, &table, true);
    const bool untouched = (store.peek(keys[i]) & word::kSlot) == 0;
    if (untouched && (now.with.weight_decay == 0.0F || missed == MissedSteps::kForget)) continue;
    LockedKey key(store, keys[i]);
    touch(node, key);
    if (key.state() != State::kOwner) continue;
    bool changed = true;
    if (missed == MissedSteps::kApply) {
      changed = rule.catch_up(key.value(), key.length(), now);
    } else {
      rule.restart(key.value(), key.length(), now);
    }
    if (changed) key.header().advance_version();
    rules().keep(key);
  }
}

std::size_t step_in_place(NodeContext& node, int worker, Key first, std::span<float> values,
                          const float* gradients, bool skips) {
  const Table& table = node.store.tables().find(first);
  const std::size_t length = table.length();
  const UpdateStep now = table.now();
  std::vector<float> padded;
  std::size_t skipped = 0;
  std::uint64_t rows = 0;
  for (std::size_t at = 0; at < values.size(); at += length, ++rows) {
    const std::size_t given = std::min(length, values.size() - at);
    float* value = values.data() + at;
    const float* gradient = gradients + at;
    if (given < length) {
      padded.assign(gradient, gradient + given);
      padded.resize(length, 0.0F);
      gradient = padded.data();
    }
    LockedKey key(node.store, first + rows);
    key.materialize();
    ADAPS_ASSERT(key.state() == State::kOwner);
    std::memcpy(key.value(), value, given * sizeof(float));
    if (skips && !all_finite(gradient, length)) {
      ++skipped;
    } else {
      table.apply_gradient(key.value(), gradient, nullptr, now);
    }
    key.header().advance_version();
    rules().keep(key);
    std::memcpy(value, key.value(), given * sizeof(float));
  }
  TableAccesses& accesses =
      node.workers[static_cast<std::size_t>(worker)]->accesses[node.store.tables().number_of(table)];
  accesses.pulled.local.add(rows);
  accesses.pushed.local.add(rows);
  return skipped;
}

bool has_room(const NodeContext& node, int worker) {
  const Completion& completion = node.workers[static_cast<std::size_t>(worker)]->completion;
  return rules().has_room(completion.queued_bytes.load(), node.settings.max_queued_bytes);
}

void submit_requests(NodeContext& node, Operation& operation) {
  std::vector<std::vector<KeyRequest*>> by_channel(node.partitions.size());
  const bool gradients = operation.kind == OperationKind::kPushGradients;
  const Table* hint = nullptr;
  for (const KeyRequest& request : operation.requests) {
    if (operation.kind == OperationKind::kLocalize) break;
    const std::size_t rows = gradients ? request.occurrences : 1;
    operation.bytes += kRequestBytes + rows * node.tables.find(request.key, hint).length() * sizeof(float);
  }
  operation.completion.queued_bytes.fetch_add(operation.bytes);
  for (KeyRequest& request : operation.requests) {
    if (is_write(operation.kind)) request.epoch = node.epochs.add();
    if (rules().waits_for_part_before(request)) continue;
    by_channel[static_cast<std::size_t>(node.directory.channel(request.key))].push_back(&request);
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) node.partitions[i]->submit(by_channel[i]);
  }
}

bool try_local(NodeContext& node, Partition& partition, LockedKey& key, const KeyRequest& request) {
  const OperationKind kind = request.operation->kind;
  if (!allowed(kind, key)) return false;
  switch (kind) {
    case OperationKind::kPull:
      serve_all<OperationKind::kPull>(node, partition, key, request);
      break;
    case OperationKind::kPush:
      serve_all<OperationKind::kPush>(node, partition, key, request);
      break;
    case OperationKind::kPushGradients:
      serve_all<OperationKind::kPushGradients>(node, partition, key, request);
      break;
    case OperationKind::kSet:
      serve_all<OperationKind::kSet>(node, partition, key, request);
      break;
    case OperationKind::kLocalize:
    case OperationKind::kSync:
    case OperationKind::kBarrier:
      break;
  }
  return true;
}

void show_changes(Partition& partition, LockedKey& key) {
  const bool is_copy = key.state() == State::kReplica || key.state() == State::kDropping;
  if (!key.table().is_packed() || !is_copy || !key.header().has_changes()) return;
  key.discard();
  rules().add_again(key, partition.tables.unapplied.at(key.header().changes()));
}

std::span<const float> summed(const KeyRequest& request, std::size_t length, std::vector<float>& scratch) {
  const Operation& operation = *request.operation;
  const float* first = operation.in + operation.occurrences[request.first].offset;
  if (request.occurrences == 1) return {first, length};
  scratch.assign(first, first + length);
  for (std::uint32_t i = operation.occurrences[request.first].next; i != Occurrence::kEnd;
       i = operation.occurrences[i].next) {
    add_to(scratch.data(), operation.in + operation.occurrences[i].offset, length);
  }
  return scratch;
}

}  // namespace adaps
