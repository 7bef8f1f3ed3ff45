// The store of a node: a key word and an intent count for every key, and slots for the keys that the node
// holds.
//
// A key word combines a lock and a header (docs/concepts/protocol.md, section 6). If the key has a slot, its
// bits are:
//   lock:1 | slot:1 | readable:1 | set:1 | alone:1 | push or uncounted:1 | index:26
// If the key has no slot, the word is a location entry:
//   lock:1 | 0 | owner:12 | relocation count:18
// A location entry that names its own node marks a row that this node owns and has written to a file (see
// StoredRows); its count is always kStoredCount.
// The word 0 means "owned here and never touched" at the home node, and "ask the home node" elsewhere.
// Therefore a table needs no set-up work at any node, and keys that were never touched take no memory for
// values.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/assert.h"
#include "common/prefetch.h"
#include "common/spin_lock.h"
#include "common/types.h"
#include "store/byte_counts.h"
#include "store/directory.h"
#include "store/reserved.h"
#include "store/stable_pool.h"
#include "store/table.h"

namespace adaps {

namespace word {
inline constexpr std::uint32_t kLock = 1U << 31;
inline constexpr std::uint32_t kSlot = 1U << 30;
inline constexpr std::uint32_t kReadable = 1U << 29;
inline constexpr std::uint32_t kSet = 1U << 28;    // the key is owned, so it may be set without a message
inline constexpr std::uint32_t kAlone = 1U << 27;  // the key is owned, and no other node has a copy
// kPush and kUncounted are one bit with two meanings. Without kAlone, it shows whether a push can be applied.
// With kAlone, it shows whether the value was written after the version was last raised.
inline constexpr std::uint32_t kPush = 1U << 26;
inline constexpr std::uint32_t kUncounted = kPush;
inline constexpr std::uint32_t kIndexMask = kPush - 1;
inline constexpr int kOwnerShift = 18;
// Not 0, so that the word of a stored row differs from 0 also at node 0.
inline constexpr std::uint32_t kStoredCount = 1;
}  // namespace word

// These functions evaluate a key word that was read without the key's lock. On the thread of the key's
// channel, the result is valid until that thread changes the key. On other threads, it may be outdated.
inline bool is_owned(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kSet)) == (word::kSlot | word::kSet);
}
inline bool is_owned_alone(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kAlone)) == (word::kSlot | word::kAlone);
}
// Whether the word belongs to a replica that accepts pushes.
inline bool is_replica(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kSet | word::kAlone | word::kPush)) == (word::kSlot | word::kPush);
}
inline bool is_owned_or_copied(std::uint32_t seen) {
  return (seen & word::kSlot) != 0 && (seen & (word::kAlone | word::kPush)) != 0;
}
// Whether the value was written after the version was last raised, so that the version in the header is too
// old.
inline bool is_uncounted(std::uint32_t seen) {
  return is_owned_alone(seen) && (seen & word::kUncounted) != 0;
}

enum class State : std::uint8_t { kNone, kPending, kReplica, kDropping, kOwner, kStored };

// The state of a key with a slot. The header takes 12 bytes; with key word and intent count, a slot takes 17
// bytes in addition to value and optimizer state. Two fields have a different meaning in each state, so they
// are private, and each accessor asserts the state.
class SlotHeader {
  static constexpr int kNodeBits = 12;
  static constexpr int kNodeMask = (1 << kNodeBits) - 1;
  static constexpr int kMostTimes = 3;
  static_assert(kMaxNodes <= kNodeMask + 1);

 public:
  // Owner: version of the value. Replica, dropping: version of the owner's value from which the copy was
  // made.
  Version version() const {
    ADAPS_ASSERT(has_value());
    return version_;
  }
  void set_version(Version version) {
    ADAPS_ASSERT(has_value());
    version_ = version;
  }
  // Owner: records that the value has changed.
  void advance_version() {
    ADAPS_ASSERT(state == State::kOwner);
    version_ = next_version(version_);
  }
  // Pending: time when INTENT was sent, in microseconds modulo 2^32, for statistics.
  std::uint32_t asked_at() const {
    ADAPS_ASSERT(state == State::kPending);
    return version_;
  }
  void set_asked_at(std::uint32_t micros) {
    ADAPS_ASSERT(state == State::kPending);
    version_ = micros;
  }

  // Owner: records that `node` was the only interested node. Returns how often it was in a row, up to three
  // times.
  int note_alone(NodeId node) {
    ADAPS_ASSERT(state == State::kOwner);
    const int times = (location & kNodeMask) == node ? std::min(location >> kNodeBits, kMostTimes - 1) : 0;
    location = static_cast<NodeId>((times + 1) << kNodeBits | node);
    return times + 1;
  }
  // Owner: records that several nodes were interested.
  void note_several() {
    ADAPS_ASSERT(state == State::kOwner);
    location = 0;
  }

  // Owner: the index of the first holder of a replica, 0 for none.
  std::uint32_t first_holder() const {
    ADAPS_ASSERT(state == State::kOwner);
    return entry_;
  }
  void set_first_holder(std::uint32_t index) {
    ADAPS_ASSERT(state == State::kOwner);
    entry_ = index;
  }
  bool has_holders() const { return first_holder() != 0; }
  // Replica, dropping: the index of changes that the owner has not received, 0 for none.
  std::uint32_t changes() const {
    ADAPS_ASSERT(is_copy());
    return entry_;
  }
  void set_changes(std::uint32_t index) {
    ADAPS_ASSERT(is_copy());
    entry_ = index;
  }
  bool has_changes() const { return changes() != 0; }

  // The index of holders or changes, as a hint for prefetching. It is read without the key's lock.
  std::uint32_t entry_hint() const { return entry_; }

 private:
  bool is_copy() const { return state == State::kReplica || state == State::kDropping; }
  bool has_value() const { return state == State::kOwner || is_copy(); }

  std::uint32_t version_ = 0;
  std::uint32_t entry_ : kNameBits = 0;  // name in a pool of the key's partition

 public:
  State state : 3 = State::kNone;
  std::uint8_t flags : 3 = 0;
  // Owner, replica: relocation count of the owner; otherwise: of the location entry.
  RelocationCount rc : 18 = 0;
  // Replica, dropping: the owner. Pending: location entry. Owner: the node of note_alone() in the lower
  // kNodeBits bits, and its number of times in the others.
  NodeId location : kNodeBits + 2 = 0;
};
static_assert(sizeof(SlotHeader) == 12);
inline constexpr std::uint8_t kOnDirtyList = 1;  // the key is on its channel's dirty list
inline constexpr std::uint8_t kUnreadable = 2;   // dropping: a newer answer was seen
inline constexpr std::uint8_t kKeptBack = 4;     // its change is on the list of changes that wait for space

// Slots of one width. The unit of the width is a word, which has the size of a float. Address space is
// reserved for every row, but only used slots take memory. Freed slots are reused.
//
// An arena of a table whose memory is limited is divided among the channels, because each channel moves only
// its own rows to and from the file. Only the thread of a row's channel allocates and releases its slot, and
// it reserves each slot before it allocates it.
class Arena {
 public:
  static constexpr Key kNoKey = ~Key{0};

  // `channels`: 0 unless the table's memory is limited.
  Arena(std::size_t width, std::uint64_t rows, int channels = 0);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::uint32_t allocate();
  void release(std::uint32_t index);

  SlotHeader& header(std::uint32_t index) { return headers_[index]; }
  float* value(std::uint32_t index) { return values_ + static_cast<std::size_t>(index) * width_; }
  std::size_t width() const { return width_; }
  std::uint64_t in_use() const;
  // Largest number of slots that were in use at once. Their memory is resident.
  std::uint64_t high_water() const;

  // --- only if the table's memory is limited ---

  // Number of slots that a channel may still reserve.
  std::uint64_t free_of(int channel) const { return most_ - reserved_of(channel).load(kRelaxed); }
  void reserve(int channel) { reserved_of(channel).fetch_add(1, kRelaxed); }
  void cancel(int channel) { reserved_of(channel).fetch_sub(1, kRelaxed); }
  // Maximum number of slots of a channel.
  std::uint64_t most_of_channel() const { return most_; }
  // Number of owned rows that are in the table's file.
  std::uint64_t stored() const { return stored_.load(kRelaxed); }
  void add_stored(std::uint64_t rows) { stored_.fetch_add(rows, kRelaxed); }
  // The key of a slot, or kNoKey.
  Key key_of(std::uint32_t index) const { return owners_[index].load(kRelaxed); }
  void set_key(std::uint32_t index, Key key) { owners_[index].store(key, kRelaxed); }
  // Records a use of a slot's row. Any thread may do so, with an outdated index.
  void note_use(std::uint32_t index) {
    if (marks_[index].load(kRelaxed) == 0) marks_[index].store(1, kRelaxed);
  }
  // Returns whether the row was used since the last call.
  bool take_use(std::uint32_t index) {
    if (marks_[index].load(kRelaxed) == 0) return false;
    marks_[index].store(0, kRelaxed);
    return true;
  }

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  std::atomic<std::uint64_t>& reserved_of(int channel) const {
    return reserved_[static_cast<std::size_t>(channel)];
  }

  const std::size_t width_;
  const std::uint64_t capacity_;
  const Reserved header_memory_;
  const Reserved value_memory_;
  SlotHeader* const headers_;
  float* const values_;
  mutable SpinLock lock_;
  std::uint32_t used_ = 0;
  std::vector<std::uint32_t> free_;
  const std::uint64_t most_;
  std::atomic<std::uint64_t> stored_{0};
  // Null unless the table's memory is limited: by channel, and by slot.
  const std::unique_ptr<std::atomic<std::uint64_t>[]> reserved_;
  const std::unique_ptr<std::atomic<Key>[]> owners_;
  const std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
};

// The key words, and lock-free reads of rows. The object is small, so that a loop over keys can copy it into
// registers. Through a reference, every atomic access would make the compiler reload its fields.
class KeyWords {
  struct Nothing {
    void operator()() const {}
  };

 public:
  explicit KeyWords(void* lines)
      : words_(static_cast<std::atomic<std::uint32_t>*>(lines)),
        stamps_(static_cast<std::atomic<std::uint64_t>*>(lines)) {}
  // Number of key words that share a cache line with a stamp. A stamp takes the space of two words. Because
  // of the shared line, a lock-free read loads no further line to detect a concurrent writer.
  static constexpr std::size_t kOfLine = 14;
  static std::size_t bytes_for(std::uint64_t keys) { return (keys + kOfLine - 1) / kOfLine * kLine; }

  std::atomic<std::uint32_t>& word(Key key) const { return words_[key + kWordsOfStamp * (key / kOfLine)]; }
  std::uint32_t peek(Key key) const { return word(key).load(std::memory_order_relaxed); }
  // This function is always inlined, like all functions that only prefetch: compilers remove the call of a
  // function that has no effect and whose result is not used.
  [[gnu::always_inline]] void prefetch(Key key) const { prefetch_line(&word(key)); }

  // Reads a key's slot without its lock and without a write, if its word has all bits of `needed`.
  // copy(index) copies from the slot, and can see a row that is being written, or another key's row. Returns
  // the word if the copy is consistent. Returns 0 if the copy must be discarded: the word lacks a bit, or
  // other threads locked the line during every attempt. docs/concepts/protocol.md, section 6, explains why
  // this is correct and why the three loads have this order. between() is called between the first two loads,
  // so that tests can run a writer there.
  template <typename Copy, typename Between = Nothing>
  [[gnu::always_inline]] std::uint32_t read_if(Key key, std::uint32_t needed, Copy copy,
                                               Between between = {}) const {
    for (int reads = 0; reads < kMostReads; ++reads) {
      const std::uint64_t before = stamp_of(key).load(std::memory_order_acquire);
      between();
      const std::uint32_t seen = word(key).load(std::memory_order_acquire);
      if ((seen & (needed | word::kLock)) != needed) return 0;
      copy(seen & word::kIndexMask);
      fence(std::memory_order_acquire);
      if (stamp(key) == before) [[likely]]
        return seen;
    }
    return 0;
  }

  // Returns the key's stamp, if its word has all bits of `needed`. As long as the stamp does not change, the
  // row does not change. Makes the same loads as a read_if that copies nothing, and returns 0 in the cases in
  // which read_if would.
  template <typename Between = Nothing>
  std::uint64_t known_by(Key key, std::uint32_t needed, Between between = {}) const {
    const std::uint64_t before = stamp_of(key).load(std::memory_order_acquire);
    between();
    const std::uint32_t seen = word(key).load(std::memory_order_acquire);
    return (seen & (needed | word::kLock)) == needed && stamp(key) == before ? before : 0;
  }

  // The stamp that the key shares with its neighbours. It changes when any of these keys is locked.
  std::uint64_t stamp(Key key) const { return stamp_of(key).load(std::memory_order_relaxed); }
  // Stores a stamp that no line ever had. If two threads lock keys of one line, they need not wait for each
  // other: both stamps are new, so either of them may remain.
  void put_stamp(Key key) const {
    const std::uint64_t fresh = next_stamp();
#if defined(__x86_64__) || defined(__aarch64__)
    stamp_of(key).store(fresh, std::memory_order_release);
#else
    stamp_of(key).exchange(fresh, std::memory_order_acq_rel);
#endif
    fence(std::memory_order_release);
  }
  static void fence(std::memory_order order) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
// ThreadSanitizer does not support fences, and it does not check the accesses that these fences order.
#pragma GCC diagnostic ignored "-Wtsan"
#endif
    std::atomic_thread_fence(order);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  }

 private:
  static constexpr int kMostReads = 2;
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kWordsOfStamp = 2;

  std::atomic<std::uint64_t>& stamp_of(Key key) const {
    return stamps_[(key / kOfLine + 1) * (kLine / sizeof(std::uint64_t)) - 1];
  }
  static std::uint64_t next_stamp() {
    if (static_cast<std::uint32_t>(next_stamp_) == 0) [[unlikely]]
      next_stamp_ = first_of_new_stamps();
    return next_stamp_++;
  }
  static std::uint64_t first_of_new_stamps();

  std::atomic<std::uint32_t>* words_;
  std::atomic<std::uint64_t>* stamps_;  // in the same lines
  // The thread's next stamp. All stamps up to the next multiple of 2^32 are reserved for the thread.
  static constinit thread_local std::uint64_t next_stamp_ [[gnu::tls_model("initial-exec")]];
};

class Store {
 public:
  Store(Tables& tables, const Directory& directory, NodeId rank);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  Tables& tables() const { return tables_; }
  const Directory& directory() const { return directory_; }
  NodeId rank() const { return rank_; }
  Arena& arena(const Table& table) const { return *arenas_[table.arena()]; }

  const KeyWords& words() const { return words_; }
  std::uint32_t peek(Key key) const { return words_.peek(key); }
  [[gnu::always_inline]] void prefetch_word(Key key) const { words_.prefetch(key); }
  // Whether a key with this word has its home here and was never used. Whether another thread holds the lock
  // does not matter.
  bool untouched_here(Key key, std::uint32_t seen) const {
    return (seen & ~word::kLock) == 0 && directory_.home(key) == rank_;
  }

  // Whether a key with this word is owned here, and its row is in the table's file.
  bool is_stored(std::uint32_t seen) const { return (seen & ~word::kLock) == stored_word(); }
  std::uint32_t stored_word() const {
    return static_cast<std::uint32_t>(rank_) << word::kOwnerShift | word::kStoredCount;
  }

  // Number of this node's active intents for a key: the node has acted on them, and they have not ended. Only
  // the key's channel changes the count, so it needs no lock. The counts are stored outside of the slots, so
  // that the begin and end of an intent do not access the slot of a key that only this node uses.
  std::uint32_t intents(Key key) const { return intents_.get(key); }
  void set_intents(Key key, std::uint32_t count) { intents_.set(key, count); }
  // Fetches a key's word and intent count into the cache.
  [[gnu::always_inline]] void prefetch_intents(Key key) const {
    words_.prefetch(key);
    intents_.prefetch(key);
  }

  // Fetches the first `words` words of the slot in a key word.
  [[gnu::always_inline]] static void prefetch_value(Arena& slots, std::uint32_t seen, std::size_t words) {
    prefetch_floats(slots.value(seen & word::kIndexMask), words);
  }

  // Fetches header and value of the key's slot, if the key word, which was fetched earlier, has one.
  void prefetch_slot(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & word::kSlot) == 0) return;
    Arena& slots = arena(tables_.find(key, hint));
    prefetch_line(&slots.header(seen & word::kIndexMask));
    prefetch_value(slots, seen, slots.width());
  }

  // Returns the header of a readable key of which other nodes also have a copy, for use without the key's
  // lock. Returns nullptr for any other key.
  const SlotHeader* shared_header(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & (word::kSlot | word::kReadable | word::kAlone)) != (word::kSlot | word::kReadable))
      return nullptr;
    return &arena(tables_.find(key, hint)).header(seen & word::kIndexMask);
  }

  // Fetches the header of a key that other nodes hold or own.
  void prefetch_if_shared(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & word::kSlot) == 0 || is_owned_alone(seen)) return;
    prefetch_line(&arena(tables_.find(key, hint)).header(seen & word::kIndexMask));
  }

  // Locks the key if its word has all bits of `needed`. Returns the word, or 0 if a bit is missing.
  std::uint32_t lock_if(Key key, std::uint32_t needed) {
    std::atomic<std::uint32_t>& word = words_.word(key);
    std::uint32_t seen = word.load(std::memory_order_relaxed);
    for (int spins = 0;;) {
      if ((seen & needed) != needed) return 0;
      if ((seen & word::kLock) == 0) {
        if (word.compare_exchange_weak(seen, seen | word::kLock, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
          words_.put_stamp(key);
          return seen;
        }
      } else {
        pause(spins++);
        seen = word.load(std::memory_order_relaxed);
      }
    }
  }
  std::uint32_t lock(Key key) { return lock_if(key, 0); }
  void unlock(Key key, std::uint32_t word) { words_.word(key).store(word, std::memory_order_release); }

  // Bytes of resident memory for keys, headers, values and state.
  std::uint64_t resident_bytes() const;
  std::uint64_t slots_in_use() const;
  std::uint64_t rows_stored() const;

 private:
  std::size_t bytes_of_words() const { return KeyWords::bytes_for(tables_.num_keys()); }

  Tables& tables_;
  const Directory& directory_;
  const NodeId rank_;
  const Reserved lines_;
  const KeyWords words_;
  ByteCounts intents_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

// Holds the lock of one key and gives access to its state. The destructor unlocks the key by writing a key
// word that is computed from the state.
class LockedKey {
 public:
  LockedKey(Store& store, Key key) : LockedKey(store, key, store.lock(key)) {}
  // `hint`: as for Tables::find.
  LockedKey(Store& store, Key key, const Table*& hint)
      : LockedKey(store, key, store.tables().find(key, hint), store.lock(key)) {}
  // Takes over the lock of a key that the thread already holds. `word` is the result of locking it.
  LockedKey(Store& store, Key key, std::uint32_t word)
      : LockedKey(store, key, store.tables().find(key), word) {}
  ~LockedKey() { store_.unlock(key_, final_word()); }
  LockedKey(const LockedKey&) = delete;
  LockedKey& operator=(const LockedKey&) = delete;

  Key key() const { return key_; }
  const Table& table() const { return table_; }
  std::size_t length() const { return table_.length(); }
  std::size_t width() const { return table_.width(); }

  bool has_slot() const { return header_ != nullptr; }
  State state() const {
    if (header_ != nullptr) return header_->state;
    return store_.is_stored(word_) ? State::kStored : State::kNone;
  }
  SlotHeader& header() { return *header_; }
  // Value and optimizer state as floats. The row of a packed table is unpacked into thread-local memory for
  // one row; this is enough because a thread holds one lock at a time. Writes to this memory take effect with
  // keep().
  float* value() { return value_ != nullptr ? value_ : unpack(); }
  // Whether the row is unpacked, so that its floats may have been changed.
  bool is_unpacked() const { return value_ != nullptr && value_ != slot_; }
  // Rounds the unpacked row, with random bits from the seed, and stores it.
  void keep(std::uint64_t seed) { table_.pack(value_, seed, slot_); }
  // Discards the unpacked row and its changes.
  void discard() {
    if (is_unpacked()) value_ = nullptr;
  }
  // The first `floats` floats of the row in its stored format. `floats` is the row's length or its width.
  std::span<const float> stored(std::size_t floats) const { return {slot_, table_.stored_words(floats)}; }
  // Replaces the stored row.
  void take(std::span<const float> stored);

  // The owner in the location entry of a key that has no slot on this node.
  NodeId location() const;
  RelocationCount location_count() const;
  void set_location(NodeId owner, RelocationCount rc);

  // Allocates a slot in the given state and keeps the location entry. Does not write the value.
  void allocate(State state);
  // Makes a key owned with its initial value, at its first use on the home node. Does nothing if the key was
  // used before or has another home node.
  void materialize();
  bool untouched_here() const;
  // Gives an owned row the initial content of another identity, as a new version.
  void restart(std::uint64_t identity);
  // Replaces the slot by a location entry.
  void release(NodeId owner, RelocationCount rc);
  // Marks an owned row as stored in the table's file, and frees its slot if it has one.
  void mark_stored();
  // Frees the slot of a row with its initial content, as if the key had never been used. Only for keys that
  // never left their home node.
  void forget();

  Store& store() const { return store_; }

 private:
  LockedKey(Store& store, Key key, const Table& table, std::uint32_t word);
  void free_slot();
  void attach(std::uint32_t index);
  float* unpack();
  std::uint32_t final_word() const;

  Store& store_;
  const Key key_;
  const Table& table_;
  std::uint32_t word_;
  std::uint32_t index_ = 0;
  SlotHeader* header_ = nullptr;
  float* slot_ = nullptr;
  float* value_ = nullptr;  // for a packed table, null until the row is unpacked
};

}  // namespace adaps
