// A set of the nodes of a cluster.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types.h"

namespace adaps {

// One bit per node. Even in the largest cluster, finding the members of a small set takes negligible time.
class NodeSet {
 public:
  explicit NodeSet(std::size_t nodes) : words_((nodes + kBits - 1) / kBits) {}

  void insert(NodeId node) { words_[node / kBits] |= bit(node); }
  void erase(NodeId node) { words_[node / kBits] &= ~bit(node); }
  bool contains(NodeId node) const { return (words_[node / kBits] & bit(node)) != 0; }
  bool empty() const {
    return std::all_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word == 0; });
  }

  // Calls function(node) in ascending order. The function may insert and erase nodes. The iteration only
  // notices changes in later words of the set.
  template <typename Function>
  void for_each(Function function) const {
    for (std::size_t i = 0; i < words_.size(); ++i) visit(i, words_[i], function);
  }
  // Calls function(node) for the nodes in both sets, in ascending order.
  template <typename Function>
  void for_each_in(const NodeSet& other, Function function) const {
    for (std::size_t i = 0; i < words_.size(); ++i) visit(i, words_[i] & other.words_[i], function);
  }

 private:
  static constexpr std::size_t kBits = 64;
  static std::uint64_t bit(NodeId node) { return std::uint64_t{1} << (node % kBits); }
  template <typename Function>
  static void visit(std::size_t word, std::uint64_t left, Function& function) {
    for (; left != 0; left &= left - 1)
      function(static_cast<NodeId>(word * kBits + static_cast<std::size_t>(std::countr_zero(left))));
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace adaps
