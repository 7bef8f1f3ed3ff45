// An owner writes faster than the link to a holder transmits. The test drives the channels, and links deliver
// nothing until the test lets them.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "node/node_state.h"
#include "node/worker.h"
#include "node_fixtures.h"
#include "protocol/channel.h"
#include "protocol/message.h"

using namespace adaps;

namespace {

constexpr std::size_t kLength = 4;
constexpr std::size_t kKeys = 50;
constexpr int kRounds = 1000;
constexpr std::size_t kRefreshBytes = sizeof(RefreshMessage) + kLength * sizeof(float);

// Node 0 owns the keys, and all other nodes have replicas.
class Nodes {
 public:
  explicit Nodes(NodeId nodes) : links_(static_cast<std::size_t>(nodes) * nodes) {
    TableSpec table{.name = "t", .rows = 64 * kKeys, .length = kLength};
    Settings settings{.nodes = nodes, .technique = Technique::kReplication, .slice = kKeys / 3};
    for (NodeId rank = 0; rank < nodes; ++rank) {
      settings.rank = rank;
      nodes_.push_back(std::make_unique<NodeState>(std::vector<TableSpec>{table}, settings));
      workers_.push_back(std::make_unique<Worker>(*nodes_.back(), 0));
      channel(rank).set_backlog([this, rank](NodeId to) { return link(rank, to).size(); });
    }
    keys = testing::keys_at(nodes_[0]->directory, 0, kKeys);
    for (NodeId rank = 1; rank < nodes; ++rank) workers_[rank]->intent(keys, 0, kForever);
    run({});
  }

  Channel& channel(NodeId rank) { return *nodes_[rank]->channels[0]; }
  Worker& worker(NodeId rank) { return *workers_[rank]; }
  std::uint64_t refreshes() { return channel(0).outbox().bytes_of(MessageType::kRefresh) / kRefreshBytes; }

  void write(NodeId rank = 0) {
    workers_[rank]->push(keys, std::vector<float>(kKeys * kLength, 1.0F).data(), kKeys * kLength, false);
  }
  // Begins a wait_sync for which a worker waits.
  Ticket sync(NodeId rank) {
    const Ticket ticket = workers_[rank]->wait_sync(true);
    workers_[rank]->hurry(ticket);
    return ticket;
  }
  std::vector<float> read(NodeId rank) {
    std::vector<float> values(kKeys * kLength);
    CHECK_EQ(workers_[rank]->pull(keys, values.data(), values.size(), true), kDone);
    return values;
  }
  // Runs rounds until there is no more work. Blocked links deliver nothing.
  using Pair = std::pair<NodeId, NodeId>;
  void run(const std::vector<Pair>& blocked) {
    for (int idle = 0; idle < 3; ++idle) {
      for (NodeId rank = 0; rank < nodes_.size(); ++rank) {
        if (turn(rank)) idle = 0;
        for (NodeId from = 0; from < nodes_.size(); ++from) {
          if (std::find(blocked.begin(), blocked.end(), Pair(from, rank)) != blocked.end()) continue;
          while (!link(from, rank).empty()) {
            const Frame frame = std::move(link(from, rank).front());
            link(from, rank).pop_front();
            channel(rank).on_frame(from, frame);
            idle = 0;
          }
        }
      }
    }
  }

  std::vector<Key> keys;

 private:
  std::deque<Frame>& link(NodeId from, NodeId to) { return links_[from * nodes_.size() + to]; }

  // Returns whether there was work to do.
  bool turn(NodeId rank) {
    now_ += 10'000;  // the next round may begin
    channel(rank).set_now(now_);
    const Micros next = channel(rank).on_tick();
    bool sent = false;
    channel(rank).outbox().drain([&](NodeId to, Frame frame) {
      link(rank, to).push_back(std::move(frame));
      sent = true;
    });
    return sent || next != kNever;
  }

  Micros now_ = 1'000'000;
  std::vector<std::deque<Frame>> links_;
  std::vector<std::unique_ptr<NodeState>> nodes_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

std::vector<float> all(int value) { return std::vector<float>(kKeys * kLength, static_cast<float>(value)); }

}  // namespace

TEST(waiting_bytes_are_bounded_by_the_keys_for_any_number_of_writes) {
  Nodes nodes(2);
  for (int i = 0; i < kRounds; ++i) {
    nodes.write();
    nodes.run({{0, 1}});
  }
  CHECK_EQ(nodes.refreshes(), kKeys);
  CHECK(nodes.read(1) == all(0));
  nodes.run({});
  CHECK_EQ(nodes.refreshes(), 2 * kKeys);
  CHECK(nodes.read(1) == all(kRounds));
}

TEST(a_blocked_link_does_not_delay_other_holders) {
  Nodes nodes(3);
  for (int i = 1; i <= kRounds; ++i) {
    nodes.write();
    nodes.run({{0, 1}});
    if (i % 100 == 0) CHECK(nodes.read(2) == all(i));
  }
  CHECK_EQ(nodes.refreshes(), kKeys + kRounds * kKeys);
  nodes.run({});
  CHECK(nodes.read(1) == all(kRounds));
}

TEST(wait_syncs_of_other_nodes_do_not_fill_a_blocked_link) {
  Nodes nodes(3);
  for (int i = 0; i < kRounds; ++i) {
    nodes.write();
    const Ticket sync = nodes.sync(2);
    nodes.run({{0, 1}, {1, 2}});
    CHECK(nodes.read(2) == all(i + 1));
    CHECK(!nodes.worker(2).is_done(sync));
  }
  CHECK_EQ(nodes.refreshes(), kKeys + kRounds * kKeys);
  nodes.run({});
  nodes.worker(2).waitall();
  CHECK(nodes.read(1) == all(kRounds));
}

TEST(patient_wait_syncs_of_all_nodes_share_the_refreshes_of_an_owner) {
  constexpr NodeId kHolders = 6;
  Nodes nodes(kHolders + 1);
  std::vector<Ticket> syncs;
  for (NodeId rank = 1; rank <= kHolders; ++rank) {
    nodes.write(rank);
    syncs.push_back(nodes.worker(rank).wait_sync(true));
  }
  nodes.run({});
  for (NodeId rank = 1; rank <= kHolders; ++rank) {
    CHECK(nodes.worker(rank).is_done(syncs[rank - 1U]));
    CHECK(nodes.read(rank) == all(kHolders));
  }
  CHECK_EQ(nodes.refreshes(), kHolders * kKeys);
}
