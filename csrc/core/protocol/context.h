// State that the workers and channels of a node share. Workers and channels refer to this state, and it
// refers to neither. NodeState owns all three.
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
#include "storage/row_storage.h"
#include "store/directory.h"
#include "store/store.h"
#include "store/table.h"

namespace adaps {

// Records events of selected keys. It costs little if no key is selected.
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

// Counts the workers of a node that have arrived at a barrier or have left. When the last one has arrived or
// left, the node notifies node 0.
class LocalBarrier {
 public:
  explicit LocalBarrier(int workers) : present_(workers) {}
  // Records the arrival of a worker, which may report a failure. An earlier arrival of the worker, from which
  // it was interrupted, does not count. Returns whether all remaining workers have now arrived.
  bool arrive(Operation& operation, bool failed = false);
  // Records that a worker has left permanently. Returns whether other workers remain and all of them have
  // now arrived.
  bool leave(int worker);
  // Whether no worker is left.
  bool all_left() const;
  // Whether a worker that has arrived reported a failure.
  bool failed() const;
  // Ends the barrier and returns the operations that waited at it. `failed_node` is a node with a worker that
  // reported a failure, if there is one.
  std::vector<Operation*> take(std::optional<NodeId> failed_node);
  // The `failed_node` of the last take(), for the workers that waited at that barrier.
  std::optional<NodeId> failed_node() const;

 private:
  void withdraw(int worker);
  bool completes();

  mutable std::mutex mutex_;
  int present_;
  bool failed_ = false;
  bool has_arrived_ = false;  // whether the node has been told that all workers have arrived
  std::optional<NodeId> failed_node_;
  std::vector<Operation*> waiting_;
};

// How far this node is in leaving the cluster. The value only increases.
enum class Leaving : std::uint8_t {
  kNot,       // its workers train
  kWaiting,   // it has sent BARRIER with `for_good`, and serves its rows until all nodes have sent it
  kComplete,  // every node has left
};

// Creates the files of a node's tables, see open_row_storage.
using MakeStorage = std::function<std::unique_ptr<RowStorage>(const Tables&, const Settings&)>;

struct NodeContext {
  // Throws std::invalid_argument that names the wrong setting. `make_storage` is only called if the memory of
  // some table is limited.
  NodeContext(std::vector<TableSpec> specs, const Settings& settings_in, const MakeStorage& make_storage);
  NodeContext(const NodeContext&) = delete;
  NodeContext& operator=(const NodeContext&) = delete;

  Partition& partition_of(Key key) const {
    return *partitions[static_cast<std::size_t>(directory.channel(key))];
  }

  // The technique that manages a key. Every decision that depends on the technique uses this function.
  Technique technique_of(Key key) const {
    if (!mixed) return settings.technique;
    return decisions().managing(tables, key).technique.value_or(settings.technique);
  }

  // Records that a worker's clock has advanced, so that the worker no longer uses the rows of its last clock.
  void end_uses(int worker);
  // Records that a worker has left, and uses no rows any more.
  void end_all_uses(int worker);
  // The tick at which the present clock of a use's worker began. If several workers use the row, the smallest
  // tick at which the present clock of any worker began.
  std::uint64_t used_since(RowUse use) const;
  bool is_over(RowUse use) const { return use.last < used_since(use); }
  // Records that a worker uses a row of a table whose rows are retired.
  void use(RowUses& uses, std::uint64_t row, int worker) const {
    uses.use(row, tick.load(), static_cast<std::uint32_t>(worker),
             [this](RowUse use) { return is_over(use); });
  }
  // Records that an intent or an unfinished call needs the row of a key, if the row may be retired.
  void pin(Key key) const {
    if (RowUses* uses = uses_of(key)) uses->pin(key - tables.find(key).first_key());
  }
  void unpin(Key key) const {
    if (RowUses* uses = uses_of(key)) uses->unpin(key - tables.find(key).first_key());
  }
  // The uses of the rows of a key's table; null if they are never retired.
  RowUses* uses_of(Key key) const { return tables.any_uses() ? tables.find(key).uses() : nullptr; }
  // Wakes all channels, because rows are needed or have become free.
  void wake_channels() const;
  // Whether intent for a key has an effect, on its location or only on its place in memory.
  bool counts_intent(Key key) const {
    return decisions().uses_intent(*this, key) || (tables.any_limited() && tables.find(key).is_limited());
  }

  // Throws PeerLost if a peer was lost.
  void check() const;
  std::optional<NodeId> lost_peer() const;
  void fail(NodeId peer, const std::string& reason);
  // Wakes a closing node, so that it checks again whether all nodes have left.
  void announce_ending();

  const Settings settings;
  Tables tables;
  // Whether the technique of some rows or tables differs from the technique in the settings.
  const bool mixed;
  Directory directory;
  Store store;
  Epochs epochs;
  WorkerStates workers;
  std::vector<std::unique_ptr<Partition>> partitions;  // one for each channel
  const std::unique_ptr<RowStorage> storage;           // null unless the memory of some table is limited
  LocalBarrier barrier;
  std::atomic<Leaving> leaving{Leaving::kNot};
  Trace trace;
  std::atomic<std::uint64_t> tick{1};  // advances with the clock of each worker; see RowUses
  std::atomic<Micros> now{0};          // the last time that was set in a channel
  std::atomic<bool> frozen{false};     // no key moves; see snapshot.h
  std::atomic<bool> exact{false};      // no wire rounds changes; see wire_encoding.h
  std::function<Micros()> clock = [this] { return now.load(std::memory_order_relaxed); };

  std::mutex ending_mutex;
  std::condition_variable ending_changed;

  std::atomic<bool> failed{false};
  mutable std::mutex failure_mutex;
  NodeId failed_peer = 0;
  std::string failure_reason;
};

// A single node owns all keys, so intent has no effect.
inline bool Decisions::uses_intent(const NodeContext& node, Key key) const {
  return node.settings.nodes > 1 && node.technique_of(key) != Technique::kStatic;
}

inline bool Decisions::keeps_for_good(const NodeContext& node, Key key) const {
  return node.settings.nodes > 1 && node.technique_of(key) == Technique::kFullReplication;
}

inline void Decisions::end_pin(const NodeContext& node, Key key) const { node.unpin(key); }

}  // namespace adaps
