#include "replay/replay.h"

#include <string>

#include "check.h"
#include "protocol/message.h"
#include "replay/processor.h"

using namespace adaps;

namespace {

constexpr std::size_t kLength = 4;
constexpr double kValue = kLength * sizeof(float);
constexpr std::size_t kSteps = 30;
constexpr std::size_t kLookahead = 5;

TableSpec table_of(const char* name, std::uint64_t rows) {
  return {.name = name, .rows = rows, .length = kLength, .rule = {.kind = RuleKind::kAdagrad}};
}

// Accesses of two rows per node and step, out of 64, in ascending order. `row(node, step, i)` chooses them.
template <typename Row>
Accesses accesses_of(NodeId nodes, Row row) {
  Accesses accesses;
  accesses.tables.push_back(table_of("table", 64));
  accesses.dense.push_back(false);
  for (NodeId node = 0; node < nodes; ++node) {
    WorkerAccesses own;
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const Key i : {0, 1}) own.keys.push_back(row(node, step, i));
      own.ends.push_back(own.keys.size());
    }
    accesses.workers.push_back(own);
  }
  return accesses;
}

Accesses own_rows(NodeId nodes) {
  return accesses_of(nodes, [](NodeId node, std::size_t, Key i) { return 2 * Key{node} + i; });
}

Accesses same_rows(NodeId nodes) {
  return accesses_of(nodes, [](NodeId, std::size_t, Key i) { return i; });
}

Accesses scattered_rows(NodeId nodes) {
  return accesses_of(
      nodes, [](NodeId node, std::size_t step, Key i) { return (mix(node * 100 + step) % 32) * 2 + i; });
}

ReplaySettings settings_of(const Accesses& accesses, Technique technique) {
  const std::size_t nodes = accesses.workers.size();
  ReplaySettings settings;
  settings.technique = technique;
  settings.lookahead.assign(accesses.tables.size(), kLookahead);
  settings.warm_up = 10;
  settings.machines.assign(nodes, Machine{.cores = 2});
  settings.links.assign(nodes * nodes, {.latency = 250.0, .jitter = 0.0, .bytes_per_micro = 1250.0});
  return settings;
}

// Settings that count all steps from the first one.
ReplaySettings without_warm_up(const Accesses& accesses, Technique technique) {
  ReplaySettings settings = settings_of(accesses, technique);
  settings.warm_up.reset();
  return settings;
}

ReplayResult replay(const Accesses& accesses, Technique technique) {
  return Replay(accesses, settings_of(accesses, technique)).run();
}

double sum(const ReplayResult& result, const std::string& counter, std::size_t table = 0) {
  double all = 0.0;
  for (const NodeReplay& node : result.nodes) all += node.tables[table].at(counter);
  return all;
}

double counted(const ReplayResult& result, const std::string& counter) {
  double all = 0.0;
  for (const NodeReplay& node : result.nodes) all += node.counters.at(counter);
  return all;
}

double pulled(const ReplayResult& result) {
  return sum(result, "pulled_local") + sum(result, "pulled_replica") + sum(result, "pulled_remote");
}

double of_all_types(const ReplayResult& result, const std::string& what, std::size_t table = 0) {
  double all = 0.0;
  for (std::size_t i = 1; i < kMessageTypes; ++i) {
    const auto type = static_cast<MessageType>(i);
    if (is_about_a_key(type)) all += sum(result, what + "_sent_" + name_of(type), table);
  }
  return all;
}

double messages(const ReplayResult& result, std::size_t table = 0) {
  return of_all_types(result, "messages", table);
}

template <typename Of>
Micros total(const ReplayResult& result, Of NodeReplay::* of) {
  Micros all = 0;
  for (const NodeReplay& node : result.nodes) all += static_cast<Micros>(node.*of);
  return all;
}

Micros channel_time(const ReplayResult& result) {
  return static_cast<Micros>(counted(result, "channel_micros"));
}

ReplaySettings free_of_costs(const Accesses& accesses, Technique technique) {
  ReplaySettings settings = without_warm_up(accesses, technique);
  settings.costs = {};
  settings.costs.call = 0.0;
  return settings;
}

}  // namespace

TEST(threads_share_the_cores_of_their_node) {
  Processor alone(2, 1.0, 3);
  alone.begin(0, 100.0, 0);
  alone.begin(1, 50.0, 0);
  CHECK_EQ(alone.next_end(), Micros{50});  // each thread has a core
  CHECK(alone.take_ended(50) == std::vector<std::size_t>{1});
  CHECK_EQ(alone.next_end(), Micros{100});
  Processor shared(1, 0.5, 2);  // with half the speed
  shared.begin(0, 100.0, 0);
  shared.begin(1, 50.0, 0);
  CHECK_EQ(shared.next_end(), Micros{200});  // each thread has half a core
  CHECK(shared.take_ended(200) == std::vector<std::size_t>{1});
  CHECK_EQ(shared.next_end(), Micros{300});  // the remaining thread has the whole core
}

TEST(short_pieces_of_work_take_no_longer_than_they_should) {
  Processor processor(1, 1.0, 1);
  Micros now = 0;
  for (int i = 0; i < 100; ++i) {
    processor.begin(0, 0.3, now);
    now = processor.next_end();
    CHECK_EQ(processor.take_ended(now).size(), std::size_t{1});
  }
  CHECK_EQ(now, Micros{30});
}

TEST(a_processor_continues_its_work_after_a_stall_or_slowdown) {
  Processor processor(1, 1.0, 1);
  processor.begin(0, 100.0, 0);
  processor.suspend(0, 20);
  CHECK_EQ(processor.next_end(), kNever);
  CHECK(processor.take_ended(60).empty());
  processor.resume(0, 70);
  CHECK_EQ(processor.next_end(), Micros{150});
  processor.slow_down(0, 0.5, 100);  // half of the work remains
  CHECK_EQ(processor.speed(0), 0.5);
  CHECK_EQ(processor.next_end(), Micros{200});
  processor.slow_down(0, 2.0, 160);
  CHECK_EQ(processor.next_end(), Micros{170});
  CHECK(processor.take_ended(170) == std::vector<std::size_t>{0});
  CHECK_EQ(processor.next_end(), kNever);
}

TEST(a_suspended_thread_frees_its_core) {
  Processor processor(1, 1.0, 2);
  processor.begin(0, 100.0, 0);
  processor.begin(1, 100.0, 0);
  processor.suspend(0, 50);  // 75 remain for each
  CHECK_EQ(processor.next_end(), Micros{125});
  CHECK(processor.take_ended(125) == std::vector<std::size_t>{1});
  processor.begin(1, 10.0, 125);
  processor.resume(0, 130);  // 5 and 75 remain
  CHECK_EQ(processor.next_end(), Micros{140});
}

TEST(rows_of_a_single_node_are_relocated_once_and_then_cost_nothing) {
  for (const Technique technique : {Technique::kAdaptive, Technique::kRelocation}) {
    const ReplayResult result = replay(own_rows(8), technique);
    CHECK(total(result, &NodeReplay::steps) > 0);
    CHECK_EQ(sum(result, "pulled_local"), pulled(result));
    CHECK_EQ(messages(result), 0.0);
    CHECK_EQ(total(result, &NodeReplay::waiting), Micros{0});
  }
}

TEST(rows_that_all_nodes_share_are_replicated_everywhere) {
  const ReplayResult result = replay(same_rows(8), Technique::kAdaptive);
  CHECK_EQ(sum(result, "pulled_remote"), 0.0);
  // seven of eight nodes hold replicas
  CHECK(sum(result, "pulled_replica") > 6 * sum(result, "pulled_local"));
  CHECK_EQ(sum(result, "messages_sent_request"), 0.0);
  CHECK_EQ(counted(result, "relocations"), 0.0);
  CHECK(sum(result, "messages_sent_refresh") > 0);
}

// A remote row costs a pull, whose answer contains the value, and a push, whose request contains the
// gradient.
TEST(static_pays_a_request_and_an_answer_for_each_remote_row) {
  const Accesses accesses = same_rows(4);
  ReplaySettings settings = without_warm_up(accesses, Technique::kStatic);
  const ReplayResult result = Replay(accesses, settings).run();
  const double remote = sum(result, "pulled_remote");
  CHECK_EQ(total(result, &NodeReplay::steps), static_cast<Micros>(4 * kSteps));
  CHECK_EQ(sum(result, "pulled_replica"), 0.0);
  CHECK_EQ(remote, 2.0 * 3 * kSteps);  // three of four nodes do not own the row
  CHECK_EQ(sum(result, "messages_sent_request"), 2 * remote);
  CHECK_EQ(sum(result, "messages_sent_answer"), 2 * remote);
  CHECK_EQ(of_all_types(result, "bytes"),
           remote * (2 * sizeof(RequestMessage) + 2 * sizeof(AnswerMessage) + 2 * kValue));
  CHECK_EQ(counted(result, "frames_sent"), counted(result, "frames_received"));
  // A node that does not own the rows needs two round trips per step, with 0.25 ms in each direction.
  CHECK(total(result, &NodeReplay::waiting) > static_cast<Micros>(3 * kSteps * 1000));
  CHECK(total(result, &NodeReplay::on_network) > total(result, &NodeReplay::waiting) / 2);
  CHECK(total(result, &NodeReplay::on_network) <= total(result, &NodeReplay::waiting));
}

TEST(full_replication_answers_every_pull_locally) {
  const ReplayResult result = replay(own_rows(4), Technique::kFullReplication);
  CHECK_EQ(sum(result, "pulled_remote"), 0.0);
  CHECK(sum(result, "messages_sent_refresh") > 0);
}

TEST(dense_tables_are_accessed_whole_in_every_step) {
  Accesses accesses = own_rows(4);
  accesses.tables.push_back(table_of("dense", 3));
  accesses.dense.push_back(true);
  const ReplayResult result = replay(accesses, Technique::kAdaptive);
  CHECK_EQ(messages(result, 0), 0.0);
  CHECK(messages(result, 1) > 0);
  const auto steps = static_cast<double>(total(result, &NodeReplay::steps));
  CHECK(pulled(result) >= 2 * (steps - 4) && pulled(result) <= 2 * (steps + 4));
}

// Node 0 starts a training, so it requests dense parameters before the other nodes have received their keys.
TEST(dense_tables_start_at_the_last_node_that_requests_them_or_at_home) {
  Accesses accesses = own_rows(2);
  accesses.tables.push_back(table_of("dense", 3));
  accesses.dense.push_back(true);
  const auto pulled_by = [&](const ReplayResult& result, NodeId node, const char* way) {
    return result.nodes[node].tables[1].at(way);
  };
  const ReplayResult moved = replay(accesses, Technique::kRelocation);  // to the last node that requests them
  CHECK_EQ(pulled_by(moved, 0, "pulled_local"), 0.0);
  CHECK_EQ(pulled_by(moved, 1, "pulled_remote"), 0.0);
  const ReplayResult copied = replay(accesses, Technique::kAdaptive);  // at home, and a replica elsewhere
  for (const NodeId node : {0, 1}) {
    CHECK(pulled_by(copied, node, "pulled_local") > 0.0);
    CHECK_EQ(pulled_by(copied, node, "pulled_replica"), pulled_by(copied, 1 - node, "pulled_local"));
  }
}

TEST(placed_rows_start_on_their_nodes) {
  Accesses accesses = own_rows(8);
  for (NodeId node = 0; node < 8; ++node) accesses.workers[node].placed = {2 * Key{node}, 2 * Key{node} + 1};
  ReplaySettings settings = without_warm_up(accesses, Technique::kRelocation);
  settings.lookahead = {0};  // rows are relocated for no other reason
  const ReplayResult result = Replay(accesses, settings).run();
  CHECK_EQ(sum(result, "pulled_local"), 2.0 * 8 * kSteps);
  CHECK_EQ(messages(result), 0.0);
}

TEST(workers_and_channels_are_threads_of_their_node) {
  Accesses accesses = scattered_rows(6);  // three nodes with two workers
  ReplaySettings settings = without_warm_up(accesses, Technique::kStatic);
  settings.workers = 2;
  settings.channels = 2;
  const ReplayResult result = Replay(accesses, settings).run();
  CHECK_EQ(result.nodes.size(), std::size_t{3});
  for (const NodeReplay& node : result.nodes) CHECK_EQ(node.steps, std::uint64_t{2 * kSteps});
  CHECK_EQ(pulled(result), 2.0 * 6 * kSteps);
  // On one core, the computations of two workers take twice as long.
  ReplaySettings one_core = settings;
  one_core.machines.assign(3, Machine{.cores = 1});
  const Micros both = Replay(accesses, one_core).run().elapsed;
  CHECK(both > result.elapsed * 18 / 10 && both < result.elapsed * 22 / 10);
}

TEST(finished_nodes_detect_a_loss_at_the_end) {
  Accesses accesses = own_rows(3);
  ReplaySettings settings = without_warm_up(accesses, Technique::kAdaptive);
  settings.machines[2].speed = 0.25;
  settings.incidents = {{Incident::Kind::kLoss, 2, 28, 0.0}};
  const ReplayResult late = Replay(accesses, settings).run();
  for (const NodeId node : {0, 1}) {
    CHECK_EQ(late.nodes[node].steps, std::uint64_t{kSteps});
    CHECK(*late.nodes[node].peer_lost_at > *late.nodes[2].lost);
  }
  settings.incidents = {{Incident::Kind::kLoss, 0, 5, 0.0}, {Incident::Kind::kLoss, 1, 6, 0.0}};
  const ReplayResult two = Replay(accesses, settings).run();
  CHECK(two.nodes[0].lost && two.nodes[1].lost);
  CHECK_EQ(*two.nodes[2].peer_lost, NodeId{0});
}

TEST(links_of_a_node_share_its_network_card) {
  SimulatedNetwork network(3, 1, 0, 1);
  for (const NodeId peer : {1, 2}) network.set_traits(0, peer, {.latency = 5.0, .bytes_per_micro = 10.0});
  network.set_card(0, 10.0);
  const std::vector<std::byte> frame(1000);
  CHECK_EQ(network.send({0, 0, 1}, frame), Micros{105});
  CHECK_EQ(network.backlog({0, 0, 1}), std::size_t{1});
  CHECK_EQ(network.send({0, 0, 2}, frame), Micros{205});  // after the other frame
  network.advance(100);
  CHECK_EQ(network.backlog({0, 0, 1}), std::size_t{0});
  CHECK_EQ(network.backlog({0, 0, 2}), std::size_t{1});
}

TEST(costs_of_the_server_take_time_of_its_node) {
  const Accesses accesses = scattered_rows(4);
  ReplaySettings settings = free_of_costs(accesses, Technique::kStatic);
  const ReplayResult free = Replay(accesses, settings).run();
  CHECK_EQ(channel_time(free), Micros{0});
  CHECK_EQ(total(free, &NodeReplay::visiting), Micros{0});
  settings.costs.message = 10.0;
  const ReplayResult dear = Replay(accesses, settings).run();
  const double handled = messages(dear) * 2;  // counted at each end
  CHECK_EQ(channel_time(dear), static_cast<Micros>(10 * handled));
  CHECK(total(dear, &NodeReplay::waiting) > total(free, &NodeReplay::waiting));
}

TEST(the_first_computation_after_a_wait_takes_longer) {
  const Accesses accesses = scattered_rows(2);
  ReplaySettings settings = free_of_costs(accesses, Technique::kStatic);
  const ReplayResult free = Replay(accesses, settings).run();
  settings.costs.resume = 100.0;
  const ReplayResult dear = Replay(accesses, settings).run();
  const Micros extra = total(dear, &NodeReplay::computing) - total(free, &NodeReplay::computing);
  CHECK(extra > 0 && extra <= Micros{100 * 2 * kSteps});  // at most once per step, for any number of waits
  CHECK_EQ(extra % 100, Micros{0});
  settings.technique = Technique::kFullReplication;  // no worker waits
  const ReplayResult never = Replay(accesses, settings).run();
  settings.costs.resume = 0.0;
  CHECK_EQ(total(never, &NodeReplay::computing),
           total(Replay(accesses, settings).run(), &NodeReplay::computing));
}

TEST(remote_rows_and_copies_cost_workers_more) {
  const Accesses accesses = scattered_rows(2);
  for (const bool copies : {false, true}) {
    ReplaySettings settings =
        free_of_costs(accesses, copies ? Technique::kFullReplication : Technique::kStatic);
    (copies ? settings.costs.copy : settings.costs.elsewhere) = 10.0;
    const ReplayResult result = Replay(accesses, settings).run();
    const std::string how = copies ? "_replica" : "_remote";
    const double pulled_so = sum(result, "pulled" + how);
    const double pushed_so = sum(result, "pushed" + how);
    CHECK(pulled_so > 0 && pushed_so > 0);
    const double computed = settings.compute * 2 * kSteps;
    const double extra = static_cast<double>(total(result, &NodeReplay::working)) - computed;
    // The cost is added to the work that follows the call. The last call is followed by no work.
    CHECK(extra <= 10 * (pulled_so + pushed_so));
    CHECK(extra >= 10 * (pulled_so + pushed_so - 2 * 2));
  }
}

TEST(threads_pay_for_waking_up_after_a_wait) {
  const Accesses accesses = scattered_rows(2);
  ReplaySettings settings = free_of_costs(accesses, Technique::kStatic);
  const ReplayResult free = Replay(accesses, settings).run();
  settings.costs.wake = 10.0;
  const ReplayResult dear = Replay(accesses, settings).run();
  const Micros woken = total(dear, &NodeReplay::working) - total(free, &NodeReplay::working);
  CHECK(woken > 0);  // a worker wakes when its answer arrives
  CHECK_EQ(woken % 10, Micros{0});
  CHECK(channel_time(dear) > 0);
  CHECK_EQ(channel_time(dear) % 10, Micros{0});
  CHECK(total(dear, &NodeReplay::waiting) > total(free, &NodeReplay::waiting));
}

TEST(messages_of_intents_have_their_own_cost) {
  const Accesses accesses = scattered_rows(4);
  ReplaySettings settings = free_of_costs(accesses, Technique::kReplication);
  settings.compute = 1e6;  // channels finish all their work before the next step
  settings.costs.upkeep = 10.0;
  settings.costs.intent = 1000.0;
  const ReplayResult result = Replay(accesses, settings).run();
  const double asked = sum(result, "messages_sent_request") + sum(result, "messages_sent_answer");
  const double upkeep = 2 * (messages(result) - asked);  // counted at each end
  CHECK(upkeep > 0 && counted(result, "intents_acted") > 0);
  CHECK_EQ(channel_time(result), static_cast<Micros>(10 * upkeep + 1000 * counted(result, "intents_acted")));
}

TEST(workers_wait_for_each_other_at_the_end_of_an_epoch) {
  const Accesses accesses = scattered_rows(2);
  ReplaySettings settings = without_warm_up(accesses, Technique::kAdaptive);
  settings.machines[1].speed = 0.5;
  const ReplayResult apart = Replay(accesses, settings).run();
  settings.epoch = kSteps / 3;
  const ReplayResult together = Replay(accesses, settings).run();
  CHECK(apart.nodes[0].last_step < 0.6 * static_cast<double>(apart.nodes[1].last_step));
  CHECK(together.nodes[0].last_step > 0.95 * static_cast<double>(together.nodes[1].last_step));
  CHECK(together.elapsed > apart.elapsed);
  CHECK(together.nodes[0].waiting > apart.nodes[0].waiting + apart.elapsed / 3);
  for (const ReplayResult* result : {&apart, &together}) {
    CHECK_EQ(pulled(*result), 2.0 * 2 * kSteps);
    // Intent is signalled once for each row. The intent for the first rows is signalled in the set-up, before
    // counting begins.
    const double before = result == &apart ? 2.0 * 2 * kLookahead : 0.0;
    CHECK_EQ(counted(*result, "intents"), 2.0 * 2 * kSteps - before);
    for (const NodeReplay& node : result->nodes) CHECK_EQ(node.steps, kSteps);
  }
}

TEST(nothing_is_announced_across_the_end_of_an_epoch) {
  // All nodes use the same rows only in the first step of the second epoch.
  constexpr std::size_t kEpoch = 10;
  const Accesses accesses = accesses_of(
      2, [](NodeId node, std::size_t step, Key i) { return step == kEpoch ? 60 + i : 2 * Key{node} + i; });
  ReplaySettings settings = without_warm_up(accesses, Technique::kReplication);
  const ReplayResult ahead = Replay(accesses, settings).run();
  settings.epoch = kEpoch;
  const ReplayResult late = Replay(accesses, settings).run();
  CHECK_EQ(sum(ahead, "pulled_remote"), 0.0);
  CHECK(sum(late, "pulled_remote") > 0.0);
}

TEST(a_lost_node_ends_workers_that_wait_for_it_at_the_end_of_an_epoch) {
  const Accesses accesses = own_rows(3);
  ReplaySettings settings = without_warm_up(accesses, Technique::kAdaptive);
  settings.epoch = 5;
  settings.machines[2].speed = 0.1;
  settings.incidents = {{Incident::Kind::kLoss, 2, 4, 0.0}};
  const ReplayResult result = Replay(accesses, settings).run();
  CHECK(result.nodes[2].lost.has_value());
  for (const NodeId node : {NodeId{0}, NodeId{1}}) {
    CHECK_EQ(result.nodes[node].steps, std::uint64_t{4});  // the fifth step ends when all workers have met
    CHECK_EQ(*result.nodes[node].peer_lost, NodeId{2});
  }
}
