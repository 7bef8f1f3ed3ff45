// A simulated world while it runs: workers that call, channels that act, messages that travel.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/random.h"
#include "node/sampling.h"
#include "node/snapshot.h"
#include "protocol/operation.h"
#include "simulation/cluster.h"
#include "simulation/history.h"
#include "simulation/spec.h"

namespace adaps::simulation {

struct Intent {
  NodeId node;
  int worker;
  std::uint32_t key;
  Clock start;
  Clock end;
};

class World {
 public:
  // `spec` must outlive the world. Given a log, everything that happens is written there.
  explicit World(const WorldSpec& spec, std::vector<std::string>* log = nullptr);

  // Until nothing happens any more; throws Violation if that does not come, or a worker still waits then.
  void run_until_quiet();
  // After that: signals intent again for a worker that has it, as far as the end of its clock's `length`.
  void extend_intent(const Intent& intent, Clock length);
  // Scheduling by hand: what a worker does, and what follows on its node from a step of the cluster.
  void perform(NodeId node, int worker, const Call& call);
  void settle(NodeId node);
  // All workers' clocks go beyond all intents.
  void end_all_intents();
  void advance_clocks(Clock by);

  const WorldSpec& spec() const { return spec_; }
  Cluster& cluster() { return cluster_; }
  const History& history() const { return history_; }
  // All that was signalled.
  const std::vector<Intent>& intents() const { return intents_; }
  Clock clock(NodeId node, int worker) { return state(node, worker).clock.load(); }

 private:
  struct Pending {  // an operation that is not complete
    Pending(OperationKind kind, int worker, Completion& completion) : operation(kind, worker, completion) {}

    Operation operation;
    std::size_t record = 0;
    std::vector<Key> keys;
    std::vector<std::uint32_t> positions;  // of the keys in the world's list
    std::vector<float> floats;
  };

  struct PreparedSample {
    Sampler* sampler;
    Sample sample;
  };

  // What samples of a pool were.
  struct PoolSeen {
    std::uint64_t passes = 0;     // complete ones
    std::vector<Key> handed_out;  // in this one
    std::vector<Key> before;      // in the one before it, in order
  };

  // A row that a worker has pulled, and what its last look at it has seen.
  struct Pulled {
    std::int64_t seen = 0;
    std::vector<float> row;
  };

  struct Caller {  // a worker
    NodeId node = 0;
    int worker = 0;
    std::uint32_t number = 0;
    const Program* program = nullptr;
    std::size_t next = 0;
    std::vector<std::unique_ptr<Pending>> pending;
    Pending* submitting = nullptr;
    int parts_left = 0;
    const Pending* waits_for = nullptr;
    bool waits_for_all = false;
    bool waits_for_others = false;
    bool waits_for_room = false;                     // before it submits
    std::size_t snapshots = 0;                       // that it took
    std::vector<std::unique_ptr<Sampler>> samplers;  // by table
    std::vector<PoolSeen> pools;                     // by table
    std::deque<PreparedSample> samples;
    std::map<Key, Pulled> pulled;

    bool blocked() const { return waits_for != nullptr || waits_for_all || waits_for_others; }
    bool finished() const { return next == program->size() && pending.empty() && !blocked(); }
  };

  WorkerState& state(NodeId node, int worker) {
    return *cluster_.node(node).workers[static_cast<std::size_t>(worker)];
  }
  void perform(Caller& caller, const Call& call);
  void call_operation(Caller& caller, const Call& call);
  void submit_part(Caller& caller);
  void signal_intent(Caller& caller, const Call& call);
  void prepare_sample(Caller& caller, const Call& call);
  void check_pool(Caller& caller, std::size_t table, const std::vector<Key>& keys);
  void start_pull_of_sample(Caller& caller, Pending& pending);
  void start_pull(Caller& caller, Pending& pending);
  std::uint32_t position_of(Key key) const;
  void advance_clock(Caller& caller, Clock by);
  void arrive_at_barrier(Caller& caller);
  void take_snapshot(Caller& caller);
  bool is_published(std::size_t number) const;
  void tell_changes(NodeState& node, NodeId rank, std::size_t number);
  void check_snapshot(const std::vector<int>& owners) const;
  void check_export(const std::map<Key, std::vector<float>>& owned);
  void fill(const Call& call, Pending& pending);
  void complete(Caller& caller, Pending& pending);
  // Looks at what was completed on a node by the last step.
  void collect(NodeId node);
  void continue_later(Caller& caller);
  void wake_later(NodeId node, int channel);
  void freeze_after(const NetworkLink& link, MessageType type);
  void check_exchange(const NetworkLink& link, const Entry& entry);
  void check_room(const NetworkLink& link, const Entry& entry);
  bool calls_with(NodeId node, Key key) const;
  bool any_sync() const;

  const WorldSpec& spec_;
  std::vector<std::string>* const log_;
  Cluster cluster_;
  Random random_;
  std::vector<std::unique_ptr<Caller>> callers_;
  const std::uint32_t first_caller_timer_;
  History history_;
  std::vector<Intent> intents_;
  std::vector<std::uint32_t> pushes_;  // so far, by key
  std::uint32_t sets_ = 0;
  std::size_t at_weak_barrier_ = 0;
  struct Snapshot {
    NodeId nodes = 0;                        // that have taken what they own
    std::vector<int> owners;                 // by key
    std::map<Key, std::vector<float>> rows;  // that any node owns
  };
  std::vector<Snapshot> snapshots_;
  // With each snapshot goes an export of all tables: by node and table what it tells of, and what the exports
  // that were not given up have told, the later ones over the earlier ones.
  std::map<std::pair<NodeId, std::size_t>, ChangedRows> changed_;
  std::map<Key, std::vector<float>> told_;
  // The sender's clock when a change of a key last went, by sender, receiver, key and type.
  std::map<std::tuple<NodeId, NodeId, Key, MessageType>, Clock> exchanged_;
  Step step_ = 0;
  Step step_limit_ = 0;
};

}  // namespace adaps::simulation
