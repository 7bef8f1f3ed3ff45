#include "protocol/local_access.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "common/assert.h"
#include "common/prefetch.h"
#include "common/random.h"
#include "protocol/context.h"
#include "protocol/decisions.h"
#include "protocol/message.h"
#include "protocol/wire_encoding.h"
#include "store/add.h"
#include "store/finite.h"
#include "store/racing_copy.h"

namespace adaps {

namespace {

// Bytes that a request takes until it is complete, in addition to its floats: its message and its own
// objects.
constexpr std::size_t kRequestBytes = sizeof(RequestMessage) + sizeof(KeyRequest) + sizeof(Occurrence);
// Number of keys that are prefetched together before they are locked. A lock waits for all pending memory
// accesses of its core. Therefore the keys of a block are first prefetched together and then locked, and not
// prefetched and locked in turn.
constexpr std::size_t kBlock = 32;
// Number of keys between the prefetch of a row and its read without a lock. The key's word is prefetched
// twice as many keys before the read.
constexpr std::size_t kReadPrefetchDistance = 24;

// Bits of a key word that allow a call without looking at the header: a pull needs a readable value, and a
// write needs an owned key without holders.
constexpr std::uint32_t needed_bits(OperationKind kind) {
  const bool reads = kind == OperationKind::kPull || kind == OperationKind::kLocalize;
  return word::kSlot | (reads ? word::kReadable : word::kAlone);
}

// The table of the last key, and the addresses of the table's rows. They are copied to one object, because
// the compiler would reload them after every call and atomic access.
class Rows {
 public:
  explicit Rows(const Store& store) : store_(store) {}

  Rows(const Store& store, const Table& table) : store_(store) { use(table); }

  void move_to(Key key) {
    if (!have(key)) [[unlikely]]
      use(store_.tables().find(key));
  }
  bool have(Key key) const { return key - first_ < count_; }
  const Table& table() const { return *table_; }
  std::size_t length() const { return length_; }
  bool are_packed() const { return is_packed_; }
  std::size_t value_words() const { return value_words_; }
  std::size_t width() const { return width_; }  // width of a slot, in words
  float* value(std::uint32_t index) const { return values_ + index * width_; }
  SlotHeader& header(std::uint32_t index) const { return headers_[index]; }

 private:
  void use(const Table& table) {
    table_ = &table;
    first_ = table.first_key();
    count_ = table.end_key() - first_;
    length_ = table.length();
    value_words_ = table.value_words();
    is_packed_ = table.is_packed();
    Arena& arena = store_.arena(table);
    width_ = arena.width();
    values_ = arena.value(0);
    headers_ = &arena.header(0);
  }

  const Store& store_;
  const Table* table_ = nullptr;
  Key first_ = 0;
  std::uint64_t count_ = 0;
  std::size_t length_ = 0;
  std::size_t value_words_ = 0;
  std::size_t width_ = 0;
  float* values_ = nullptr;
  SlotHeader* headers_ = nullptr;
  bool is_packed_ = false;
};

// An operation's requests by key: a hash table with open addressing. It is only allocated when a key is not
// local.
class MissedKeys {
 public:
  MissedKeys(Operation& operation, std::size_t keys) : operation_(operation), keys_(keys) {}

  bool any() const { return !slots_.empty(); }

  // Adds an occurrence to the key's request. Returns false if the key has no request.
  bool add_again(Key key, std::size_t offset, std::uint32_t most) {
    const std::uint32_t index = slots_[find(key)];
    if (index == kFree) return false;
    append(index, offset, most);
    return true;
  }

  // Adds a request for the key. A request contains at most `most` occurrences; further occurrences are added
  // to another request that is sent after it.
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
    while (slots_[slot] != kFree && !decisions().go_together(operation_.requests[slots_[slot]].key, key))
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
      decisions().rounds(table, key)
          ? encoded_floats(table, decisions().wire_of(table, key), table.change_length())
          : table.width();
  return is_shorter_as_gradient(table, otherwise);
}

bool allowed(OperationKind kind, LockedKey& key) {
  switch (key.state()) {
    case State::kOwner:
      return true;
    case State::kReplica:
      return decisions().is_served_by_replica(kind);
    case State::kDropping:
      return decisions().is_served_while_dropping(kind) && (key.header().flags & kUnreadable) == 0;
    case State::kPending:
    case State::kNone:
    case State::kStored:
      return false;
  }
  return false;
}

// Writes one occurrence to the owner's value.
template <OperationKind kKind>
void write(const Table& table, float* value, const float* in) {
  if constexpr (kKind == OperationKind::kPush) {
    add_to(value, in, table.length());
  } else if constexpr (kKind == OperationKind::kPushGradients) {
    table.apply_gradient(value, in, nullptr);
  } else {
    std::memcpy(value, in, table.length() * sizeof(float));
  }
}

// Returns the change of a replica to which the next write is added.
Delta& unsent_changes(NodeContext& node, Partition& partition, OperationKind kind, LockedKey& key,
                      const float* in, const UpdateStep& step) {
  SlotHeader& header = key.header();
  if (!header.has_changes()) header.set_changes(partition.tables.unapplied.allocate());
  Unapplied& changes = partition.tables.unapplied.at(header.changes());
  Delta& unsent = changes.unsent;
  if (unsent) {
    merge_rest(node.epochs, unsent);
    unsent.change = decisions().change_of_several(unsent.change);
    return unsent;
  }
  unsent.epoch = node.epochs.add();
  BlockPool& pool = *partition.tables.changes[node.tables.number_of(key.table())];
  unsent.floats = pool.allocate();
  if (kind == OperationKind::kPushGradients && sends_gradients(key.table(), key.key())) {
    unsent.change = Change::kGradient;
    unsent.hyperparameters = step.with.fingerprint();
    // If a change is in flight, the row equals no version of the owner. Then the base is a version that
    // cannot be equal to the owner's. on_ack corrects the base if the change in flight turns out to be exact.
    const Version base = changes.in_flight ? header.version() - 1 : header.version();
    const GradientHeader applied{step.with.learning_rate, static_cast<std::uint32_t>(step.number), base};
    ADAPS_ASSERT(key.table().change_length() + kGradientHeader + key.length() <= pool.floats());
    float* gradient = unsent.floats.get() + key.table().change_length();
    std::memcpy(gradient, &applied, sizeof(applied));
    std::memcpy(gradient + kGradientHeader, in, key.length() * sizeof(float));
  } else {
    unsent.change = Change::kDelta;
  }
  key.table().spec().rule.init_change(unsent.floats.get(), key.length());
  return unsent;
}

// The value that a worker reads.
void read(Partition& partition, LockedKey& key, float* out) {
  apply_pending_changes(partition, key);
  if (key.is_unpacked()) {
    std::memcpy(out, key.value(), key.length() * sizeof(float));
  } else {
    key.table().read_value(key.stored(key.length()).data(), out);
  }
}

// Serves one occurrence. The key's state must allow it.
template <OperationKind kKind>
void serve(NodeContext& node, Partition& partition, LockedKey& key, float* out, const float* in) {
  if constexpr (kKind == OperationKind::kPull) {
    read(partition, key, out);
  } else if (key.state() == State::kOwner) {
    write<kKind>(key.table(), key.value(), in);
    decisions().count_change(key.header());
    decisions().keep(key);
    if (decisions().is_to_be_refreshed(key.header())) partition.mark_dirty(key);
  } else {
    const UpdateStep step = key.table().now();
    Delta& unsent = unsent_changes(node, partition, kKind, key, in, step);
    apply_pending_changes(partition, key);
    decisions().apply_at_replica(kKind, key, in, unsent.floats.get(), step);
    key.discard();  // the change contains the effect on a packed copy
    partition.mark_dirty(key);
  }
}

// Serves all occurrences of one key in a request. The key's state must allow it.
template <OperationKind kKind>
void serve_all(NodeContext& node, Partition& partition, LockedKey& key, const KeyRequest& request) {
  const Operation& operation = *request.operation;
  if constexpr (kKind == OperationKind::kSet) {
    const std::uint32_t last = decisions().occurrence_that_counts(request);
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

// Serves one occurrence in a call about the optimizer state of a row that this node owns.
void serve_state(Partition& partition, LockedKey& key, const Operation& operation, std::size_t offset) {
  if (operation.kind == OperationKind::kPullState) {
    std::ranges::copy(stored_state(key), operation.out + offset);
    return;
  }
  write_state(key, operation.in + offset);
  if (decisions().is_to_be_refreshed(key.header())) partition.mark_dirty(key);
}

// Writes the initial value of a key whose home is this node and that was never used. If the table's memory is
// limited, the key's channel does so when it has memory.
void touch(NodeContext& node, LockedKey& key) {
  if (!key.untouched_here() || key.table().is_limited()) return;
  key.materialize();
  if (node.trace.wants(key.key()))
    node.trace.add(node.now.load(std::memory_order_relaxed), key.key(), TraceKind::kAlloc);
}

// Records a read of a replica for the statistics.
void note_read_of_copy(const NodeContext& node, Key key, WorkerCounters& counters) {
  if (!ReplicaAges::sampled(key)) return;
  const std::optional<Micros> age = node.partition_of(key).ages.age(key, node.clock());
  if (!age) return;
  counters.staleness_micros.add(static_cast<std::uint64_t>(std::max<Micros>(*age, 0)));
  counters.staleness_reads.add();
}

// Prefetches the value of a key of another table.
[[gnu::noinline]] void prefetch_elsewhere(const Store& store, Key key, std::uint32_t seen) {
  const Table& table = store.tables().find(key);
  prefetch_floats(store.arena(table).value(seen & word::kIndexMask), table.value_words());
}

// Prefetches the value of a key, which is most often in the same table as the previous keys.
[[gnu::always_inline]] inline void prefetch_value(const Store& store, const Rows& rows, Key key) {
  const std::uint32_t seen = store.peek(key);
  if ((seen & word::kSlot) == 0) return;
  if (rows.have(key)) {
    prefetch_floats(rows.value(seen & word::kIndexMask), rows.value_words());
  } else {
    prefetch_elsewhere(store, key, seen);
  }
}

// Prefetches words and values of keys after the current key.
[[gnu::always_inline]] inline void prefetch_next(const Store& store, const Rows& rows,
                                                 std::span<const Key> keys) {
  if (2 * kReadPrefetchDistance < keys.size()) store.prefetch_word(keys[2 * kReadPrefetchDistance]);
  if (kReadPrefetchDistance < keys.size()) prefetch_value(store, rows, keys[kReadPrefetchDistance]);
}

// Reads rows without their locks, as long as they are local and in one table. Returns their number, and adds
// the number of owned rows to `owned`. For each key, data of later keys is prefetched.
template <typename OfCopy>
std::size_t read_run(const Store& store, const Rows rows, std::span<const Key> keys, float* out,
                     std::uint64_t& owned, OfCopy of_copy) {
  constexpr std::uint32_t kNeeded = needed_bits(OperationKind::kPull);
  const KeyWords words = store.words();
  std::uint64_t others = 0;
  std::size_t i = 0;
  for (; i < keys.size(); ++i, out += rows.length()) {
    prefetch_next(store, rows, keys.subspan(i));
    const Key key = keys[i];
    if (!rows.have(key)) break;
    const std::uint32_t word = words.read_if(
        key, kNeeded, [&](std::uint32_t slot) { copy_racing(out, rows.value(slot), rows.length()); });
    if (word == 0) break;
    if ((word & word::kSet) != 0) continue;
    ++others;
    of_copy(key);
  }
  owned += i - others;
  return i;
}

// Reads a row without its lock, if its word has all bits of `needed`. Returns the word, or 0 if it did not
// read.
template <bool kMayPack>
std::uint32_t read_unlocked(const Store& store, const Rows& rows, Key key, std::uint32_t needed, float* out) {
  if (!kMayPack || !rows.are_packed()) {
    return store.words().read_if(
        key, needed, [&](std::uint32_t slot) { copy_racing(out, rows.value(slot), rows.length()); });
  }
  // Changes of a packed copy may be stored separately, so only the slot of an owner contains the complete
  // value.
  thread_local std::vector<float> stored;
  const std::size_t words = rows.value_words();
  if (stored.size() < words) stored.resize(words);
  const std::uint32_t word = store.words().read_if(key, needed | word::kSet, [&](std::uint32_t slot) {
    copy_racing(stored.data(), rows.value(slot), words);
  });
  if (word != 0) rows.table().read_value(stored.data(), out);
  return word;
}

// Prefetches a row for a write. The header of an owned row without holders is only prefetched with
// `any_header`, because most writes do not access it.
void prefetch_row(const Store& store, Rows& rows, Key key, bool any_header) {
  const std::uint32_t seen = store.peek(key);
  if ((seen & word::kSlot) == 0) return;
  rows.move_to(key);
  const std::uint32_t slot = seen & word::kIndexMask;
  prefetch_floats(rows.value(slot), rows.width());
  if (any_header || !is_owned_alone(seen)) prefetch_line(&rows.header(slot));
}

// Prefetches data of later keys: key words for the block after next, and slots for the next block.
void prefetch_block(const Store& store, Rows& rows, std::span<const Key> keys, std::size_t at,
                    bool any_header) {
  const std::size_t words_end = std::min(at + 2 * kBlock, keys.size());
  for (std::size_t i = std::min(at + kBlock, keys.size()); i < words_end; ++i) store.prefetch_word(keys[i]);
  const std::size_t slots_end = std::min(at + kBlock, keys.size());
  for (std::size_t i = at; i < slots_end; ++i) prefetch_row(store, rows, keys[i], any_header);
}

// Prefetches memory for the changes of replicas among the keys. Assumes that all keys have the first key's
// table and channel, which is true in most calls.
void prefetch_new_changes(NodeContext& node, const Table& table, std::span<const Key> keys) {
  static_assert(kBlock <= BlockPool::kPrefetched);
  const auto copies =
      std::count_if(keys.begin(), keys.end(), [&](Key key) { return is_replica(node.store.peek(key)); });
  if (copies == 0) return;
  const BlockPool& pool = *node.partition_of(keys[0]).tables.changes[node.tables.number_of(table)];
  pool.prefetch(static_cast<std::size_t>(copies));
}

template <OperationKind kKind>
AccessCounters& accesses_of(TableAccesses& table) {
  return kKind == OperationKind::kPull  ? table.pulled
         : kKind == OperationKind::kSet ? table.set
                                        : table.pushed;
}

// `kMayPack`: whether any table is packed. If not, the keys' tables are not checked for this.
template <OperationKind kKind, bool kMayPack>
void run_over(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kNeeded = needed_bits(kKind);
  Store& store = node.store;
  WorkerState& worker = *node.workers[static_cast<std::size_t>(operation.worker)];
  MissedKeys missed(operation, keys.size());
  Rows rows(store);
  const Table* limited = nullptr;
  std::uint32_t most_gradients = 0;
  std::uint64_t at_owner = 0;
  std::uint64_t at_replica = 0;
  const auto of_copy = [&](Key key) {
    ++at_replica;
    note_read_of_copy(node, key, worker.counters);
  };
  std::size_t offset = 0;
  // The keys are counted in runs of consecutive keys of one table. These are the run's table and its first
  // index.
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
  constexpr bool kReads = kKind == OperationKind::kPull;
  Rows ahead(store);  // table of the keys that are prefetched for writes
  const std::size_t begun = std::min(kReads ? 2 * kReadPrefetchDistance : kBlock, keys.size());
  for (std::size_t i = 0; i < begun; ++i) store.prefetch_word(keys[i]);
  if (kReads && !keys.empty()) {
    rows.move_to(keys[0]);
    for (std::size_t i = 0; i < std::min(kReadPrefetchDistance, keys.size()); ++i)
      prefetch_value(store, rows, keys[i]);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Key key = keys[i];
    rows.move_to(key);
    const Table& table = rows.table();
    if (!kReads && i % kBlock == 0) {
      prefetch_block(store, ahead, keys, i, false);
      if (kKind != OperationKind::kSet)  // replicas do not serve sets
        prefetch_new_changes(node, table, keys.subspan(i, std::min(kBlock, keys.size() - i)));
    }
    if (&table != counted) {
      count_until(i);
      counted = &table;
    }
    const std::size_t here = offset;
    offset += rows.length();
    // A request carries all gradients for its key, but only one value of the other kinds.
    std::uint32_t most = Occurrence::kEnd;
    if constexpr (kKind == OperationKind::kPushGradients) {
      if (&table != limited) most_gradients = gradients_in_message(node.settings, *(limited = &table));
      most = most_gradients;
    }
    if (missed.any()) {
      if (missed.add_again(key, here, most)) continue;
    } else if constexpr (kReads) {
      if (!kMayPack || !rows.are_packed()) {
        // Reads this key together with the following keys of its table, and continues after the last of them.
        const std::size_t read =
            read_run(store, rows, keys.subspan(i), operation.out + here, at_owner, of_copy);
        if (read > 0) {
          i += read - 1;
          offset += (read - 1) * rows.length();
          continue;
        }
      }
    }
    float* out = kReads ? operation.out + here : nullptr;
    const float* in = kReads ? nullptr : operation.in + here;
    if constexpr (kReads) {
      prefetch_next(store, rows, keys.subspan(i));
      if (const std::uint32_t word = read_unlocked<kMayPack>(store, rows, key, kNeeded, out); word != 0) {
        const bool owned = (word & word::kSet) != 0;
        ++(owned ? at_owner : at_replica);
        if (!owned) note_read_of_copy(node, key, worker.counters);
        continue;
      }
    } else if (!kMayPack || !rows.are_packed()) {
      if (const std::uint32_t word = store.lock_if(key, kNeeded); word != 0) {
        const std::uint32_t slot = word & word::kIndexMask;
        write<kKind>(table, rows.value(slot), in);
        store.unlock(key, decisions().written_alone(word, rows.header(slot)));
        ++at_owner;
        continue;
      }
    }
    const Table* hint = &table;
    LockedKey locked(store, key, hint);
    touch(node, locked);
    if (allowed(kKind, locked)) {
      serve<kKind>(node, node.partition_of(key), locked, out, in);
      const bool owned = locked.state() == State::kOwner;
      ++(owned ? at_owner : at_replica);
      if (kReads && !owned) note_read_of_copy(node, key, worker.counters);
    } else {
      missed.add(key, here, most);
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

// Serves those occurrences of a call about optimizer states whose rows this node owns.
void run_over_states(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  MissedKeys missed(operation, keys.size());
  const Table* hint = nullptr;
  std::size_t offset = 0;
  for (const Key key : keys) {
    const std::size_t here = offset;
    offset += node.tables.find(key, hint).state_length();
    if (missed.any() && missed.add_again(key, here, Occurrence::kEnd)) continue;
    LockedKey locked(node.store, key, hint);
    touch(node, locked);
    if (allowed(operation.kind, locked)) {
      serve_state(node.partition_of(key), locked, operation, here);
    } else {
      missed.add(key, here, Occurrence::kEnd);
    }
  }
}

// Collects the keys that cannot be read on this node now.
void find_absent(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  constexpr std::uint32_t kReadable = needed_bits(OperationKind::kLocalize);
  MissedKeys missed(operation, keys.size());
  for (const Key key : keys) {
    const std::uint32_t seen = node.store.peek(key);
    const bool is_here = (seen & kReadable) == kReadable || node.store.untouched_here(key, seen);
    if (!is_here) missed.add(key, 0, Occurrence::kEnd);
  }
}

// Records that this node uses those of the rows that have ids.
void mark_used(const Tables& tables, std::span<const Key> keys) {
  const Table* hint = nullptr;
  for (const Key key : keys) {
    const Table& table = tables.find(key, hint);
    if (table.ids() != nullptr) table.ids()->used().add(key - table.first_key());
  }
}

// Marks the rows of limited tables as used, so that they stay in memory for longer.
void note_uses(NodeContext& node, std::span<const Key> keys) {
  const Table* hint = nullptr;
  for (const Key key : keys) {
    const Table& table = node.tables.find(key, hint);
    const std::uint32_t seen = node.store.peek(key);
    if (table.is_limited() && (seen & word::kSlot) != 0)
      node.store.arena(table).note_use(seen & word::kIndexMask);
  }
}

}  // namespace

bool pull_if_here(NodeContext& node, int worker, const Table& table, Key key, float* out) {
  Store& store = node.store;
  const std::uint32_t seen = store.peek(key);
  const std::uint32_t needed = decisions().needed_for_sample();
  if ((seen & needed) != needed && !store.untouched_here(key, seen)) return false;
  if (out == nullptr) return true;
  WorkerState& state = *node.workers[static_cast<std::size_t>(worker)];
  AccessCounters& pulled = state.accesses[store.tables().number_of(table)].pulled;
  const auto count = [&](bool owned) {
    (owned ? pulled.local : pulled.replica).add();
    if (!owned) note_read_of_copy(node, key, state.counters);
  };
  const std::uint32_t word = read_unlocked<true>(store, Rows(store, table), key, needed, out);
  if (word != 0) {
    count((word & word::kSet) != 0);
    return true;
  }
  LockedKey locked(store, key);
  touch(node, locked);
  if (!allowed(OperationKind::kPull, locked)) return false;
  serve<OperationKind::kPull>(node, node.partition_of(key), locked, out, nullptr);
  count(locked.state() == State::kOwner);
  return true;
}

void start(NodeContext& node, Operation& operation, std::span<const Key> keys) {
  if (node.tables.any_ids() && decisions().uses_rows(operation.kind)) mark_used(node.tables, keys);
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
    case OperationKind::kPullState:
    case OperationKind::kSetState:
      run_over_states(node, operation, keys);
      break;
    case OperationKind::kLocalize:
      find_absent(node, operation, keys);
      break;
    case OperationKind::kSync:
    case OperationKind::kBarrier:
    case OperationKind::kRowsOf:
    case OperationKind::kUsedIds:
      break;
  }
  if (node.tables.any_limited()) note_uses(node, keys);
  operation.left.store(static_cast<std::uint32_t>(operation.requests.size()), std::memory_order_relaxed);
  if (operation.requests.empty()) operation.done.store(true, std::memory_order_release);
}

void catch_up(NodeContext& node, const Table& table, std::span<const Key> keys, MissedSteps missed) {
  const UpdateStep now = table.now();
  if (now.history == nullptr) return;
  const UpdateRule& rule = table.spec().rule;
  Store& store = node.store;
  Rows rows(store, table);
  for (std::size_t i = 0; i < std::min(kBlock, keys.size()); ++i) store.prefetch_word(keys[i]);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kBlock == 0) prefetch_block(store, rows, keys, i, true);
    const bool untouched = (store.peek(keys[i]) & word::kSlot) == 0;
    if (untouched && (now.with.weight_decay == 0.0F || missed == MissedSteps::kForget)) continue;
    LockedKey key(store, keys[i]);
    if (!table.is_usable(keys[i])) continue;  // with the lock, so that the row keeps its id
    // The row of an id exists from its first use on, so it has missed no earlier step.
    const bool is_new = table.ids() != nullptr && !table.ids()->used().contains(keys[i] - table.first_key());
    touch(node, key);
    if (key.state() != State::kOwner) continue;
    bool changed = true;
    if (missed == MissedSteps::kApply && !is_new) {
      changed = rule.catch_up(key.value(), key.length(), now);
    } else {
      rule.restart(key.value(), key.length(), now);
    }
    if (changed) key.header().advance_version();
    decisions().keep(key);
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
    decisions().keep(key);
    std::memcpy(value, key.value(), given * sizeof(float));
  }
  TableAccesses& accesses =
      node.workers[static_cast<std::size_t>(worker)]->accesses[node.store.tables().number_of(table)];
  accesses.pulled.local.add(rows);
  accesses.pushed.local.add(rows);
  return skipped;
}

bool is_changed(const NodeContext& node, std::span<const Key> keys, std::span<std::int64_t> seen) {
  constexpr std::uint32_t kNeeded = needed_bits(OperationKind::kPull);
  bool changed = false;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kReadPrefetchDistance < keys.size()) node.store.prefetch_word(keys[i + kReadPrefetchDistance]);
    const auto now = static_cast<std::int64_t>(node.store.words().known_by(keys[i], kNeeded));
    changed |= now == 0 || now != seen[i];
    seen[i] = now;
  }
  return changed;
}

bool may_queue_more(const NodeContext& node, int worker) {
  const Completion& completion = node.workers[static_cast<std::size_t>(worker)]->completion;
  return decisions().may_queue_more(completion.queued_bytes.load(), node.settings.max_queued_bytes);
}

void hurry_sync(NodeContext& node, Operation& operation) {
  if (operation.kind != OperationKind::kSync || !node.epochs.hurry(operation)) return;
  // The channel is woken even if a round is requested already, because changes do not wait for the round now.
  for (const auto& partition : node.partitions) {
    partition->request_round();
    partition->wake();
  }
}

void submit_requests(NodeContext& node, Operation& operation) {
  std::vector<std::vector<KeyRequest*>> by_channel(node.partitions.size());
  const bool gradients = operation.kind == OperationKind::kPushGradients;
  const Table* hint = nullptr;
  for (const KeyRequest& request : operation.requests) {
    if (operation.kind == OperationKind::kLocalize) break;
    const std::size_t rows = gradients ? request.occurrences : 1;
    const Table& table = node.tables.find(request.key, hint);
    operation.bytes += kRequestBytes + rows * floats_per_key(operation.kind, table) * sizeof(float);
  }
  operation.completion.queued_bytes.fetch_add(operation.bytes);
  for (KeyRequest& request : operation.requests) {
    if (is_write(operation.kind)) request.epoch = node.epochs.add();
    node.pin(request.key);
    if (decisions().waits_for_part_before(request)) continue;
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
    case OperationKind::kPullState:
    case OperationKind::kSetState:
      for (std::uint32_t i = request.first; i != Occurrence::kEnd; i = request.operation->occurrences[i].next)
        serve_state(partition, key, *request.operation, request.operation->occurrences[i].offset);
      break;
    case OperationKind::kLocalize:
    case OperationKind::kSync:
    case OperationKind::kBarrier:
    case OperationKind::kRowsOf:
    case OperationKind::kUsedIds:
      break;
  }
  return true;
}

std::span<const float> stored_state(const LockedKey& key) { return decisions().state_of(key); }

void write_state(LockedKey& key, const float* state) {
  std::copy_n(state, key.table().state_length(), key.value() + key.length());
  decisions().count_state(key.header());
  decisions().keep(key);
}

void apply_pending_changes(Partition& partition, LockedKey& key) {
  const bool is_copy = key.state() == State::kReplica || key.state() == State::kDropping;
  if (!key.table().is_packed() || !is_copy || !key.header().has_changes()) return;
  key.discard();
  decisions().add_again(key, partition.tables.unapplied.at(key.header().changes()));
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
