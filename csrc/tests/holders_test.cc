// The set of a key's holders is correct after any sequence of additions and removals.
#include "protocol/holders.h"

#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "common/random.h"

using namespace adaps;

namespace {

// Adds and removes random nodes, so that the set has about `most` nodes, and compares the set with a map.
void come_and_go(std::uint64_t seed, std::size_t nodes, std::size_t most) {
  Random random(seed, 0x686f6c64);
  StablePool<Holder> pool;
  SlotHeader owner;
  owner.state = State::kOwner;
  Holders holders(pool, owner);
  std::map<NodeId, Version> there;
  for (Version version = 1; version < 4000; ++version) {
    const auto node = static_cast<NodeId>(random.below(nodes));
    if (there.contains(node)) {
      if (there.size() > most || random.chance(0.5)) {
        holders.remove(node);
        there.erase(node);
      } else {
        holders.find(node)->sent = there[node] = version;
      }
    } else if (there.size() < most) {
      holders.add(node, version);
      there[node] = version;
    } else {
      holders.remove(node);  // the node is not in the set
    }
    CHECK_EQ(pool.in_use(), there.size());
    CHECK_EQ(holders.empty(), there.empty());
    CHECK_EQ(holders.only() != nullptr, there.size() == 1);
    CHECK_EQ(holders.find(node) != nullptr, there.contains(node));
    if (version % 16 != 0) continue;
    std::map<NodeId, Version> seen;
    holders.for_each([&](const Holder& holder) {
      CHECK(seen.emplace(static_cast<NodeId>(holder.node), holder.sent).second);
    });
    CHECK(seen == there);
    for (const auto& [known, sent] : there) {
      REQUIRE(holders.find(known) != nullptr);
      CHECK_EQ(holders.find(known)->sent, sent);
    }
  }
}

}  // namespace

TEST(holders_are_the_nodes_that_were_added_and_not_removed) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    come_and_go(seed, 3, 3);
    come_and_go(seed, 64, 40);
    come_and_go(seed, kMaxNodes, 1000);
  }
}

TEST(a_key_that_all_nodes_hold_has_as_many_holders) {
  StablePool<Holder> pool;
  SlotHeader owner;
  owner.state = State::kOwner;
  Holders holders(pool, owner);
  for (std::size_t node = 0; node < kMaxNodes; ++node) holders.add(static_cast<NodeId>(node), 7);
  CHECK(!holders.any_behind(7));
  holders.find(kMaxNodes - 1)->sent = 6;
  CHECK(holders.any_behind(7));
  std::size_t count = 0;
  holders.for_each([&](const Holder&) { ++count; });
  CHECK_EQ(count, kMaxNodes);
}
