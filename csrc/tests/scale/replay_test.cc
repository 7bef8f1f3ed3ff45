#include "scale/replay.h"

#include <sstream>

#include "check.h"

using namespace adaps;
using namespace adaps::scale;

namespace {

constexpr std::uint32_t kLength = 4;
constexpr std::uint64_t kValue = kLength * sizeof(float);
constexpr std::size_t kSteps = 30;
constexpr std::size_t kLookahead = 5;

// Two rows per node and step, chosen by `row(node, step, i)`, out of 64.
template <typename Row>
AccessStream stream_of(NodeId nodes, Row row) {
  AccessStream stream;
  stream.tables.push_back({64, kLength, false});
  for (NodeId node = 0; node < nodes; ++node) {
    NodeStream own;
    for (std::size_t step = 0; step < kSteps; ++step)
      own.steps.push_back({row(node, step, 0), row(node, step, 1)});
    stream.nodes.push_back(own);
  }
  return stream;
}

AccessStream own_rows(NodeId nodes) {
  return stream_of(nodes, [](NodeId node, std::size_t, Key i) { return 2 * Key{node} + i; });
}

AccessStream same_rows(NodeId nodes) {
  return stream_of(nodes, [](NodeId, std::size_t, Key i) { return i; });
}

ReplayResult replay(const AccessStream& stream, Technique technique) {
  ReplaySettings settings;
  settings.technique = technique;
  settings.lookahead = kLookahead;
  settings.warm_up = 10;
  return Replay(stream, settings).run();
}

std::uint64_t pulled(const ReplayResult& result) {
  return result.pulled_local + result.pulled_replica + result.pulled_remote;
}

std::uint64_t messages(const ReplayResult& result) { return result.rows.messages + result.dense.messages; }

const ReplayResult::Traffic& of(const ReplayResult& result, MessageType type) {
  return result.by_type[static_cast<std::size_t>(type)];
}

}  // namespace

TEST(rows_of_one_node_each_are_relocated_once_and_cost_nothing_then) {
  for (const Technique technique : {Technique::kAdaptive, Technique::kRelocation}) {
    const ReplayResult result = replay(own_rows(8), technique);
    CHECK(result.node_steps > 0);
    CHECK_EQ(result.pulled_local, pulled(result));
    CHECK_EQ(messages(result), std::uint64_t{0});
    CHECK_EQ(result.waited, Micros{0});
  }
}

TEST(rows_that_all_nodes_share_are_replicated_everywhere) {
  const ReplayResult result = replay(same_rows(8), Technique::kAdaptive);
  CHECK_EQ(result.pulled_remote, std::uint64_t{0});
  CHECK(result.pulled_replica > 6 * result.pulled_local);  // seven of eight nodes hold replicas
  CHECK_EQ(of(result, MessageType::kRequest).messages, std::uint64_t{0});
  CHECK_EQ(result.relocations, std::uint64_t{0});
  CHECK(of(result, MessageType::kRefresh).messages > 0);
}

TEST(static_pays_a_request_and_an_answer_for_each_remote_row) {
  const ReplayResult result = replay(same_rows(4), Technique::kStatic);
  CHECK_EQ(result.pulled_replica, std::uint64_t{0});
  CHECK(result.pulled_remote > 0);
  // A pull and a push of each: the value comes back with one, the gradient goes along with the other. Calls
  // that are under way when counting begins or ends may be counted by half.
  const auto requests = static_cast<double>(of(result, MessageType::kRequest).messages);
  const auto answers = static_cast<double>(of(result, MessageType::kAnswer).messages);
  const auto remote = static_cast<double>(result.pulled_remote);
  CHECK(requests > 1.9 * remote && requests < 2.1 * remote);
  CHECK(answers > 1.9 * remote && answers < 2.1 * remote);
  const auto bytes = static_cast<double>(result.rows.bytes);
  const double expected =
      remote * static_cast<double>(2 * sizeof(RequestMessage) + 2 * sizeof(AnswerMessage) + 2 * kValue);
  CHECK(bytes > 0.9 * expected && bytes < 1.1 * expected);
  // Two round trips per step, of 0.25 ms each way.
  CHECK(result.waited > static_cast<Micros>(result.node_steps) * 3 / 4 * 1000);
}

TEST(full_replication_answers_every_pull_locally) {
  const ReplayResult result = replay(own_rows(4), Technique::kFullReplication);
  CHECK_EQ(result.pulled_remote, std::uint64_t{0});
  CHECK(of(result, MessageType::kRefresh).messages > 0);
}

TEST(dense_tables_are_counted_apart) {
  AccessStream stream = own_rows(4);
  stream.tables.push_back({3, kLength, true});
  const ReplayResult result = replay(stream, Technique::kAdaptive);
  CHECK_EQ(result.rows.messages, std::uint64_t{0});
  CHECK(result.dense.messages > 0);
  CHECK_EQ(pulled(result), 2 * result.node_steps);
}

TEST(placed_rows_begin_where_they_are_placed) {
  AccessStream stream = own_rows(8);
  for (NodeId node = 0; node < 8; ++node) stream.nodes[node].placed = {2 * Key{node}, 2 * Key{node} + 1};
  ReplaySettings settings;
  settings.technique = Technique::kRelocation;
  settings.lookahead = 0;  // nothing else brings them
  settings.warm_up = 0;
  const ReplayResult result = Replay(stream, settings).run();
  CHECK(result.node_steps > 7 * kSteps);  // it ends with the first node
  CHECK_EQ(result.pulled_local, pulled(result));
  CHECK_EQ(messages(result), std::uint64_t{0});
}

TEST(equal_seeds_give_equal_results) {
  const AccessStream stream = stream_of(
      6, [](NodeId node, std::size_t step, Key i) { return (mix(node * 100 + step) % 32) * 2 + i; });
  const ReplayResult a = replay(stream, Technique::kAdaptive);
  const ReplayResult b = replay(stream, Technique::kAdaptive);
  CHECK_EQ(a.rows.bytes, b.rows.bytes);
  CHECK_EQ(a.elapsed, b.elapsed);
  CHECK(a.relocations > 0);
}

TEST(a_stream_that_is_too_short_is_refused) {
  const AccessStream stream = own_rows(2);
  ReplaySettings settings;
  settings.lookahead = 20;
  settings.warm_up = 10;
  CHECK_THROWS(Replay(stream, settings), std::invalid_argument, "30 steps");
}

TEST(a_file_that_is_no_stream_is_refused) {
  std::istringstream text("hello, hello");
  CHECK_THROWS(read_stream(text), std::invalid_argument, "no access stream");
  const std::uint32_t head[] = {kStreamMagic, 2, 3, 1};
  std::istringstream cut(std::string(reinterpret_cast<const char*>(head), sizeof head));
  CHECK_THROWS(read_stream(cut), std::invalid_argument, "ends too early");
}
