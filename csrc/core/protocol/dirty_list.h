// Keys with changes to send in the next round, and the changes of replicas.
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

// A change of a replica's row that its owner has not received yet, in the form that UpdateRule defines. If
// the change comes from a single gradient, `floats` also contains the gradient, in its message format. A
// rounding error that a lossy wire left of earlier changes is called a rest, and has the kind kNone. A rest
// waits for the next change, and no wait_sync waits for the rest.
struct Delta {
  BlockPool::Block floats;
  std::uint64_t epoch = 0;
  Change change = Change::kNone;
  std::uint16_t hyperparameters = 0;  // fingerprint of the gradient's hyperparameters
  explicit operator bool() const { return floats != nullptr; }
  bool is_rest() const { return floats != nullptr && change == Change::kNone; }
  void set_base(std::size_t change_length, Version base) const {
    GradientHeader applied;
    std::memcpy(&applied, floats.get() + change_length, sizeof(applied));
    applied.base = base;
    std::memcpy(floats.get() + change_length, &applied, sizeof(applied));
  }
};

// Whether the gradient of a row takes fewer floats than another message.
inline bool is_shorter_as_gradient(const Table& table, std::size_t otherwise) {
  return kGradientHeader + table.length() < otherwise;
}

// Maximum number of floats of a row's change, including a gradient.
inline std::size_t floats_of_change(const Table& table) {
  // On a lossy wire, the encoding of a very short row can be longer than the row itself.
  const bool follows = table.is_lossy() || is_shorter_as_gradient(table, table.width());
  return table.change_length() + (follows ? kGradientHeader + table.length() : 0);
}

// Exists only while a replica is dirty or has a rest.
struct Unapplied {
  Delta unsent;
  Delta in_flight;
};

// A refresh that must wait, either until the network has accepted the previous refresh of this key to this
// holder, or until the next frame to the holder leaves. At most one refresh per key and holder waits,
// regardless of the number of writes.
struct HeldBack {
  Key key;
  std::uint32_t frame;  // the frame with the previous refresh
};

// Data of keys that are stored outside the keys' slots, with one object per partition. Each entry belongs to
// one key, and the key's header contains the entry's index. An entry is accessed only under its key's lock.
struct KeyTables {
  explicit KeyTables(const Tables& tables) {
    for (std::size_t i = 0; i < tables.size(); ++i)
      changes.push_back(std::make_unique<BlockPool>(floats_of_change(tables[i])));
  }

  // by table; declared first, because the following members own blocks of these pools
  std::vector<std::unique_ptr<BlockPool>> changes;
  StablePool<Unapplied> unapplied;
  StablePool<Holder> holders;

  // Fetches the entry of a key after its header was prefetched. The key's lock is not held, so the header is
  // only a hint.
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

  // Prefetches the changes of a copy after their entry was fetched: the changes that a DELTA sends, or the
  // changes that are added to the value of a REFRESH.
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
  // Whether prefetching may read headers and entries that other threads write. This is harmless, but
  // ThreadSanitizer reports it.
  static constexpr bool kLooksWithoutLock = ADAPS_THREAD_SANITIZER == 0;
};

class DirtyList {
 public:
  // Returns whether the list was empty.
  bool add(Key key) {
    const std::lock_guard guard(lock_);
    keys_.push_back(key);
    return keys_.size() == 1;
  }
  // Moves the list to `out` and leaves it empty.
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
