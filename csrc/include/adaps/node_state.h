// What the workers and the channels of a node share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adaps/directory.h"
#include "adaps/epochs.h"
#include "adaps/operation.h"
#include "adaps/stats.h"
#include "adaps/store.h"
#include "adaps/table.h"
#include "adaps/types.h"

namespace adaps {

class Channel;

// What the node knows of one of its workers.
struct WorkerState {
  std::atomic<Clock> clock{0};
  std::atomic<Clock> skipped{0};  // clocks that a restore skipped since a round last looked
  WorkerCounters counters;
  Completion completion;
};

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

// Collects the workers of a node for barriers and for the end; the last one to arrive sends word to node 0.
class Gathering {
 public:
  Gathering(int workers) : present_(workers) {}
  // A worker arrives, maybe saying that something failed; true if all that are left have.
  bool arrive(Operation& operation, bool failed = false);
  // A worker has left for good; true if now all that are left have arrived (and there is one).
  bool leave();
  // Whether one of those who wait said that something failed.
  bool failed() const;
  // Those who wait, to be told to go on; `failed_node` is one whose worker said so, if any.
  std::vector<Operation*> take(std::optional<NodeId> failed_node);
  // What the last take() was told; for a worker that went on since and is not yet back.
  std::optional<NodeId> failed_node() const;

 private:
  mutable std::mutex mutex_;
  int present_;
  bool failed_ = false;
  std::optional<NodeId> failed_node_;
  std::vector<Operation*> waiting_;
};

struct NodeState {
  NodeState(std::vector<TableSpec> specs, const Settings& settings_in);
  ~NodeState();

  // Throws PeerLost if a peer is.
  void check() const;
  std::optional<NodeId> lost_peer() const;
  void fail(NodeId peer, const std::string& reason);
  // Something that a closing node waits for may have happened.
  void announce_ending();

  const Settings settings;
  Tables tables;
  Directory directory;
  Store store;
  Epochs epochs;
  std::vector<std::unique_ptr<WorkerState>> workers;
  std::vector<std::unique_ptr<Channel>> channels;
  Gathering gathering;
  Trace trace;
  std::atomic<Micros> now{0};       // as the channels were last told
  std::atomic<bool> frozen{false};  // no key moves; see snapshot.h
  std::function<Micros()> clock = [this] { return now.load(std::memory_order_relaxed); };

  std::mutex ending_mutex;
  std::condition_variable ending_changed;

  std::atomic<bool> failed{false};
  mutable std::mutex failure_mutex;
  NodeId failed_peer = 0;
  std::string failure_reason;
};

}  // namespace adaps
