// A running simulated world: workers that make calls, channels that act, and messages on the network.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
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
  // `spec` must outlive the world. Writes all events to the log, if it is not null.
  explicit World(const WorldSpec& spec, std::vector<std::string>* log = nullptr);

  // Runs until no event is left. Throws Violation if this does not happen, or if a worker still waits then.
  void run_until_quiet();
  // Must be called after run_until_quiet(). Signals an intent again, from the worker's clock until `length`
  // clocks later.
  void extend_intent(const Intent& intent, Clock length);
  // Manual scheduling: perform() makes a worker's call, and settle() completes the consequences of a step on
  // a node.
  void perform(NodeId node, int worker, const Call& call);
  void settle(NodeId node);
  // Advances all workers' clocks beyond all intents.
  void end_all_intents();
  void advance_clocks(Clock by);

  const WorldSpec& spec() const { return spec_; }
  Cluster& cluster() { return cluster_; }
  const History& history() const { return history_; }
  // All intents that were signalled.
  const std::vector<Intent>& intents() const { return intents_; }
  Clock clock(NodeId node, int worker) { return state(node, worker).clock.load(); }
  // The key of a position in the list of keys, as a node knows it, or as any node knows it. There is none if
  // the row has an id to which no row was assigned.
  std::optional<Key> key_at(NodeId node, std::uint32_t position);
  std::optional<Key> key_of(std::uint32_t position);
  // The content of an id ends when its row is retired. Each position of the list of keys therefore has a
  // number of lives, which are numbered together. The first life of a position has the position's number.
  std::uint32_t life(std::uint32_t position) const { return lives_[position]; }
  // Number of lives of all positions.
  std::uint32_t lives() const { return next_life_; }
  // Decodes the optimizer state of a row.
  StateContent read_state(Key key, std::span<const float> state);

 private:
  struct Pending {  // an incomplete operation
    Pending(OperationKind kind, int worker, Completion& completion) : operation(kind, worker, completion) {}

    Operation operation;
    std::size_t record = 0;
    std::vector<Key> keys;
    std::vector<std::uint32_t> positions;  // indices of the keys in the world's list
    std::vector<std::uint32_t> lives;      // lives of the positions at the start
    std::vector<float> floats;
    std::vector<std::int64_t> rows;       // result of a call for rows of ids
    std::set<std::uint32_t> used_before;  // positions that were used before a call for used ids
    Clock clock = 0;                      // clock of the caller at the start
    Step start = 0;
    std::vector<Step> used_since;        // by node: the first step of uses that may continue at the start
    std::vector<std::uint32_t> refused;  // by position: how often its id was not admitted before the start
    std::size_t retired = 0;             // number of rows of the world that were retired before the start
    std::set<std::uint32_t> assigned{};  // positions whose ids had rows before the start
  };

  // An intent, or an ended call, that needs the row of a position, which must not be retired before.
  struct Need {
    NodeId node;
    int worker;
    std::uint32_t position;
    Clock end;
  };

  struct PreparedSample {
    Sampler* sampler;
    Sample sample;
  };

  // A table, and the number or the id of a row.
  using RowName = std::pair<std::size_t, std::int64_t>;

  // Observed samples of a pool.
  struct PoolSeen {
    std::uint64_t passes = 0;     // number of complete passes
    std::vector<Key> handed_out;  // in the current pass
    std::vector<Key> before;      // in the previous pass, sorted
  };

  // A row that a worker has pulled, and the state that its last call of changed() stored.
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
    bool waits_for_room = false;                     // the worker waits before it submits a call
    std::size_t snapshots = 0;                       // number of snapshots that it took
    std::vector<std::uint64_t> counted;              // by table: number of rows before the snapshot
    std::vector<std::unique_ptr<Sampler>> samplers;  // by table
    std::vector<PoolSeen> pools;                     // by table
    std::deque<PreparedSample> samples;
    std::map<Key, Pulled> pulled;
    std::vector<bool> found;  // by position: whether it has found the row of the id in its present clock
    Step advanced = 0;        // step in which its clock began

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
  void count_rows(Caller& caller);
  void take_snapshot(Caller& caller);
  bool is_published(std::size_t number) const;
  void tell_changes(NodeState& node, NodeId rank, std::size_t number);
  void check_snapshot(const std::vector<int>& owners) const;
  void check_export(const std::map<RowName, std::vector<float>>& owned);
  void use_rows(Caller& caller, std::span<const std::uint32_t> positions);
  void note_lives(Pending& pending) const;
  void fill(const Caller& caller, const Call& call, Pending& pending);
  void start_rows_of_call(Caller& caller, const Call& call, Pending& pending);
  void check_rows(Caller& caller, const Pending& pending);
  void check_used_ids(const Pending& pending) const;
  void check_full(const Pending& pending, NodeId full) const;
  bool may_be_forgotten(const Table& table, std::uint32_t position) const;
  bool may_use(const Caller& caller, std::uint32_t position);
  bool is_needed(NodeId node, std::uint32_t position);
  // Pins the row of a position for an intent, if the row may be retired.
  void need(NodeId node, int worker, std::uint32_t position, Clock end);
  void note_use(NodeId node, std::uint32_t position) { used_[node][position] = step_; }
  // Ends the lives of the ids whose rows a node has retired, and checks that no worker may use them.
  void end_lives(NodeId node);
  std::vector<Step> used_since() const;
  // Position of a row that a checkpoint names by its number or id; nullopt if calls do not use the row.
  std::optional<std::uint32_t> named_position(const Table& table, std::int64_t name) const;
  void fill_state(std::uint32_t position, std::span<float> state, Record& record);
  void complete(Caller& caller, Pending& pending);
  // Processes the operations that the last step completed on a node.
  void collect(NodeId node);
  void continue_later(Caller& caller);
  void wake_later(NodeId node, int channel);
  void freeze_after(const NetworkLink& link, MessageType type);
  void check_exchange(const NetworkLink& link, const Entry& entry);
  void check_room(const NetworkLink& link, const Entry& entry);
  void check_capacity(NodeId rank);
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
  // Rows that calls returned for ids.
  std::map<std::uint32_t, Key> assigned_;
  std::map<Key, std::uint32_t> assigned_to_;
  std::vector<std::uint32_t> lives_;  // by position
  std::uint32_t next_life_;
  std::vector<std::size_t> retired_;  // number of rows that each node has retired
  std::vector<Need> needs_;
  // By position: how often its id was not admitted since a row was retired last. When an id gets a row, its
  // requests are forgotten.
  std::vector<std::uint32_t> refused_;
  std::vector<std::vector<Step>> used_;  // by node and position: the last step in which it may be used
  std::set<std::uint32_t> accessed_;     // positions of the keys that calls have read or written
  std::map<std::uint32_t, std::uint32_t> pushes_;  // number of pushes so far, by life
  std::uint32_t sets_ = 0;
  std::uint32_t state_sets_ = 0;
  std::size_t at_weak_barrier_ = 0;
  struct Snapshot {
    NodeId nodes = 0;                            // number of nodes that have taken their owned rows
    std::vector<int> owners;                     // by key
    std::map<RowName, std::vector<float>> rows;  // rows of all nodes
  };
  std::vector<Snapshot> snapshots_;
  // Each snapshot includes an export of all tables. changed_ has the rows to export by node and table. told_
  // has the merged contents of all exports that were not discarded.
  std::map<std::pair<NodeId, std::size_t>, ChangedRows> changed_;
  std::map<RowName, std::vector<float>> told_;
  // The sender's clock at the last message with a change of a key, by sender, receiver, key and type.
  std::map<std::tuple<NodeId, NodeId, Key, MessageType>, Clock> exchanged_;
  Step step_ = 0;
  Step step_limit_ = 0;
};

}  // namespace adaps::simulation
