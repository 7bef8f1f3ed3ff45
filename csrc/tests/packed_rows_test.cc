// Rows with values that are bfloat16 in memory, on two nodes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "memory_cluster.h"
#include "node/snapshot.h"
#include "node_fixtures.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::uint64_t kRows = 64;
constexpr RuleKind kUpdateRules[] = {RuleKind::kSgd,        RuleKind::kMomentum, RuleKind::kAdagrad,
                                     RuleKind::kRowAdagrad, RuleKind::kAdam,     RuleKind::kSparseAdam,
                                     RuleKind::kRmsprop};
// Maximum rounding error of a number from 1 to 2.
constexpr float kRounding = 0x1p-7F;

TableSpec spec(std::size_t length, Dtype dtype, RuleKind rule = RuleKind::kSgd) {
  TableSpec table{.name = "t", .rows = kRows, .length = length};
  table.rule.kind = rule;
  table.init.a = 1.0F;
  table.dtype = dtype;
  return table;
}

MemoryCluster two_nodes(const std::vector<TableSpec>& tables, Technique technique = Technique::kAdaptive) {
  Settings settings{.nodes = 2, .technique = technique, .timing = false};
  return {tables, settings};
}

void want_on_both(MemoryCluster& cluster, const std::vector<Key>& keys) {
  for (const std::size_t rank : {0, 1}) {
    cluster.worker(rank, 0).intent(keys, 0, kForever);
    cluster.worker(rank, 0).wait_intent(keys);
  }
}

void make_visible(MemoryCluster& cluster) {
  for (const std::size_t rank : {0, 1, 0, 1}) cluster.worker(rank, 0).wait_sync();
}

std::uint64_t bytes_sent(MemoryCluster& cluster) {
  std::uint64_t bytes = 0;
  for (const std::size_t rank : {0, 1}) {
    for (const auto& channel : cluster.node(rank).channels) {
      for (std::size_t type = 1; type < kMessageTypes; ++type)
        bytes += channel->outbox().bytes_of(static_cast<MessageType>(type));
    }
  }
  return bytes;
}

}  // namespace

TEST(a_worker_reads_what_it_wrote_wherever_rows_are) {
  constexpr std::size_t kLength = 7;
  TableSpec other = spec(kLength, Dtype::kFloat32);
  other.name = "float32";
  MemoryCluster cluster = two_nodes({spec(kLength, Dtype::kBfloat16), other});
  const std::vector<Key> keys = keys_below(2 * kRows);
  Worker& worker = cluster.worker(0, 0);
  std::vector<float> values(keys.size() * kLength);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100);
  for (const bool wanted : {false, true}) {
    if (wanted) want_on_both(cluster, keys);
    worker.set(keys, values.data(), values.size(), false);
    CHECK(pulled(worker, keys, kLength) == values);
    const std::vector<float> ones(values.size(), 1.0F);
    worker.push(keys, ones.data(), ones.size(), false);
    const std::vector<float> more = pulled(worker, keys, kLength);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK_EQ(more[i], values[i] + 1.0F);
  }
}

TEST(values_are_rounded_to_adjacent_numbers_of_bfloat16) {
  constexpr std::size_t kLength = 16;
  MemoryCluster cluster = two_nodes({spec(kLength, Dtype::kBfloat16)});
  const std::vector<Key> keys = keys_below(kRows);
  const std::vector<float> values(keys.size() * kLength, 1.001F);
  cluster.worker(0, 0).set(keys, values.data(), values.size(), false);
  const std::vector<float> read = pulled(cluster.worker(1, 0), keys, kLength);
  for (const float x : read) CHECK(x == 1.0F || x == 1.0F + kRounding);
  const auto raised = std::count(read.begin(), read.end(), 1.0F + kRounding);
  CHECK(raised > 60 && raised < 210);  // expected: 131 of 1024, within 7 standard deviations
}

TEST(copies_are_bitwise_equal_to_their_owner) {
  constexpr std::size_t kLength = 33;
  for (const RuleKind rule : kUpdateRules) {
    for (const Wire wire : {Wire::kFloat32, Wire::kBfloat16}) {
      // A lossy wire also rounds the state, and with some rules this changes the value.
      if (wire != Wire::kFloat32 && rule != RuleKind::kSgd) continue;
      TableSpec table = spec(kLength, Dtype::kBfloat16, rule);
      table.management.wire = wire;
      MemoryCluster cluster = two_nodes({table});
      const std::vector<Key> keys = keys_below(kRows);
      want_on_both(cluster, keys);
      Random random(static_cast<std::uint64_t>(rule), 1);
      std::vector<float> gradients(keys.size() * kLength);
      for (int step = 0; step < 20; ++step) {
        for (const std::size_t rank : {0, 1}) {
          for (float& x : gradients) x = static_cast<float>(random.uniform(-1.0, 1.0));
          cluster.worker(rank, 0).push_gradients(keys, gradients.data(), gradients.size(), false);
          if (step % 5 == 0) cluster.worker(rank, 0).wait_sync();
        }
      }
      // Compares again after all changes are merged, as a checkpoint requires.
      for (const std::size_t rank : {0, 1}) freeze(cluster.node(rank));
      make_visible(cluster);
      const std::vector<float> here = pulled(cluster.worker(0, 0), keys, kLength);
      CHECK(pulled(cluster.worker(1, 0), keys, kLength) == here);
      CHECK(std::any_of(here.begin(), here.end(), [](float x) { return x != 1.0F; }));
    }
  }
}

TEST(small_pushes_of_both_nodes_are_kept_in_the_mean) {
  constexpr std::size_t kLength = 64;
  constexpr int kPushes = 50;
  constexpr float kPushed = 0.001F;
  for (const Wire wire : {Wire::kFloat32, Wire::kBfloat16}) {
    TableSpec table = spec(kLength, Dtype::kBfloat16);
    table.management.wire = wire;
    MemoryCluster cluster = two_nodes({table});
    const std::vector<Key> keys = keys_below(kRows);
    want_on_both(cluster, keys);
    const std::vector<float> pushes(keys.size() * kLength, kPushed);
    for (int i = 0; i < kPushes; ++i) {
      for (const std::size_t rank : {0, 1}) {
        cluster.worker(rank, 0).push(keys, pushes.data(), pushes.size(), false);
        if (i % 10 == 0) cluster.worker(rank, 0).wait_sync();
      }
    }
    for (const std::size_t rank : {0, 1}) freeze(cluster.node(rank));
    make_visible(cluster);
    const std::vector<float> values = pulled(cluster.worker(0, 0), keys, kLength);
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    // The root mean square of the error of one rounding is at most half of the distance between two numbers
    // of bfloat16.
    const double deviation = static_cast<double>(kRounding) / 2.0 * std::sqrt(2.0 * kPushes);
    CHECK(std::abs(mean - 1.0 - 2.0 * kPushes * static_cast<double>(kPushed)) <
          5.0 * deviation / std::sqrt(static_cast<double>(values.size())));
  }
}

TEST(a_row_that_moves_keeps_its_bits) {
  constexpr std::size_t kLength = 9;
  MemoryCluster cluster =
      two_nodes({spec(kLength, Dtype::kBfloat16, RuleKind::kAdagrad)}, Technique::kRelocation);
  const std::vector<Key> keys = keys_below(kRows);
  std::vector<float> gradients(keys.size() * kLength);
  Random random(1, 1);
  for (float& x : gradients) x = static_cast<float>(random.uniform(-1.0, 1.0));
  cluster.worker(0, 0).push_gradients(keys, gradients.data(), gradients.size(), false);
  const std::vector<float> before = pulled(cluster.worker(0, 0), keys, kLength);
  for (const std::size_t rank : {0, 1, 0}) {
    cluster.worker(rank, 0).intent(keys, 0, kForever);
    cluster.worker(rank, 0).wait_intent(keys);
    CHECK(pulled(cluster.worker(rank, 0), keys, kLength) == before);
  }
}

TEST(rows_take_half_of_the_memory_and_network_bytes) {
  constexpr std::size_t kLength = 128;
  std::array<std::uint64_t, 2> memory{}, moved{}, copied{};
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    const auto which = static_cast<std::size_t>(dtype);
    const std::vector<Key> keys = keys_below(kRows);
    const std::vector<float> pushes(keys.size() * kLength, 0.3F);
    {
      MemoryCluster cluster = two_nodes({spec(kLength, dtype)}, Technique::kRelocation);
      for (const std::size_t rank : {0, 1, 0, 1}) {
        Worker& worker = cluster.worker(rank, 0);
        worker.intent(keys, 0, kForever);
        worker.wait_intent(keys);
        worker.push(keys, pushes.data(), pushes.size(), false);
      }
      moved[which] = bytes_sent(cluster);
      memory[which] = cluster.node(1).store.resident_bytes();
    }
    TableSpec table = spec(kLength, dtype);
    table.management.wire = dtype == Dtype::kFloat32 ? Wire::kFloat32 : Wire::kBfloat16;
    MemoryCluster cluster = two_nodes({table}, Technique::kReplication);
    want_on_both(cluster, keys);
    for (const std::size_t rank : {0, 1, 0, 1}) {
      cluster.worker(rank, 0).push(keys, pushes.data(), pushes.size(), false);
      make_visible(cluster);
    }
    copied[which] = bytes_sent(cluster);
  }
  for (const auto& of : {memory, moved, copied}) {
    std::cout << "  " << of[1] << " of " << of[0] << " bytes\n";
    CHECK(static_cast<double>(of[1]) <= 0.55 * static_cast<double>(of[0]));
  }
}

TEST(a_snapshot_contains_the_stored_values) {
  constexpr std::size_t kLength = 5;
  MemoryCluster cluster = two_nodes({spec(kLength, Dtype::kBfloat16, RuleKind::kAdagrad)});
  NodeState& node = cluster.node(0);
  const Table& table = node.tables[0];
  std::vector<float> gradients(kRows * kLength, 0.37F);
  cluster.worker(0, 0).push_gradients(keys_below(kRows), gradients.data(), gradients.size(), false);
  const std::vector<float> before = pulled(cluster.worker(0, 0), keys_below(kRows), kLength);
  std::vector<std::int64_t> rows(kRows);
  std::vector<float> values(kRows * kLength), states(kRows * kLength);
  const Taken taken = take_owned(node, table, 0, rows, values.data(), states.data());
  CHECK(taken.rows > 0);
  for (std::size_t i = 0; i < taken.rows; ++i) {
    const auto row = static_cast<std::size_t>(rows[i]) * kLength;
    for (std::size_t j = 0; j < kLength; ++j) {
      CHECK_EQ(values[i * kLength + j], before[row + j]);
      CHECK_EQ(states[i * kLength + j], 0.37F * 0.37F);
    }
  }
  cluster.worker(0, 0).push_gradients(keys_below(kRows), gradients.data(), gradients.size(), false);
  TableRestore restore(node, table);
  CHECK_EQ(restore.put(std::span(rows).first(taken.rows), values.data(), states.data()), taken.rows);
  restore.finish();
  const std::vector<float> after = pulled(cluster.worker(0, 0), keys_below(kRows), kLength);
  for (std::size_t i = 0; i < taken.rows; ++i) {
    const auto row = static_cast<std::size_t>(rows[i]) * kLength;
    for (std::size_t j = 0; j < kLength; ++j) CHECK_EQ(after[row + j], before[row + j]);
  }
}
