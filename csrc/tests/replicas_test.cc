// The contents of replicas, and the counters about them.
#include <vector>

#include "check.h"
#include "memory_cluster.h"
#include "node_fixtures.h"
#include "protocol/message.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::uint64_t kRows = 512;
constexpr std::size_t kLength = 16;

MemoryCluster two_nodes() {
  TableSpec table{.name = "t",
                  .rows = kRows,
                  .length = kLength,
                  .rule = {.kind = RuleKind::kAdagrad},
                  .init = {.kind = InitKind::kUniform, .a = -1.0F, .b = 1.0F, .seed = 7}};
  Settings settings;
  settings.nodes = 2;
  return {{table}, settings};
}

std::uint64_t value_bytes_sent(NodeState& node) {
  std::uint64_t bytes = 0;
  for (const auto& channel : node.channels) {
    bytes += channel->outbox().bytes_of(MessageType::kTransfer);
    bytes += channel->outbox().bytes_of(MessageType::kSetup);
  }
  return bytes;
}

}  // namespace

TEST(initial_values_are_computed_by_their_reader) {
  MemoryCluster cluster = two_nodes();
  const std::vector<Key> keys = keys_below(kRows);
  const std::vector<float> here = pulled(cluster.worker(0, 0), keys, kLength);
  for (const std::size_t rank : {0, 1}) {
    Worker& worker = cluster.worker(rank, 0);
    worker.intent(keys, 0, kForever);
    worker.wait_intent(keys);
    CHECK(pulled(worker, keys, kLength) == here);
  }
  const std::uint64_t value_size = 2 * kLength * sizeof(float);
  CHECK(value_bytes_sent(cluster.node(0)) + value_bytes_sent(cluster.node(1)) < kRows * value_size / 2);
}

TEST(reads_of_replicas_count_their_age) {
  MemoryCluster cluster = two_nodes();
  const std::vector<Key> keys = keys_below(kRows);
  for (const std::size_t rank : {0, 1}) {
    cluster.worker(rank, 0).intent(keys, 0, kForever);
    cluster.worker(rank, 0).wait_intent(keys);
  }
  pulled(cluster.worker(0, 0), keys, kLength);
  pulled(cluster.worker(1, 0), keys, kLength);
  std::uint64_t replicas = 0;
  std::uint64_t sampled = 0;
  for (const std::size_t rank : {0, 1}) {
    const WorkerState& worker = *cluster.node(rank).workers[0];
    replicas += worker.accesses[0].pulled.replica.get();
    sampled += worker.counters.staleness_reads.get();
  }
  CHECK(replicas > kRows / 2);
  CHECK(sampled > 0);
  CHECK(sampled < replicas / 4);
}
