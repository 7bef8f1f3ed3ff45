// Keys with something to send in the next round, and the deltas of replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "common/prefetch.h"
#include "common/spin_lock.h"
#include "common/thread_sanitizer.h"
#include "common/types.h"
#include "protocol/holders.h"
#include "protocol/message.h"
#include "store/block_pool.h"
#include "store/stable_pool.h"
#include "store/store.h"

namespace adaps {

// A change of a replica's row that its owner has not received yet, in the form that UpdateRule defines. If a
// single gradient made it, that gradient follows in `floats`, as a message carries it. What a lossy wire
// rounded off earlier changes is a rest, of kind kNone: it waits for the next change, and no wait_sync waits
// for it.
struct Delta {
  BlockPool::Block floats;
  std::uint64_t epoch = 0;
  Change change = Change::kNone;
  std::uint16_t hyperparameters = 0;  // of that gradient: their fingerprint
  explicit operator bool() const { return floats != nullptr; }
  bool is_rest() const { return floats != nullptr && change == Change::kNone; }
  void set_base(std::size_t change_length, Version base) const {
    GradientHeader applied;
    std::memcpy(&applied, floats.get() + change_length, sizeof(applied));
    applied.base = base;
    std::memcpy(floats.get() + change_length, &applied, sizeof(applied));
  }
};

// Whether a single gradient of a row can be sent in fewer floats than what is sent otherwise.
inline bool is_shorter_as_gradient(const Table& table, std::size_t otherwise) {
  return kGradientHeader + table.length() < otherwise;
}

// How many floats a change of a row takes at the most, with the gradient that may follow it.
inline std::size_t floats_of_change(const Table& table) {
  // What a lossy wire has of a very short row is longer than the row.
  const bool follows = table.is_lossy() || is_shorter_as_gradient(table, table.width());
  return table.change_length() + (follows ? kGradientHeader + table.length() : 0);
}

// Exists only while a replica is dirty, or has a rest.
struct Unapplied {
  Delta unsent;
  Delta in_flight;
};

// A refresh that waits for the one before it of the same key and holder, or for the next frame to it, so that
// what waits to be sent is bounded by the keys that are held, however often they are written.
struct HeldBack {
  Key key;
  std::uint32_t frame;  // the one that carries the refresh before
};

// What keys need beyond their slots, one per partition. An entry belongs to one key, whose header holds its
// index; it is read and written only under that key's lock.
struct KeyTables {
  explicit KeyTables(const Tables& tables) {
    for (std::size_t i = 0; i < tables.size(); ++i)
      changes.push_back(std::make_unique<BlockPool>(floats_of_change(tables[i])));
  }

  std::vector<std::unique_ptr<BlockPool>> changes;  // by table; before what has blocks of them
  StablePool<Unapplied> unapplied;
  StablePool<Holder> holders;

  // Fetches the entry of a key whose header was asked for earlier. Nobody holds its lock, so what the header
  // says is a hint.
  void prefetch(Store& store, Key key, const Table*& hint) const {
    if constexpr (!kLooksWithoutLock) return;
    const SlotHeader* header = store.shared_header(key, hint);
    if (header == nullptr) return;
    const std::uint32_t entry = header->entry_hint();
    if (is_owned(store.peek(key))) {
      holders.prefetch(entry);
    } else {
      unapplied.prefetch(entry);
    }
  }

  // And then, of a copy, its changes: those that a DELTA takes along, or those that are added to what a
  // REFRESH brings.
  enum class Changes : std::uint8_t { kToSend, kToAdd };
  void prefetch_changes(Store& store, Key key, const Table*& hint, Changes which) const {
    if constexpr (!kLooksWithoutLock) return;
    if (!is_replica(store.peek(key))) return;
    const SlotHeader* header = store.shared_header(key, hint);
    const Unapplied* found = header == nullptr ? nullptr : unapplied.find(header->entry_hint());
    if (found == nullptr) return;
    const std::size_t change = hint->change_length();
    if (const float* unsent = found->unsent.floats.get()) {
      if (which == Changes::kToSend && found->unsent.change == Change::kGradient) {
        prefetch_floats(unsent + change, kGradientHeader + hint->length());
      } else {
        prefetch_floats(unsent, change);
      }
    }
    if (which == Changes::kToSend) return;
    if (const float* in_flight = found->in_flight.floats.get()) prefetch_floats(in_flight, change);
  }

 private:
  // Others may write what is looked at to know what to fetch. That does no harm, but ThreadSanitizer reports
  // it.
  static constexpr bool kLooksWithoutLock = ADAPS_THREAD_SANITIZER == 0;
};

class DirtyList {
 public:
  // True if the list was empty.
  bool add(Key key) {
    const std::lock_guard guard(lock_);
    keys_.push_back(key);
    return keys_.size() == 1;
  }
  // Exchanges the list with an empty one.
  void take(std::vector<Key>& out) {
    out.clear();
    const std::lock_guard guard(lock_);
    keys_.swap(out);
  }
  bool empty() const {
    const std::lock_guard guard(lock_);
    return keys_.empty();
  }

 private:
  mutable SpinLock lock_;
  std::vector<Key> keys_;
};

}  // namespace adaps
