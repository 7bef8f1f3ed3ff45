// Reactions of a node to messages about the members of the cluster.
#include "protocol/membership.h"

#include <string>
#include <vector>

#include "check.h"

using namespace adaps;

namespace {

constexpr NodeId kNodes = 3;

std::vector<TableSpec> tables() { return {TableSpec{.name = "t", .rows = 1, .length = 1}}; }

Settings settings(NodeId rank) { return {.rank = rank, .nodes = kNodes}; }

struct OneNode {
  explicit OneNode(NodeId rank) : node(tables(), settings(rank)), outbox(kNodes), membership(node, outbox) {
    operation.left.store(1);
    node.barrier.arrive(operation);
  }
  bool waits() const { return !operation.done.load(); }

  NodeContext node;
  Outbox outbox;
  Membership membership;
  Completion completion;
  Operation operation{OperationKind::kBarrier, 0, completion};
};

ReleaseMessage failed_at(NodeId node) { return {.failed = 1, .failed_node = node}; }

}  // namespace

TEST(a_release_reports_the_failed_node_to_workers) {
  OneNode one(1);
  one.membership.on_release(0, failed_at(2));
  CHECK(!one.waits());
  CHECK_EQ(one.node.barrier.failed_node().value_or(kNodes), 2);
}

TEST(a_release_with_an_unknown_rank_is_refused) {
  OneNode one(1);
  CHECK_THROWS(one.membership.on_release(0, failed_at(kNodes)), ProtocolError, "rank 3");
  CHECK(one.waits());
}

TEST(only_node_0_ends_a_barrier) {
  OneNode one(1);
  CHECK_THROWS(one.membership.on_release(2, ReleaseMessage{}), ProtocolError, "a release by rank 2");
  CHECK(one.waits());
  CHECK_THROWS(one.membership.on_barrier(2, BarrierMessage{}, 0), ProtocolError, "arrives at rank 1");
}
