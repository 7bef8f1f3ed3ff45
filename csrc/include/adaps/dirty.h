// Keys with something to send in the next round, and the deltas of replicas.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "adaps/stable_pool.h"
#include "adaps/types.h"

namespace adaps {

// Changes of a replica that its owner has not yet: value and optimizer state, width floats.
struct Delta {
  std::unique_ptr<float[]> floats;
  std::uint64_t epoch = 0;
  explicit operator bool() const { return floats != nullptr; }
};

// Exists only while a replica is dirty.
struct Unapplied {
  Delta unsent;
  Delta in_flight;
};

struct Holder {
  NodeId node = 0;
  Version sent = 0;  // the version that it has, or will have when its link is drained
};

// Of an owner; exists only while there is one.
struct Holders {
  std::vector<Holder> list;

  Holder* find(NodeId node) {
    for (Holder& holder : list) {
      if (holder.node == node) return &holder;
    }
    return nullptr;
  }
};

// One per channel. Entries belong to a key and are touched under its lock only.
struct SideTables {
  StablePool<Unapplied> unapplied;
  StablePool<Holders> holders;
};

class DirtyList {
 public:
  // True if the list was empty.
  bool add(Key key) {
    const std::lock_guard guard(mutex_);
    keys_.push_back(key);
    return keys_.size() == 1;
  }
  // Exchanges the list with an empty one.
  void take(std::vector<Key>& out) {
    out.clear();
    const std::lock_guard guard(mutex_);
    keys_.swap(out);
  }
  bool empty() const {
    const std::lock_guard guard(mutex_);
    return keys_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Key> keys_;
};

}  // namespace adaps
