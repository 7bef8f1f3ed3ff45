// What the workers and the channels of a node share. Both refer to it and it refers to neither; NodeState
// owns all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/decisions.h"
#include "protocol/epochs.h"
#include "protocol/operation.h"
#include "protocol/partition.h"
#include "protocol/worker_state.h"
#include "store/directory.h"
#include "store/store.h"
#include "store/table.h"

namespace adaps {

// Events of chosen keys. Cheap when nothing is traced.
class Trace {
 public:
  void choose(std::span<const Key> keys);
  bool wants(Key key) const { return active_.load(std::memory_order_relaxed) && contains(key); }
  void add(Micros time, Key key, TraceKind kind);
  std::vector<TraceEvent> events() const;

 private:
  bool contains(Key key) const;

  std::atomic<bool> active_{false};
  mutable std::mutex mutex_;
  std::vector<Key> keys_;
  std::vector<TraceEvent> events_;
};

// Counts the workers of a node that have arrived at a barrier or have left; when the last one has, the node
// tells node 0.
class LocalBarrier {
 public:
  explicit LocalBarrier(int workers) : present_(workers) {}
  // A worker arrives, maybe saying that something failed; true if all that are left have.
  bool arrive(Operation& operation, bool failed = false);
  // A worker has left for good; true if others remain and all of them have arrived.
  bool leave();
  // Whether no worker is left.
  bool all_left() const;
  // Whether a worker that has arrived said that something failed.
  bool failed() const;
  // Ends the barrier and returns the operations that waited at it. `failed_node` is a node on which a worker
  // said that something failed, if there is one.
  std::vector<Operation*> take(std::optional<NodeId> failed_node);
  // The `failed_node` of the last take(), for the workers that waited at that barrier.
  std::optional<NodeId> failed_node() const;

 private:
  mutable std::mutex mutex_;
  int present_;
  bool failed_ = false;
  std::optional<NodeId> failed_node_;
  std::vector<Operation*> waiting_;
};

// How far this node has left the cluster. The value only increases.
enum class Leaving : std::uint8_t {
  kNot,       // its workers train
  kWaiting,   // it has sent BARRIER with `for_good`, and serves its rows until every node has
  kComplete,  // every node has left
};

struct NodeContext {
  // Throws std::invalid_argument naming the setting that is wrong.
  NodeContext(std::vector<TableSpec> specs, const Settings& settings_in);
  NodeContext(const NodeContext&) = delete;
  NodeContext& operator=(const NodeContext&) = delete;

  Partition& partition_of(Key key) const {
    return *partitions[static_cast<std::size_t>(directory.channel(key))];
  }

  // By which technique a key is managed: every decision that depends on it asks here.
  Technique technique_of(Key key) const {
    if (!mixed) return settings.technique;
    return decisions().managing(tables, key).technique.value_or(settings.technique);
  }

  // Throws PeerLost if a peer is.
  void check() const;
  std::optional<NodeId> lost_peer() const;
  void fail(NodeId peer, const std::string& reason);
  // Wakes a closing node, so that it looks again whether all have left.
  void announce_ending();

  const Settings settings;
  Tables tables;
  // Whether a table, or some rows of it, have another technique than the settings.
  const bool mixed;
  Directory directory;
  Store store;
  Epochs epochs;
  WorkerStates workers;
  std::vector<std::unique_ptr<Partition>> partitions;  // one for each channel
  LocalBarrier barrier;
  std::atomic<Leaving> leaving{Leaving::kNot};
  Trace trace;
  std::atomic<Micros> now{0};       // as the channels were last told
  std::atomic<bool> frozen{false};  // no key moves; see snapshot.h
  std::atomic<bool> exact{false};   // no wire rounds changes; see encoded.h
  std::function<Micros()> clock = [this] { return now.load(std::memory_order_relaxed); };

  std::mutex ending_mutex;
  std::condition_variable ending_changed;

  std::atomic<bool> failed{false};
  mutable std::mutex failure_mutex;
  NodeId failed_peer = 0;
  std::string failure_reason;
};

// Alone, a node owns every key.
inline bool Decisions::uses_intent(const NodeContext& node, Key key) const {
  return node.settings.nodes > 1 && node.technique_of(key) != Technique::kStatic;
}

inline bool Decisions::keeps_for_good(const NodeContext& node, Key key) const {
  return node.settings.nodes > 1 && node.technique_of(key) == Technique::kFullReplication;
}

}  // namespace adaps
