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
  explicit OneNode(NodeId rank)
      : node(tables(), settings(rank), {}), outbox(kNodes), membership(node, outbox, 0) {
    operation.left.store(1);
    node.barrier.arrive(operation);
    membership.arrived(false, 0);
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

TEST(an_interrupted_arrival_of_a_worker_does_not_count) {
  Completion completion;
  Operation interrupted{OperationKind::kBarrier, 0, completion};
  Operation again{OperationKind::kBarrier, 0, completion};
  Operation other{OperationKind::kBarrier, 1, completion};
  LocalBarrier barrier(2);
  CHECK(!barrier.arrive(interrupted));
  CHECK(!barrier.arrive(again));
  CHECK(barrier.arrive(other));
  CHECK(!barrier.arrive(interrupted));  // the node has arrived already
  CHECK_EQ(barrier.take({}).size(), 2U);
  CHECK(!barrier.arrive(interrupted));
  CHECK(!barrier.leave(0));
  CHECK(barrier.arrive(other));
}

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

TEST(a_refused_release_ends_no_barrier) {
  OneNode one(1);
  CHECK_THROWS(one.membership.on_release(2, ReleaseMessage{}), ProtocolError, "rank 2 ends a barrier");
  CHECK(one.waits());
}
