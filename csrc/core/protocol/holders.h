// The nodes that have a replica of a key, as recorded by the key's owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/types.h"
#include "store/stable_pool.h"
#include "store/store.h"

namespace adaps {

// Bits of a frame's number that a holder stores.
inline constexpr std::uint32_t kKnownOfFrame = (std::uint32_t{1} << 31) - 1;

// A holder and its position in the binary tree of a key's holders. The branches follow the bits of the node's
// number, with the lowest bit at the root. Therefore a search takes at most thirteen steps, and about the
// logarithm of the number of holders on average. The tree is never rearranged.
struct Holder {
  Version sent = 0;                 // version that the holder has when all sent messages have arrived
  std::uint32_t frame : 31 = 0;     // the number of the frame that carried its last refresh
  std::uint32_t held_back : 1 = 0;  // a newer refresh is held back, see Refreshes
  std::uint64_t even : 26 = 0;      // name of the child whose next bit is 0
  std::uint64_t odd : 26 = 0;       // name of the child whose next bit is 1
  std::uint64_t node : 12 = 0;
};
static_assert(sizeof(Holder) == 16);
static_assert(kMaxNodes <= std::size_t{1} << 12);

// The holders of one key. `first` is the name of the root, 0 if there are none.
class Holders {
 public:
  Holders(StablePool<Holder>& pool, SlotHeader& owner) : pool_(pool), owner_(owner) {}

  bool empty() const { return !owner_.has_holders(); }
  // Returns the holder if there is exactly one, otherwise nullptr.
  Holder* only() const {
    if (empty()) return nullptr;
    Holder& holder = pool_.at(first());
    return holder.even == 0 && holder.odd == 0 ? &holder : nullptr;
  }
  Holder* find(NodeId node) const {
    std::uint32_t at = first();
    for (NodeId bits = node; at != 0; bits >>= 1) {
      Holder& holder = pool_.at(at);
      if (holder.node == node) return &holder;
      at = next(holder, bits);
    }
    return nullptr;
  }
  // Calls function(holder) until it returns false. Returns whether it never did.
  template <typename Function>
  bool all(Function function) const {
    std::array<std::uint32_t, kDeepest + 1> waiting;  // at most one more entry than levels
    std::size_t count = 0;
    if (!empty()) waiting[count++] = first();
    while (count > 0) {
      Holder& holder = pool_.at(waiting[--count]);
      if (holder.odd != 0) waiting[count++] = static_cast<std::uint32_t>(holder.odd);
      if (holder.even != 0) waiting[count++] = static_cast<std::uint32_t>(holder.even);
      if (!function(holder)) return false;
    }
    return true;
  }
  template <typename Function>
  void for_each(Function function) const {
    all([&](Holder& holder) {
      function(holder);
      return true;
    });
  }
  bool any_behind(Version version) const {
    return !all([&](const Holder& holder) { return holder.sent == version; });
  }

  // Adds a node that is not a holder yet.
  void add(NodeId node, Version sent) {
    const std::uint32_t added = pool_.allocate();
    pool_.at(added) = {.sent = sent, .node = node};
    if (empty()) {
      owner_.set_first_holder(added);
      return;
    }
    Holder* above = &pool_.at(first());
    NodeId bits = node;
    for (; next(*above, bits) != 0; bits >>= 1) above = &pool_.at(next(*above, bits));
    set_next(*above, bits, added);
  }
  // Removes a holder. Any leaf of its subtree can take its position.
  void remove(NodeId node) {
    Holder* above = nullptr;
    NodeId bits = node;  // bits of the branch from `above`
    std::uint32_t at = first();
    for (NodeId below = node; at != 0 && pool_.at(at).node != node; below >>= 1) {
      above = &pool_.at(at);
      bits = below;
      at = next(*above, below);
    }
    if (at == 0) return;
    Holder& gone = pool_.at(at);
    while (true) {
      const Holder& leaf = pool_.at(at);
      const bool is_odd = leaf.even == 0;
      const auto below = static_cast<std::uint32_t>(is_odd ? leaf.odd : leaf.even);
      if (below == 0) break;
      above = &pool_.at(at);
      bits = is_odd ? 1 : 0;
      at = below;
    }
    const Holder& leaf = pool_.at(at);
    gone.sent = leaf.sent;
    gone.frame = leaf.frame;
    gone.held_back = leaf.held_back;
    gone.node = leaf.node;
    if (above == nullptr) {
      owner_.set_first_holder(0);
    } else {
      set_next(*above, bits, 0);
    }
    pool_.release(at);
  }

 private:
  static constexpr std::size_t kDeepest = 13;

  std::uint32_t first() const { return owner_.first_holder(); }
  static std::uint32_t next(const Holder& holder, NodeId bits) {
    return static_cast<std::uint32_t>((bits & 1) != 0 ? holder.odd : holder.even);
  }
  static void set_next(Holder& holder, NodeId bits, std::uint32_t name) {
    if ((bits & 1) != 0) {
      holder.odd = name;
    } else {
      holder.even = name;
    }
  }

  StablePool<Holder>& pool_;
  SlotHeader& owner_;
};

}  // namespace adaps
