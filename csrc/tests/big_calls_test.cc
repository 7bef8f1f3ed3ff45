// Calls that are much larger than usual. A channel processes them in slices, messages fit into a frame, and
// the bytes on the network are limited.
#include <atomic>
#include <future>
#include <thread>

#include "check.h"
#include "node/node_state.h"
#include "node_fixtures.h"
#include "protocol/channel.h"
#include "protocol/local_access.h"
#include "protocol/outbox.h"
#include "transport/socket_transport.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::size_t kSlice = 100;
constexpr std::size_t kFirst = 30;

TableSpec table(std::uint64_t rows, std::size_t length) {
  return {.name = "t", .rows = rows, .length = length, .rule = {.lr = 1.0F}};
}

// Two nodes with one channel each, which the test drives.
class Pair {
 public:
  explicit Pair(Technique technique = Technique::kAdaptive) {
    for (NodeId rank = 0; rank < 2; ++rank) {
      Settings settings{.rank = rank,
                        .nodes = 2,
                        .technique = technique,
                        .timing = false,
                        .slice = kSlice,
                        .first_requests = kFirst};
      nodes_[rank] = std::make_unique<NodeState>(std::vector{table(10'000, 1)}, settings);
    }
  }

  NodeState& node(NodeId rank) { return *nodes_[rank]; }
  Channel& channel(NodeId rank) { return *nodes_[rank]->channels[0]; }
  // Returns true if the channel has more work to do at once.
  bool tick(NodeId rank) {
    channel(rank).set_now(++now_);
    return channel(rank).on_tick() <= now_;
  }
  // Delivers the node's queued messages. Returns the number of bytes.
  std::size_t deliver(NodeId from) {
    std::size_t bytes = 0;
    channel(from).outbox().drain([&](NodeId to, Frame frame) {
      bytes += frame.size();
      channel(to).set_now(++now_);
      channel(to).on_frame(from, frame);
    });
    return bytes;
  }
  void settle() {
    for (bool more = true; more;) {
      now_ += 10'000;
      more = tick(0);
      more |= tick(1);
      more |= deliver(0) + deliver(1) > 0;
    }
  }
  std::vector<Key> keys_of(NodeId home) {
    std::vector<Key> keys = keys_below(10'000);
    std::erase_if(keys, [&](Key key) { return node(home).directory.home(key) != home; });
    return keys;
  }

 private:
  std::unique_ptr<NodeState> nodes_[2];
  Micros now_ = 1'000'000;
};

}  // namespace

TEST(a_large_intent_begins_and_ends_in_slices) {
  Pair pair;
  const std::vector<Key> keys = pair.keys_of(1);
  pair.channel(0).partition().submit_intent(0, keys, 0, 1);
  std::size_t ticks = 0;
  std::uint64_t acted = 0;
  do {
    pair.tick(0);
    const std::uint64_t now = pair.channel(0).counters().intents_acted.get();
    CHECK(now - acted <= 3 * kSlice);
    acted = now;
    ++ticks;
  } while (acted < keys.size() && ticks < keys.size());
  CHECK_EQ(acted, keys.size());
  CHECK(ticks > 10);
  pair.settle();
  CHECK_EQ(pair.channel(0).counters().relocations.get(), keys.size());
  // Node 1 also signals intent, so it gets replicas. It becomes the owner of these keys when node 0's intent
  // ends.
  pair.channel(1).partition().submit_intent(0, keys, 0, 5);
  pair.settle();
  CHECK_EQ(pair.channel(1).counters().replicas_set_up.get(), keys.size());
  pair.node(0).workers[0]->clock.store(1);
  pair.channel(0).partition().on_clock(0, 1);
  std::size_t most = 0;
  for (ticks = 0; pair.channel(1).counters().relocations.get() < keys.size() && ticks < 10'000; ++ticks) {
    const std::uint64_t before = pair.channel(0).outbox().bytes_of(MessageType::kTransfer);
    pair.tick(0);
    most = std::max<std::size_t>(most, pair.channel(0).outbox().bytes_of(MessageType::kTransfer) - before);
    pair.deliver(0);
  }
  CHECK(ticks > 10);
  CHECK(most <= 3 * kSlice * (sizeof(TransferMessage) + sizeof(float)));
}

TEST(a_channel_answers_others_between_two_slices) {
  Pair pair(Technique::kStatic);
  const std::vector<Key> theirs = pair.keys_of(1), ours = pair.keys_of(0);
  std::vector<float> floats(10'000, 1.0F);
  // Node 0 pushes thousands of keys of node 1. At the same time, node 1 reads a key of node 0.
  Completion completion;
  Operation push(OperationKind::kPush, 0, completion), pull(OperationKind::kPull, 0, completion);
  push.in = floats.data();
  start(pair.node(0), push, theirs);
  submit_requests(pair.node(0), push);
  CHECK(pair.tick(0));
  CHECK(pair.channel(0).outbox().bytes_of(MessageType::kRequest) <= kSlice * 20);
  float read = -1.0F;
  pull.out = &read;
  start(pair.node(1), pull, std::span(ours).first(1));
  submit_requests(pair.node(1), pull);
  pair.tick(1);
  pair.deliver(1);
  pair.deliver(0);
  CHECK(pull.done.load());
  CHECK_EQ(read, 0.0F);
  CHECK(!push.done.load());
  pair.settle();
  CHECK(push.done.load());
}

TEST(the_first_of_many_requests_and_answers_are_sent_early) {
  Pair pair(Technique::kStatic);
  const std::vector<Key> theirs = pair.keys_of(1);
  std::vector<float> values(kFirst * 3, -1.0F);
  for (const std::size_t count : {kFirst * 3, 2 * kFirst - 1}) {
    std::vector<Frame> ahead[2];
    for (NodeId rank = 0; rank < 2; ++rank) {
      pair.channel(rank).set_sender([&, rank] {
        pair.channel(rank).outbox().drain(
            [&](NodeId, Frame frame) { ahead[rank].push_back(std::move(frame)); });
      });
    }
    Completion completion;
    Operation pull(OperationKind::kPull, 0, completion);
    pull.out = values.data();
    start(pair.node(0), pull, std::span(theirs).first(count));
    submit_requests(pair.node(0), pull);
    pair.tick(0);
    const bool many = count >= 2 * kFirst;
    REQUIRE(ahead[0].size() == (many ? 1u : 0u));
    if (many) {
      CHECK_EQ(ahead[0][0].size(), kFirst * sizeof(RequestMessage));
      pair.channel(1).on_frame(0, ahead[0][0]);
      pair.deliver(1);  // these answers overtake no other message
      CHECK(!pull.done.load());
      CHECK_EQ(pull.left.load(), count - kFirst);
    }
    pair.deliver(0);
    REQUIRE(ahead[1].size() == (many ? 1u : 0u));
    if (many) {
      CHECK_EQ(ahead[1][0].size(), kFirst * (sizeof(AnswerMessage) + sizeof(float)));
      pair.channel(0).on_frame(1, ahead[1][0]);
      CHECK(!pull.done.load());
    }
    pair.deliver(1);
    CHECK(pull.done.load());
  }
}

TEST(no_frame_is_longer_than_a_peer_accepts) {
  Outbox outbox(2);
  const std::vector<float> row(kMaxRowFloats);
  outbox.append(1, SetupMessage{}, {row});
  for (int i = 0; i < 10; ++i) outbox.append(1, SyncMessage{});  // too many for a frame with a row
  outbox.append(1, SetupMessage{}, {row});
  outbox.append(1, DeltaMessage{}, {row});
  std::size_t frames = 0;
  outbox.drain([&](NodeId, const Frame& frame) {
    CHECK(frame.size() <= kMaxFrameBytes);
    ++frames;
  });
  CHECK_EQ(frames, std::size_t{4});
}

TEST(gradients_of_one_key_that_exceed_a_frame_are_divided) {
  Settings settings{.nodes = 2, .technique = Technique::kStatic};
  constexpr std::size_t kLength = 16'384, kCopies = 1'060;  // 66 MiB
  auto nodes = connected({table(64, kLength)}, settings);
  const std::vector<Key> key = keys_at(nodes[0]->context().directory, 1, 1);
  const std::vector<Key> copies(kCopies, key[0]);
  const std::vector<float> gradients(kCopies * kLength, -1.0F);
  nodes[0]->worker(0).push_gradients(copies, gradients.data(), gradients.size(), false);
  std::vector<float> value(kLength);
  nodes[0]->worker(0).pull(key, value.data(), value.size(), false);
  CHECK(value == std::vector<float>(kLength, static_cast<float>(kCopies)));
  close_all(nodes);
}

TEST(a_waiting_call_can_be_interrupted_and_fails_with_the_peer) {
  Settings settings{.nodes = 2, .technique = Technique::kStatic, .max_queued_bytes = 1};
  ConnectOptions options = connect_options();
  options.shape.latency_seconds = 1e5;  // nothing arrives
  auto nodes = connected({table(64, 1)}, settings, options);
  const std::vector<Key> key = keys_at(nodes[0]->context().directory, 1, 1);
  const float one = 1.0F;
  Worker& worker = nodes[0]->worker(0);
  worker.push(key, &one, 1, true);
  struct Interrupt : std::exception {};
  bool interrupted = false;
  worker.set_interrupt_check([] { throw Interrupt(); });
  try {
    worker.push(key, &one, 1, true);
  } catch (const Interrupt&) {
    interrupted = true;
  }
  CHECK(interrupted);
  std::atomic<bool> waits{false};
  worker.set_interrupt_check([&] { waits.store(true); });
  std::future<bool> lost = std::async(std::launch::async, [&] {
    try {
      worker.push(key, &one, 1, true);
    } catch (const PeerLost& error) {
      return error.rank() == 1;
    }
    return false;
  });
  while (!waits.load()) std::this_thread::yield();
  nodes[1].reset();
  CHECK(lost.get());
}
