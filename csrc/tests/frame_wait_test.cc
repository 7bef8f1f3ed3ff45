// Messages that no caller waits for wait for later messages to the same node. Messages of a call do not wait.
#include "protocol/frame_wait.h"

#include <vector>

#include "check.h"
#include "node/node_state.h"
#include "node/worker.h"
#include "node_fixtures.h"
#include "protocol/message.h"

using namespace adaps;

namespace {

Settings of(NodeId nodes) {
  Settings settings;
  settings.nodes = nodes;
  return settings;
}

}  // namespace

TEST(frames_wait_in_large_clusters_only) {
  for (const NodeId nodes : {1, 2, 8}) CHECK_EQ(frame_wait(of(nodes), 0.0), Micros{0});
  CHECK_EQ(frame_wait(of(8 + 4), 0.0), 2 * frame_wait(of(8 + 1), 0.0));
  CHECK_EQ(frame_wait(of(8 + 1024), 0.0), 32 * frame_wait(of(8 + 1), 0.0));
  // With fast clocks, messages wait for a shorter time.
  CHECK(frame_wait(of(64), 1e-3) < frame_wait(of(64), 0.0));
  CHECK_EQ(frame_wait(of(64), 1e-9), frame_wait(of(64), 0.0));
}

TEST(a_call_sends_waiting_intents_for_its_keys) {
  constexpr Micros kTick = 10'000;
  TableSpec table{.name = "t", .rows = 64, .length = 4};
  Settings settings = of(2);
  settings.timing = false;
  settings.frame_wait = 100 * kTick;
  NodeState node({table}, settings);
  Worker worker(node, 0);
  Channel& channel = *node.channels[0];
  Micros now = 0;
  const auto messages_sent = [&] {
    now += kTick;
    channel.set_now(now);
    channel.on_tick();
    std::size_t bytes = 0;
    channel.outbox().drain([&](NodeId, const Frame& frame) { bytes += frame.size(); });
    return bytes / sizeof(IntentMessage);
  };
  for (int clock = 0; clock < 4; ++clock) {  // determines the pace of the clock
    worker.advance_clock();
    channel.partition().request_round();
    CHECK_EQ(messages_sent(), std::size_t{0});
  }
  const std::vector<Key> there = testing::keys_at(node.directory, 1, 2);
  const Clock now_clock = worker.current_clock();
  worker.intent(there, now_clock + 40, now_clock + 41);
  CHECK_EQ(messages_sent(), std::size_t{0});
  CHECK_EQ(messages_sent(), std::size_t{0});
  std::vector<float> out(4);
  CHECK(worker.pull(std::span(there).first(1), out.data(), out.size(), true) != kDone);
  CHECK_EQ(messages_sent(), std::size_t{2});
  // A message without a waiting caller is sent after half of the time until its clock starts.
  worker.intent(std::vector<Key>{there[1] + 1, there[1] + 2, there[1] + 3, there[1] + 4, there[1] + 5},
                now_clock + 40, now_clock + 41);
  int ticks = 0;
  while (messages_sent() == 0) ++ticks;
  CHECK(ticks >= 15 && ticks <= 22);
}

TEST(a_patient_wait_sync_begins_in_a_round_or_when_a_worker_waits) {
  Settings settings = of(2);
  settings.max_rounds_per_second = 1.0;
  NodeState node({{.name = "t", .rows = 64, .length = 4}}, settings);
  for (const auto& partition : node.partitions) partition->set_waker([] {});
  Worker worker(node, 0);
  Channel& channel = *node.channels[0];
  Micros now = 0;
  const auto marks_sent = [&] {
    channel.set_now(++now);
    channel.on_tick();
    std::vector<int> patient;
    channel.outbox().drain([&](NodeId, const Frame& frame) {
      Reader reader(frame);
      while (!reader.at_end()) patient.push_back(reader.read<SyncMessage>().patient);
    });
    return patient;
  };
  worker.wait_sync(true);
  CHECK(marks_sent().empty());
  worker.advance_clock();
  CHECK(marks_sent() == std::vector<int>{1});
  worker.wait_sync(true);
  const Ticket awaited = worker.wait_sync(true);
  worker.advance_clock();
  CHECK(marks_sent().empty());
  worker.hurry(awaited);
  CHECK(marks_sent() == std::vector<int>{0});  // one MARK for both calls
  worker.wait_sync(true);
  CHECK(marks_sent().empty());
  now += 10'000;  // neither rare rounds nor a clock that stands still delay it for longer
  CHECK(marks_sent() == std::vector<int>{1});
  node.fail(1, "the end");
}
