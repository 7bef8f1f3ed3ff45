// The store of a node: a key word and a count of intents for every key, slots for the keys that it holds.
//
// A key word is lock and header in one (docs/concepts/protocol.md, section 6). With a slot:
//   lock:1 | slot:1 | readable:1 | set:1 | alone:1 | push or uncounted:1 | index:26
// without one, a location entry:
//   lock:1 | 0 | owner:12 | relocation count:18
// The word 0 means "owned here and never touched" at the home node, and "ask the home node" elsewhere. So no
// node needs any set-up work for a table, and keys that were never touched take no memory for values.
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
#include "store/directory.h"
#include "store/reserved.h"
#include "store/table.h"

namespace adaps {

namespace word {
inline constexpr std::uint32_t kLock = 1U << 31;
inline constexpr std::uint32_t kSlot = 1U << 30;
inline constexpr std::uint32_t kReadable = 1U << 29;
inline constexpr std::uint32_t kSet = 1U << 28;    // an owner's
inline constexpr std::uint32_t kAlone = 1U << 27;  // of an owner that nobody else holds a copy of
// The same bit twice: without kAlone, whether a push can be served; with it, whether the value was written
// and its version not raised yet.
inline constexpr std::uint32_t kPush = 1U << 26;
inline constexpr std::uint32_t kUncounted = kPush;
inline constexpr std::uint32_t kIndexMask = kPush - 1;
inline constexpr int kOwnerShift = 18;
}  // namespace word

// What a key word says without a lock: of a key's channel, on that channel's thread, it is true until that
// thread changes it. Others may find it outdated.
// Only an owner's key may be set without a message.
inline bool is_owned(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kSet)) == (word::kSlot | word::kSet);
}
inline bool is_owned_alone(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kAlone)) == (word::kSlot | word::kAlone);
}
// Of a copy that pushes are served by.
inline bool is_replica(std::uint32_t seen) {
  return (seen & (word::kSlot | word::kSet | word::kAlone | word::kPush)) == (word::kSlot | word::kPush);
}
inline bool is_owned_or_copied(std::uint32_t seen) {
  return (seen & word::kSlot) != 0 && (seen & (word::kAlone | word::kPush)) != 0;
}
// Whether the header's version is too old by what was written since somebody last looked at it.
inline bool is_uncounted(std::uint32_t seen) {
  return is_owned_alone(seen) && (seen & word::kUncounted) != 0;
}

enum class State : std::uint8_t { kNone, kPending, kReplica, kDropping, kOwner };

// What is known of a key with a slot. 16 bytes; with key word and count a slot costs 24 bytes beyond value
// and optimizer state. Two of the fields mean something else in each state, so they are behind accessors that
// say in which state they may be asked.
class SlotHeader {
 public:
  RelocationCount rc = 0;  // owner, replica: of the owner's tenure; otherwise: of the location entry

  // Owner: of the value. Replica, dropping: of the owner's value that the copy is built on.
  Version version() const {
    ADAPS_ASSERT(has_value());
    return version_;
  }
  void set_version(Version version) {
    ADAPS_ASSERT(has_value());
    version_ = version;
  }
  // The owner's value has changed.
  void advance_version() {
    ADAPS_ASSERT(state == State::kOwner);
    version_ = next_version(version_);
  }
  // Pending: when INTENT was sent, in microseconds modulo 2^32; for statistics.
  std::uint32_t asked_at() const {
    ADAPS_ASSERT(state == State::kPending);
    return version_;
  }
  void set_asked_at(std::uint32_t micros) {
    ADAPS_ASSERT(state == State::kPending);
    version_ = micros;
  }

  // Owner: whether others hold a replica, and the index of the first of them, 0 for none.
  bool has_holders() const {
    ADAPS_ASSERT(state == State::kOwner);
    return entry_ != 0;
  }
  std::uint32_t& first_holder() {
    ADAPS_ASSERT(state == State::kOwner);
    return entry_;
  }
  // Replica, dropping: whether there are changes that its owner has not got, and their index, 0 for none.
  bool has_changes() const {
    ADAPS_ASSERT(is_copy());
    return entry_ != 0;
  }
  std::uint32_t& changes() {
    ADAPS_ASSERT(is_copy());
    return entry_;
  }

  // Without the key's lock: which of them there may be, to fetch it ahead of its use.
  std::uint32_t entry_hint() const { return entry_; }

  NodeId location = 0;  // replica, dropping: the owner; pending: location entry
  State state = State::kNone;
  std::uint8_t flags = 0;

 private:
  bool is_copy() const { return state == State::kReplica || state == State::kDropping; }
  bool has_value() const { return state == State::kOwner || is_copy(); }

  std::uint32_t version_ = 0;
  std::uint32_t entry_ = 0;  // in a table of the key's partition
};
static_assert(sizeof(SlotHeader) == 16);
inline constexpr std::uint8_t kOnDirtyList = 1;  // the key is on its channel's dirty list
inline constexpr std::uint8_t kUnreadable = 2;   // dropping: a newer answer was seen
inline constexpr std::uint8_t kKeptBack = 4;     // its change is on the list of those that wait for room

// Slots of one width, in words of the size of a float. Memory is reserved for every row but taken only for
// slots in use; freed slots are used again.
class Arena {
 public:
  Arena(std::size_t width, std::uint64_t rows);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::uint32_t allocate();
  void release(std::uint32_t index);

  SlotHeader& header(std::uint32_t index) { return headers_[index]; }
  float* value(std::uint32_t index) { return values_ + static_cast<std::size_t>(index) * width_; }
  std::size_t width() const { return width_; }
  std::uint64_t in_use() const;
  // Most slots that were ever in use at once: what is resident.
  std::uint64_t high_water() const;

 private:
  const std::size_t width_;
  const std::uint64_t capacity_;
  const Reserved header_memory_;
  const Reserved value_memory_;
  SlotHeader* const headers_;
  float* const values_;
  mutable SpinLock lock_;
  std::uint32_t used_ = 0;
  std::vector<std::uint32_t> free_;
};

// The key words, and how a row is read without its lock. Small enough to be copied, so that a loop over keys
// has it in registers, and no atomic access makes the compiler read it again.
class KeyWords {
  struct Nothing {
    void operator()() const {}
  };

 public:
  explicit KeyWords(void* lines)
      : words_(static_cast<std::atomic<std::uint32_t>*>(lines)),
        stamps_(static_cast<std::atomic<std::uint64_t>*>(lines)) {}
  // Words of so many keys share a cache line with a stamp, which takes the place of two words: whoever reads
  // a row needs no further line to see that nobody came in between.
  static constexpr std::size_t kOfLine = 14;
  static std::size_t bytes_for(std::uint64_t keys) { return (keys + kOfLine - 1) / kOfLine * kLine; }

  std::atomic<std::uint32_t>& word(Key key) const { return words_[key + kWordsOfStamp * (key / kOfLine)]; }
  std::uint32_t peek(Key key) const { return word(key).load(std::memory_order_relaxed); }
  // Always inlined, as are others of which a prefetch is all that they do: a call whose result nobody wants
  // the compiler leaves out.
  [[gnu::always_inline]] void prefetch(Key key) const { prefetch_line(&word(key)); }

  // Reads a key's slot without its lock, and without a write, if its word has all bits of `needed`:
  // copy(index) copies what it wants of that slot, and may see a row that is being written, or another key's.
  // Gives the word if what it has copied is whole; 0 if it means nothing, as the word lacks a bit or because
  // somebody comes in between again and again. Why that is right, and the order of the three looks, is in
  // docs/concepts/protocol.md, section 6.
  // between() is called between the first two looks; tests let a writer in there.
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

  // By what a key's row is known until somebody locks it: its stamp, if its word has all bits of `needed`.
  // The looks are those of a read that copies nothing; 0 if one would give 0.
  template <typename Between = Nothing>
  std::uint64_t known_by(Key key, std::uint32_t needed, Between between = {}) const {
    const std::uint64_t before = stamp_of(key).load(std::memory_order_acquire);
    between();
    const std::uint32_t seen = word(key).load(std::memory_order_acquire);
    return (seen & (needed | word::kLock)) == needed && stamp(key) == before ? before : 0;
  }

  // Of the key and its neighbours; whoever locks one of them changes it.
  std::uint64_t stamp(Key key) const { return stamp_of(key).load(std::memory_order_relaxed); }
  // Puts a stamp that no line ever had. Two that lock keys of one line do not wait for each other: both
  // stamps are new, whichever is there in the end.
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
#pragma GCC diagnostic ignored "-Wtsan"  // it knows no fences; what these are for, it does not look at either
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
  // Of the thread: those up to the next multiple of 2^32 are its own.
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
  // Whether a key with this word is at home here and was never used.
  bool untouched_here(Key key, std::uint32_t seen) const {
    return seen == 0 && directory_.home(key) == rank_;
  }

  // Signals of this node's workers for a key that are acted on and have not ended. Only the key's channel
  // counts them, so they need no lock, and are beside the slots: a key that only this node uses is not
  // touched when an intent begins or ends.
  std::uint32_t intents(Key key) const { return intents_[key].load(std::memory_order_relaxed); }
  void set_intents(Key key, std::uint32_t count) { intents_[key].store(count, std::memory_order_relaxed); }
  // Word and count, to be looked at.
  [[gnu::always_inline]] void prefetch_intents(Key key) const {
    words_.prefetch(key);
    prefetch_line(&intents_[key]);
  }

  // Prefetches so many words of the slot that a key word names.
  [[gnu::always_inline]] static void prefetch_value(Arena& slots, std::uint32_t seen, std::size_t words) {
    prefetch_floats(slots.value(seen & word::kIndexMask), words);
  }

  // Header and value of the key's slot, if its word (asked for earlier) says that it has one.
  void prefetch_slot(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & word::kSlot) == 0) return;
    Arena& slots = arena(tables_.find(key, hint));
    prefetch_line(&slots.header(seen & word::kIndexMask));
    prefetch_value(slots, seen, slots.width());
  }

  // The header of a key that has one, if other nodes hold the key, too; for a look without its lock.
  const SlotHeader* shared_header(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & (word::kSlot | word::kReadable | word::kAlone)) != (word::kSlot | word::kReadable))
      return nullptr;
    return &arena(tables_.find(key, hint)).header(seen & word::kIndexMask);
  }

  // The header of a key that other nodes hold, too, or that they own.
  void prefetch_if_shared(Key key, const Table*& hint) {
    const std::uint32_t seen = peek(key);
    if ((seen & word::kSlot) == 0 || is_owned_alone(seen)) return;
    prefetch_line(&arena(tables_.find(key, hint)).header(seen & word::kIndexMask));
  }

  // Locks the key if its word has all bits of `needed`; returns the word, or 0 if it has not.
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

  // Bytes that are resident for keys, headers, values and state.
  std::uint64_t resident_bytes() const;
  std::uint64_t slots_in_use() const;

 private:
  std::size_t bytes_of_words() const { return KeyWords::bytes_for(tables_.num_keys()); }
  std::size_t bytes_of_intents() const { return tables_.num_keys() * sizeof(std::uint32_t); }

  Tables& tables_;
  const Directory& directory_;
  const NodeId rank_;
  const Reserved lines_;
  const Reserved counts_;
  const KeyWords words_;
  std::atomic<std::uint32_t>* const intents_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

// Holds the lock of one key and gives access to its state. The destructor unlocks it by writing a key word
// whose bits follow from the state.
class LockedKey {
 public:
  LockedKey(Store& store, Key key) : LockedKey(store, key, store.lock(key)) {}
  // `hint`: as for Tables::find.
  LockedKey(Store& store, Key key, const Table*& hint)
      : LockedKey(store, key, store.tables().find(key, hint), store.lock(key)) {}
  // Takes over a lock that is held; `word` is what taking it returned.
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
  State state() const { return header_ != nullptr ? header_->state : State::kNone; }
  SlotHeader& header() { return *header_; }
  // Value and optimizer state, as floats. Those of a packed table are unpacked for it, into memory that the
  // thread has for one row, as it holds one lock: what is written there counts once it is kept.
  float* value() { return value_ != nullptr ? value_ : unpack(); }
  // Whether they are, so that they may have been written.
  bool is_unpacked() const { return value_ != nullptr && value_ != slot_; }
  // Rounds what is unpacked, by the seed, and stores it.
  void keep(std::uint64_t seed) { table_.pack(value_, seed, slot_); }
  // What is unpacked counts no more.
  void discard() {
    if (is_unpacked()) value_ = nullptr;
  }
  // So many first floats of the row as they are stored: its length or its width.
  std::span<const float> stored(std::size_t floats) const { return {slot_, table_.stored_words(floats)}; }
  // The row becomes what is stored elsewhere.
  void take(std::span<const float> stored);

  // The location entry of a key that is not held here.
  NodeId location() const;
  RelocationCount location_count() const;
  void set_location(NodeId owner, RelocationCount rc);

  // The key gets a slot in the given state, keeping its location entry; the value is not written.
  void allocate(State state);
  // The home node's first touch of a key: the initial value, owned. Does nothing with a key that was touched
  // before, or whose home is another node.
  void materialize();
  bool untouched_here() const;
  // Back to a location entry.
  void release(NodeId owner, RelocationCount rc);

  Store& store() const { return store_; }

 private:
  LockedKey(Store& store, Key key, const Table& table, std::uint32_t word);
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
  float* value_ = nullptr;  // of a packed table: only once it is unpacked
};

}  // namespace adaps
