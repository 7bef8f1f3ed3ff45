// Nodes in one process that are connected by sockets. One node ends or is disconnected while all are in a
// call.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "node/node_state.h"
#include "node/snapshot.h"
#include "node_fixtures.h"
#include "protocol/channel.h"
#include "protocol/message.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::uint64_t kRows = 64;
constexpr std::size_t kLength = 4;

enum class Phase { kSetup, kPull, kPush, kWaitSync, kBarrier, kCheckpoint, kClose };
constexpr Phase kPhases[] = {Phase::kSetup,   Phase::kPull,       Phase::kPush, Phase::kWaitSync,
                             Phase::kBarrier, Phase::kCheckpoint, Phase::kClose};

std::vector<TableSpec> tables() { return {TableSpec{.name = "t", .rows = kRows, .length = kLength}}; }

Settings settings_of(NodeId rank, NodeId nodes) {
  return {.rank = rank, .nodes = nodes, .channels = 2, .technique = Technique::kStatic};
}

// A node's worker on its own thread.
class Caller {
 public:
  Caller(std::unique_ptr<Node> node, Phase phase) : node_(std::move(node)), phase_(phase) {
    for (std::size_t i = 0; i < kRows; ++i) keys_[i] = i;
  }

  // Makes calls until a peer is lost or `leave` is set. Then its node ends without being closed.
  void run(const std::atomic<bool>& leave) {
    try {
      while (!leave) {
        call();
        ++turns_;
      }
    } catch (const PeerLost& lost) {
      named_ = lost.rank();
      CHECK(raises_in_every_call(lost.rank()));
    }
    node_.reset();
  }
  // Blocks until the thread has made several calls.
  void await_calls() const {
    while (turns_ < 2) std::this_thread::yield();
  }
  int named() const { return named_; }

 private:
  void call() {
    Worker& worker = node_->worker(0);
    switch (phase_) {
      case Phase::kSetup:
        worker.barrier();
        worker.set(keys_, values_.data(), values_.size(), false);
        worker.wait_sync();
        worker.barrier();
        break;
      case Phase::kPull:
        worker.pull(keys_, values_.data(), values_.size(), false);
        break;
      case Phase::kPush:
        worker.push(keys_, values_.data(), values_.size(), false);
        break;
      case Phase::kWaitSync:
        worker.push(keys_, values_.data(), values_.size(), true);
        worker.wait_sync();
        break;
      case Phase::kBarrier:
        worker.barrier();
        break;
      case Phase::kCheckpoint:
        take_and_restore();
        break;
      case Phase::kClose:
        turns_ = 2;
        node_->close([] {});
        break;
    }
  }

  // The server's part of a checkpoint and of its restore, in memory.
  void take_and_restore() {
    Worker& worker = node_->worker(0);
    NodeContext& state = node_->context();
    const Table& table = node_->tables()[0];
    std::array<std::int64_t, kRows> rows;
    freeze(state);
    try {
      worker.wait_sync();
      worker.barrier();
      worker.wait_sync();
      const Taken taken = take_owned(state, table, 0, rows, values_.data(), nullptr);
      CHECK_EQ(taken.rows, count_owned(state, table));
      worker.agree(true);
      TableRestore(state, table).put(std::span(rows).first(taken.rows), values_.data(), nullptr);
      worker.agree(true);
    } catch (const PeerLost&) {
      thaw(state);
      throw;
    }
    thaw(state);
  }

  bool raises_in_every_call(NodeId rank) {
    if (phase_ == Phase::kClose) return true;
    for (phase_ = Phase::kSetup; phase_ != Phase::kClose; phase_ = static_cast<Phase>(int(phase_) + 1)) {
      try {
        call();
        return false;
      } catch (const PeerLost& lost) {
        if (lost.rank() != rank) return false;
      }
    }
    return true;
  }

  std::unique_ptr<Node> node_;
  Phase phase_;
  std::array<Key, kRows> keys_;
  std::array<float, kRows * kLength> values_{};
  std::atomic<int> turns_{0};
  int named_ = -1;
};

// Ends all connections of this process in both directions and at both ends.
void cut_all_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0) ::shutdown(fd, SHUT_RDWR);
  }
}

// Node 0 of three nodes, with a limit for the time that nodes wait for each other.
struct Waiting {
  static constexpr Micros kTimeout = 1000;

  static Settings settings(NodeId rank) {
    Settings own = settings_of(rank, 3);
    own.stall_timeout = kTimeout;
    return own;
  }
  NodeState zero{tables(), settings(0)}, one{tables(), settings(1)}, two{tables(), settings(2)};
  Channel& channel = *zero.channels[0];

  Micros at(Micros time) {
    channel.set_now(time);
    return channel.on_tick();
  }
  NodeState& other(NodeId rank) { return rank == 1 ? one : two; }
  void comes(NodeId from, bool for_good) {
    Channel& own = *other(from).channels[0];
    own.partition().set_waker([] {});
    own.partition().submit_arrival(for_good);
    own.on_tick();
    own.outbox().drain([&](NodeId, const Frame& frame) { channel.on_frame(from, frame); });
  }
  void tell_others() {
    channel.outbox().drain([&](NodeId to, const Frame& frame) { other(to).channels[0]->on_frame(0, frame); });
  }
};

constexpr bool kComes = false, kLeaves = true;

NodeId lost_of(const NodeState& node) { return node.lost_peer().value_or(kMaxNodes); }

}  // namespace

TEST(all_nodes_name_a_node_that_ends_in_any_phase) {
  constexpr NodeId kNodes = 3;
  for (const Phase phase : kPhases) {
    for (NodeId victim = 0; victim < kNodes; ++victim) {
      std::vector<std::unique_ptr<Caller>> callers;
      std::atomic<bool> leave{false};
      const std::atomic<bool> stay{false};
      std::vector<std::thread> threads;
      for (auto& node : connected(tables(), settings_of(0, kNodes))) {
        // A node in close() cannot end in another way, so the victim makes other calls.
        const bool closes = phase == Phase::kClose && callers.size() != victim;
        const Phase own = phase == Phase::kClose && !closes ? Phase::kPull : phase;
        callers.push_back(std::make_unique<Caller>(std::move(node), own));
      }
      for (NodeId rank = 0; rank < kNodes; ++rank)
        threads.emplace_back([&, rank] { callers[rank]->run(rank == victim ? leave : stay); });
      for (const auto& caller : callers) caller->await_calls();
      leave = true;
      for (std::thread& thread : threads) thread.join();
      for (NodeId rank = 0; rank < kNodes; ++rank)
        if (rank != victim) CHECK_EQ(callers[rank]->named(), int{victim});
    }
  }
}

TEST(a_cut_connection_ends_the_calls_of_both_nodes_in_any_phase) {
  for (const Phase phase : kPhases) {
    std::vector<std::unique_ptr<Caller>> callers;
    const std::atomic<bool> stay{false};
    for (auto& node : connected(tables(), settings_of(0, 2))) {
      const Phase own = phase == Phase::kClose && callers.empty() ? Phase::kPush : phase;
      callers.push_back(std::make_unique<Caller>(std::move(node), own));
    }
    std::vector<std::thread> threads;
    for (const auto& caller : callers) threads.emplace_back([&] { caller->run(stay); });
    for (const auto& caller : callers) caller->await_calls();
    cut_all_connections();
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(callers[0]->named(), 1);
    CHECK_EQ(callers[1]->named(), 0);
  }
}

TEST(other_nodes_are_notified_of_a_loss_before_the_node_fails) {
  NodeState zero(tables(), settings_of(0, 4)), one(tables(), settings_of(1, 4));
  Channel& channel = *zero.channels[1];
  channel.on_peer_down(2, "the first");
  channel.on_peer_down(3, "the second");
  CHECK(channel.membership().has_lost_peer());
  CHECK(!zero.failed.load());
  std::size_t frames = 0;
  channel.outbox().drain([&](NodeId to, const Frame& frame) {
    ++frames;
    CHECK(to == 1 || to == 3);
    if (to == 1) one.channels[1]->on_frame(0, frame);
  });
  CHECK_EQ(frames, std::size_t{2});
  CHECK_EQ(lost_of(one), 2);
  channel.membership().fail_for_lost_peer();
  CHECK_EQ(lost_of(zero), 2);
  // The end of the node that reported the loss is ignored.
  one.channels[1]->on_peer_down(0, "it closed the connection");
  CHECK(!one.channels[1]->membership().has_lost_peer());
  CHECK_EQ(lost_of(one), 2);
}

TEST(a_node_that_was_reported_lost_names_the_reporting_node) {
  NodeState one(tables(), settings_of(1, 3));
  Channel& channel = *one.channels[0];
  const auto told = [&](NodeId rank) { channel.on_frame(2, frame_of(LostMessage{.node = rank})); };
  CHECK_THROWS(told(3), ProtocolError, "");
  CHECK(!one.failed.load());
  told(1);
  CHECK_EQ(lost_of(one), 2);
}

TEST(all_nodes_name_a_node_that_is_late_at_a_barrier) {
  Waiting nodes;
  nodes.at(100);
  nodes.comes(1, kComes);
  CHECK_EQ(nodes.at(200), 100 + Waiting::kTimeout);
  nodes.channel.partition().submit_arrival(false);
  CHECK_EQ(nodes.at(1099), 100 + Waiting::kTimeout);
  CHECK(!nodes.channel.membership().has_lost_peer());
  CHECK_EQ(nodes.at(1100), 1100);
  REQUIRE(nodes.channel.membership().has_lost_peer());
  nodes.tell_others();
  nodes.channel.membership().fail_for_lost_peer();
  CHECK_EQ(lost_of(nodes.zero), 2);
  CHECK_EQ(lost_of(nodes.one), 2);
  CHECK_EQ(lost_of(nodes.two), 0);
  CHECK_EQ(nodes.at(9999), kNever);
}

TEST(nodes_that_wait_for_the_end_do_not_time_out_while_others_use_barriers) {
  Waiting nodes;
  nodes.at(100);
  nodes.comes(1, kLeaves);
  nodes.at(900);
  nodes.comes(2, kComes);
  nodes.channel.partition().submit_arrival(false);
  CHECK_EQ(nodes.at(900), 900 + Waiting::kTimeout);
  CHECK_EQ(nodes.at(1899), 900 + Waiting::kTimeout);
  CHECK(!nodes.channel.membership().has_lost_peer());
  nodes.at(1900);
  nodes.tell_others();
  nodes.channel.membership().fail_for_lost_peer();
  CHECK_EQ(lost_of(nodes.zero), 0);
  CHECK_EQ(lost_of(nodes.one), 0);
}

TEST(no_node_is_reported_after_all_arrived) {
  Waiting nodes;
  nodes.at(100);
  for (const bool for_good : {kComes, kLeaves}) {
    nodes.comes(1, for_good);
    nodes.comes(2, for_good);
    nodes.channel.partition().submit_arrival(for_good);
    CHECK_EQ(nodes.at(200), kNever);
  }
  CHECK_EQ(nodes.at(9999), kNever);
  CHECK(!nodes.channel.membership().has_lost_peer());
}
