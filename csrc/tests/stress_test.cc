// The protocol with real threads, for sanitizers. Random calls on few keys have results that must add up
// exactly.
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "check.h"
#include "memory_cluster.h"
#include "node_fixtures.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::size_t kKeys = 24;
constexpr std::size_t kRounds = 4;
constexpr std::size_t kCallsPerRound = 1500;
// Number of keys, from the first on, that are written by pushes. Each worker sets one of the other keys.
constexpr std::size_t kPushedKeys = 16;

// Element w of a pushed key counts the pushes of worker w. The first element of a set key is the last value
// that was set.
class Player {
 public:
  Player(Worker& worker, std::size_t number, std::size_t players,
         std::vector<std::atomic<std::uint32_t>>& totals)
      : worker_(worker),
        number_(number),
        players_(players),
        totals_(totals),
        random_(static_cast<std::uint32_t>(number) + 1),
        pushed_(kPushedKeys),
        seen_(kKeys * players) {}

  void play() {
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < kCallsPerRound; ++i) call();
      worker_.waitall();
      pending_.clear();
      publish();
      worker_.wait_sync();
      worker_.barrier();
      worker_.wait_sync();
      check_totals();
      worker_.barrier();
    }
    worker_.finalize();
  }

 private:
  struct Pending {
    std::vector<Key> keys;
    std::vector<float> floats;
  };

  std::size_t below(std::size_t n) { return random_() % n; }

  void call() {
    switch (below(10)) {
      case 0:
      case 1:
      case 2:
        push();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        pull();
        break;
      case 7:
        signal();
        break;
      case 8:
        worker_.advance_clock();
        break;
      default:
        if (below(8) == 0) {
          worker_.wait_sync();
        } else {
          set();
        }
    }
  }

  std::vector<Key> some_keys(std::size_t among) {
    std::vector<Key> keys(1 + below(4));
    for (Key& key : keys)
      key = std::min(below(among), below(among));  // small keys are frequent and duplicates are likely
    return keys;
  }

  void push() {
    Pending& call = pending_.emplace_back();
    call.keys = some_keys(kPushedKeys);
    call.floats.assign(call.keys.size() * players_, 0.0F);
    const bool gradients = below(2) == 0;
    for (std::size_t i = 0; i < call.keys.size(); ++i) {
      call.floats[i * players_ + number_] = gradients ? -1.0F : 1.0F;
      ++pushed_[call.keys[i]];
    }
    // Asynchronous calls must be complete before their results are checked.
    const bool asynchronous = below(4) == 0;
    const Ticket ticket =
        gradients ? worker_.push_gradients(call.keys, call.floats.data(), call.floats.size(), asynchronous)
                  : worker_.push(call.keys, call.floats.data(), call.floats.size(), asynchronous);
    worker_.wait(ticket);
  }

  void set() {
    const Key key = kPushedKeys + number_ % (kKeys - kPushedKeys);
    if (number_ >= kKeys - kPushedKeys) return;  // another worker writes the key
    std::vector<float> values(2 * players_, 0.0F);
    values[0] = static_cast<float>(++last_set_);  // other workers may see this value for a moment
    values[players_] = static_cast<float>(++last_set_);
    const Key keys[] = {key, key};
    worker_.set(keys, values.data(), values.size(), false);
  }

  void pull() {
    Pending& call = pending_.emplace_back();
    call.keys = some_keys(kKeys);
    call.floats.assign(call.keys.size() * players_, -1.0F);
    worker_.wait(worker_.pull(call.keys, call.floats.data(), call.floats.size(), below(4) == 0));
    check_rows(call);
  }

  // Checks read-your-writes and monotonic reads.
  void check_rows(const Pending& call) {
    for (std::size_t i = 0; i < call.keys.size(); ++i) {
      const Key key = call.keys[i];
      const float* row = &call.floats[i * players_];
      for (std::size_t w = 0; w < players_; ++w) {
        float& seen = seen_[key * players_ + w];
        CHECK(row[w] >= seen);
        seen = row[w];
      }
      if (key < kPushedKeys) {
        CHECK_EQ(row[number_], static_cast<float>(pushed_[key]));
      } else if (key == kPushedKeys + number_) {
        CHECK_EQ(row[0], static_cast<float>(last_set_));
      }
    }
  }

  void signal() {
    const std::vector<Key> keys = some_keys(kKeys);
    const Clock start = worker_.current_clock() + static_cast<Clock>(below(3));
    worker_.intent(keys, start, start + 1 + static_cast<Clock>(below(4)));
  }

  void publish() {
    for (std::size_t key = 0; key < kPushedKeys; ++key) totals_[key * players_ + number_].store(pushed_[key]);
    if (number_ < kKeys - kPushedKeys) totals_[(kPushedKeys + number_) * players_].store(last_set_);
  }

  void check_totals() {
    Pending all;
    for (Key key = 0; key < kKeys; ++key) all.keys.push_back(key);
    all.floats.assign(kKeys * players_, -1.0F);
    worker_.pull(all.keys, all.floats.data(), all.floats.size(), false);
    for (std::size_t i = 0; i < all.floats.size(); ++i) {
      CHECK_EQ(all.floats[i], static_cast<float>(totals_[i].load()));
    }
  }

  Worker& worker_;
  const std::size_t number_;
  const std::size_t players_;
  std::vector<std::atomic<std::uint32_t>>& totals_;  // expected contents of each key at the end of a round
  std::minstd_rand random_;
  std::vector<std::uint32_t> pushed_;
  std::uint32_t last_set_ = 0;
  std::vector<float> seen_;
  std::vector<Pending> pending_;
};

std::vector<TableSpec> tables_for(std::size_t players) {
  return {TableSpec{.name = "t", .rows = kKeys, .length = players, .rule = {.lr = 1.0F}}};
}

Settings settings_for(NodeId nodes, int workers, int channels, Technique technique) {
  return {.nodes = nodes,
          .workers = workers,
          .channels = channels,
          .technique = technique,
          .max_rounds_per_second = 10'000.0};
}

template <typename WorkerOf>
void play(std::size_t nodes, std::size_t workers, WorkerOf worker_of) {
  const std::size_t players = nodes * workers;
  std::vector<std::atomic<std::uint32_t>> totals(kKeys * players);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < players; ++i) {
    threads.emplace_back([&, i] {
      try {
        Player(worker_of(i / workers, i % workers), i, players, totals).play();
      } catch (const std::exception& error) {
        check::fail(__FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void play_in_memory(NodeId nodes, int workers, int channels, Technique technique) {
  const auto players = static_cast<std::size_t>(nodes * workers);
  MemoryCluster cluster(tables_for(players), settings_for(nodes, workers, channels, technique));
  play(nodes, static_cast<std::size_t>(workers),
       [&](std::size_t node, std::size_t worker) -> Worker& { return cluster.worker(node, worker); });
  for (std::size_t node = 0; node < nodes; ++node) CHECK_EQ(cluster.node(node).epochs.outstanding(), 0);
}

}  // namespace

TEST(adaptive) { play_in_memory(3, 2, 2, Technique::kAdaptive); }
TEST(adaptive_with_many_workers_on_one_channel) { play_in_memory(2, 4, 1, Technique::kAdaptive); }
TEST(replication) { play_in_memory(2, 2, 2, Technique::kReplication); }
TEST(relocation) { play_in_memory(3, 2, 1, Technique::kRelocation); }
TEST(static_allocation) { play_in_memory(2, 2, 1, Technique::kStatic); }
TEST(full_replication) { play_in_memory(2, 2, 2, Technique::kFullReplication); }
TEST(one_node) { play_in_memory(1, 4, 2, Technique::kAdaptive); }

TEST(nodes_connected_by_sockets) {
  constexpr NodeId kNodes = 2;
  constexpr int kWorkers = 2;
  const Nodes nodes =
      connected(tables_for(kNodes * kWorkers), settings_for(kNodes, kWorkers, 2, Technique::kAdaptive));
  play(kNodes, kWorkers, [&](std::size_t node, std::size_t worker) -> Worker& {
    return nodes[node]->worker(static_cast<int>(worker));
  });
  close_all(nodes);
}
