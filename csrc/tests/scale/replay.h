// A training's access stream, replayed by the parameter server's real code on a simulated network.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/random.h"
#include "node/node_state.h"
#include "node/worker.h"
#include "protocol/channel.h"
#include "protocol/message.h"
#include "scale/stream.h"
#include "simulation/entries.h"
#include "transport/simulated_network.h"

namespace adaps::scale {

struct ReplaySettings {
  Technique technique = Technique::kAdaptive;
  std::size_t lookahead = 20;  // batches that are announced ahead of their use
  std::size_t warm_up = 10;    // first steps of every node, which are not counted
  Micros step = 10'000;        // what a step computes for
  LinkTraits link{.latency = 250.0, .jitter = 0.0, .bytes_per_micro = 1250.0};
  std::uint64_t seed = 1;
};

// Sums over all nodes, in the counted steps.
struct ReplayResult {
  struct Traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };

  std::uint64_t node_steps = 0;  // steps of all nodes that were counted
  Micros elapsed = 0;            // virtual time that they took
  std::uint64_t pulled_local = 0, pulled_replica = 0, pulled_remote = 0;  // rows, without dense tables
  Micros waited = 0;  // of all workers, in pulls and pushes
  std::uint64_t relocations = 0, replicas_set_up = 0, replicas_dropped = 0;
  std::uint64_t frames = 0;
  std::array<Traffic, kMessageTypes> by_type;
  Traffic rows, dense;               // the same by what it is about; marks and barriers are neither
  std::uint64_t resident_bytes = 0;  // most of any node, at the end
};

// Every node is a process with one worker that does what autoada does in a step: it announces the batch that
// is `lookahead` ahead, pulls the dense parameters and its rows, computes, pushes gradients of both, and
// advances its clock. Nodes begin at different moments of a step and do not wait for each other.
class Replay {
 public:
  // `stream` must outlive it. Throws std::invalid_argument if it is too short for the settings.
  Replay(const AccessStream& stream, const ReplaySettings& settings);

  // Until a node has no batch left to announce.
  ReplayResult run();

 private:
  enum class Phase : std::uint8_t { kPullDense, kPullRows, kCompute, kPushDense, kPushRows, kEnd };

  struct Node {
    std::unique_ptr<NodeState> state;
    std::unique_ptr<Worker> worker;
    Phase phase = Phase::kPullDense;
    std::size_t step = 0;
    Ticket ticket = kDone;
    Micros began = 0;  // the call that it waits for
  };

  void set_up();
  void announce(NodeId rank, std::size_t step);
  void run_until_quiet();
  // One event; false if nothing is left.
  bool advance();
  void tick(NodeId rank);
  void proceed(NodeId rank);
  // What the node's phase does; false if it goes on later.
  bool begin(NodeId rank);
  Ticket pull_rows(NodeId rank);
  void begin_counting();
  ReplayResult counted();

  Channel& channel(NodeId rank) { return *nodes_[rank].state->channels[0]; }
  std::uint32_t worker_timer(NodeId rank) const { return static_cast<std::uint32_t>(nodes_.size()) + rank; }

  const AccessStream& stream_;
  const ReplaySettings settings_;
  SimulatedNetwork network_;
  Random random_;
  std::vector<Node> nodes_;
  std::unique_ptr<simulation::EntryCutter> cutter_;
  std::vector<Key> dense_;  // keys
  std::size_t dense_floats_ = 0;
  std::vector<float> pulled_;     // by all workers: nobody looks at it
  std::vector<float> gradients_;  // of all workers
  std::size_t last_step_;
  std::size_t finished_ = 0;  // nodes that have no step left
  std::size_t warm_ = 0;      // nodes that are warm
  ReplayResult result_;
};

}  // namespace adaps::scale
