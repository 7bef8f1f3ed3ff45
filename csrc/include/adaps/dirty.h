// Keys with something to send in the next round, and the deltas of replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "adaps/message.h"
#include "adaps/stable_pool.h"
#include "adaps/types.h"

namespace adaps {

// Changes of a replica that its owner has not yet: of value and optimizer state, as UpdateRule has them. If
// they come from one gradient, it lies behind them as a message carries it.
struct Delta {
  std::unique_ptr<float[]> floats;
  std::uint64_t epoch = 0;
  Change change = Change::kNone;
  std::uint16_t hyperparameters = 0;  // of that gradient: their fingerprint
  explicit operator bool() const { return floats != nullptr; }
  void set_base(std::size_t change_length, Version base) const {
    GradientHeader applied;
    std::memcpy(&applied, floats.get() + change_length, sizeof(applied));
    applied.base = base;
    std::memcpy(floats.get() + change_length, &applied, sizeof(applied));
  }
};

// Exists only while a replica is dirty.
struct Unapplied {
  Delta unsent;
  Delta in_flight;
};

// A node that has a replica, chained to the next one of the same key.
struct Holder {
  Version sent = 0;  // the version that it has, or will have when its link is drained
  std::uint32_t next = 0;
  std::uint32_t frame = 0;  // of its link, that its last refresh went with
  NodeId node = 0;
  bool held_back = false;  // the next refresh waits until the network has taken that frame
};
static_assert(sizeof(Holder) == 16);

// One per channel. Entries belong to a key and are touched under its lock only.
struct SideTables {
  StablePool<Unapplied> unapplied;
  StablePool<Holder> holders;
};

// The holders of an owner's key: a chain whose beginning the key's header names.
class Holders {
 public:
  Holders(SideTables& sides, std::uint32_t& first) : pool_(sides.holders), first_(first) {}

  bool empty() const { return first_ == 0; }
  // The only one, if there is just one.
  Holder* only() const {
    if (empty()) return nullptr;
    Holder& holder = pool_.at(first_);
    return holder.next == 0 ? &holder : nullptr;
  }
  Holder* find(NodeId node) const {
    for (std::uint32_t i = first_; i != 0; i = pool_.at(i).next) {
      if (pool_.at(i).node == node) return &pool_.at(i);
    }
    return nullptr;
  }
  bool any_behind(Version version) const {
    for (std::uint32_t i = first_; i != 0; i = pool_.at(i).next) {
      if (pool_.at(i).sent != version) return true;
    }
    return false;
  }
  template <typename Function>
  void for_each(Function function) const {
    for (std::uint32_t i = first_; i != 0; i = pool_.at(i).next) function(pool_.at(i));
  }
  void add(NodeId node, Version sent) {
    const std::uint32_t name = pool_.allocate();
    pool_.at(name) = {.sent = sent, .next = first_, .node = node};
    first_ = name;
  }
  void remove(NodeId node) {
    for (std::uint32_t* link = &first_; *link != 0; link = &pool_.at(*link).next) {
      const std::uint32_t name = *link;
      if (pool_.at(name).node != node) continue;
      *link = pool_.at(name).next;
      pool_.release(name);
      return;
    }
  }

 private:
  StablePool<Holder>& pool_;
  std::uint32_t& first_;
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
