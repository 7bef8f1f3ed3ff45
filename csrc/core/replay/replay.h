// Simulates a training: it replays the training's accesses with the parameter server's real code on simulated
// machines and links.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "node/node_state.h"
#include "node/worker.h"
#include "replay/accesses.h"
#include "replay/processor.h"
#include "transport/simulated_network.h"
#include "transport/transport.h"

namespace adaps {

// Costs of actions, in microseconds of a core of speed 1.
struct ReplayCosts {
  double call = 20.0;      // call of a worker, or one wake-up of a channel's thread
  double wake = 0.0;       // wake-up of a thread after it has waited
  double resume = 0.0;     // additional computing time of a worker after it has waited
  double key = 0.0;        // key that a worker reads, writes or signals intent for
  double value = 0.0;      // byte of a row that is read or written
  double copy = 0.0;       // key that a worker accesses in a replica, in addition to `key`
  double elsewhere = 0.0;  // key that a worker requests from another node, in addition to `key`
  double intent = 0.0;     // begin and end of an intent, at the channel
  double message = 0.0;    // request or answer, at its sender and at its receiver
  double upkeep = 0.0;     // message that moves or copies a row or updates copies, likewise
  double frame = 0.0;      // frame, likewise
  double byte = 0.0;       // byte of a frame, likewise
};

struct Machine {
  // The node that identifies the host. All nodes of a host share the cores of the host's first node.
  std::optional<NodeId> host = std::nullopt;
  int cores = 1;
  double speed = 1.0;
  // bandwidth shared by all links: bytes per microsecond
  double card = std::numeric_limits<double>::infinity();
};

// A change of a node after its first worker has done `step` steps.
struct Incident {
  enum class Kind : std::uint8_t { kSpeed, kStall, kLoss };
  Kind kind = Kind::kSpeed;
  NodeId node = 0;
  std::size_t step = 0;
  double amount = 1.0;  // kSpeed: new speed, relative to its machine; kStall: micros
};

struct ReplaySettings {
  Technique technique = Technique::kAdaptive;
  bool timing = true;
  double max_rounds_per_second = 500.0;
  int workers = 1;  // workers per node
  int channels = 1;
  // by table: number of batches for which intent is signalled in advance; 0: no intent. Intent for dense
  // tables is signalled once, for all steps.
  std::vector<std::size_t> lookahead{};
  // Number of first steps of every worker that are not counted. Counting ends when the first worker reaches a
  // step whose lookahead extends beyond the worker's last step. Without a value, everything is counted, from
  // the first step until no frame is on the network after the last step.
  std::optional<std::size_t> warm_up;
  // Number of steps of an epoch; 0: no epochs. After each epoch, workers wait until all writes are visible on
  // all nodes, and then for each other. Intents are not signalled beyond the end of an epoch.
  std::size_t epoch = 0;
  // Steps, counted from 1 and sorted, after which a worker requests that all changes become visible and then
  // waits for its previous request. Without effect on a single node.
  std::vector<std::size_t> requests{};
  double compute = 10'000.0;  // computing time of a step: microseconds of a core of speed 1
  ReplayCosts costs{};
  std::vector<Machine> machines{};  // by node
  std::vector<LinkTraits> links{};  // one for each pair of sender and receiver, sorted by sender
  std::uint64_t seed = 1;
  std::size_t traced_steps = 0;  // number of steps of each worker that are recorded as spans
  std::vector<Incident> incidents{};
  Micros peer_timeout = 5'000'000;
};

struct NodeReplay {
  std::uint64_t steps = 0;
  // Time of the node's workers, by activity:
  Micros computing = 0;
  Micros visiting = 0;  // time in calls in which this node works
  Micros waiting = 0;   // time in calls that wait for other nodes
  // the part of `waiting` during which a frame to or from this node was on the network
  Micros on_network = 0;
  // Times since counting began:
  Micros last_step = 0;                // time when a worker completed its last step
  std::optional<Micros> lost;          // time when this node was lost
  std::optional<NodeId> peer_lost;     // node in the PeerLost that its calls raise
  std::optional<Micros> peer_lost_at;  // time when its calls began to raise PeerLost
  double working = 0.0;  // working time of its workers' threads, in microseconds of the node's own cores
  // Counters as in Node::stats and Node::table_stats:
  std::map<std::string, double> counters;
  std::vector<std::map<std::string, double>> tables;
};

// One activity of a thread, or the transfer of a frame.
struct ReplaySpan {
  enum class Kind : std::uint8_t {
    kAnnounce,
    kPull,
    kCompute,
    kPush,
    kRequest,
    kSynchronize,
    kMeet,
    kWait,
    kChannel,
    kFrame
  };
  Kind kind;
  NodeId node;
  std::uint32_t thread;  // channels first, then workers; for a frame, the receiving node
  std::uint64_t amount;  // number of keys or bytes
  Micros begin, end;
};
const char* name_of(ReplaySpan::Kind kind);

struct ReplayResult {
  Micros elapsed = 0;  // time when the last worker completed its last counted step
  std::vector<NodeReplay> nodes;
  std::vector<ReplaySpan> spans;
};

// Replays the training. In each step, a worker does the same as with autoada:
// 1. It signals intent for the batch that is `lookahead` steps ahead.
// 2. It pulls dense tables, except in its first step, and then its rows, table after table.
// 3. It computes.
// 4. It pushes the gradients of its rows and of dense tables.
// 5. It pulls the dense tables again, to read their new values.
// 6. It advances its clock.
//
// Workers start with different delays and do not wait for each other. A lost node sends nothing any more.
// Calls of the other nodes raise PeerLost as soon as one of them has noticed the loss. Such a call ends its
// worker.
class Replay {
 public:
  // `accesses` must outlive this object. Throws std::invalid_argument if they are too short for the settings.
  Replay(const Accesses& accesses, const ReplaySettings& settings);

  // Runs the replay; may be called once. `interrupted` is called several times per second and may throw.
  ReplayResult run(const std::function<void()>& interrupted = [] {});

 private:
  // One action of a worker in a step. Pull and push refer to all rows of one table that the step accesses.
  struct Action {
    ReplaySpan::Kind kind;
    std::size_t table = 0;
    std::span<const Key> keys;
  };
  struct WorkerThread {
    std::unique_ptr<Worker> worker;
    const WorkerAccesses* accesses;
    std::size_t last_step;
    std::size_t step = 0;
    std::vector<Action> actions;  // actions of the current step
    std::size_t next = 0;         // index of the next action
    bool slept = false;           // the worker has waited since its last call
    bool cold = false;            // the worker has waited since its last computation
    bool waits = false;
    bool at_barrier = false;  // the worker waits for all other workers
    double owed = 0.0;        // time of its last call that was known only at its end; added to its next work
    bool ended = false;       // the worker has no step left, or a call has raised PeerLost
    Ticket ticket = kDone;
    Ticket requested = kDone;  // its last request that all changes become visible
    Micros began = 0;          // begin of the current action
    Micros network_then = 0;
  };
  struct Received {
    NodeId from;
    Frame frame;
  };
  struct Handled {  // numbers of messages that a channel has sent or received
    std::uint64_t messages = 0;
    std::uint64_t upkeep = 0;  // upkeep messages, which `messages` does not include
  };
  struct ChannelThread {
    bool busy = false;
    bool woken = false;
    Micros due = 0;
    Micros began = 0;
    Handled handled;  // counts before this wake-up
    std::vector<Received> inbox;
    std::vector<std::pair<NodeId, Frame>> sending;  // frames to send at the end of this wake-up
  };
  struct Node {
    std::unique_ptr<NodeState> state;
    std::size_t host = 0;
    std::size_t first_thread = 0;  // index of its first thread in the host's processor
    bool stalled = false;
    std::vector<ChannelThread> channels;
    std::vector<WorkerThread> workers;
    NodeReplay times;
    bool lost = false;
    // for lost nodes, the time when this node last received a frame after the loss
    std::map<NodeId, Micros> heard;
    std::size_t under_way = 0;  // number of frames on the network to or from the node
    Micros network_since = 0;
    Micros network_time = 0;  // total time with at least one such frame
  };

  struct LostNode {
    NodeId rank;
    Micros at;
  };
  struct Host {
    std::unique_ptr<Processor> processor;
    std::vector<NodeId> nodes;
  };

  void make_hosts();
  void set_up();
  void run_until_quiet();
  bool advance();  // processes one event; false if none is left
  void arrive(const NetworkLink& link, std::span<const std::byte> frame);
  bool has_ended() const;
  void work(NodeId rank, std::size_t thread, double micros);
  void end_work(Host& host);
  void set_timer_of(const Host& host);

  void begin_turn(NodeId rank, std::size_t channel, bool slept);
  void end_turn(NodeId rank, std::size_t channel);
  std::uint64_t send_all(NodeId rank, std::size_t channel);  // returns the number of bytes
  void queue(NodeId rank, std::size_t channel, NodeId to, Frame frame);
  Handled handled_by(const Channel& channel) const;

  void begin_work(NodeId rank, std::size_t worker);
  void end_work_of(NodeId rank, std::size_t worker);
  void resume(NodeId rank, std::size_t worker);
  void continue_worker(NodeId rank, std::size_t worker);
  void check_calls(NodeId rank);
  void end_worker(WorkerThread& thread);
  void release_workers_if_all_wait();
  // Cost of those of the worker's keys so far that were accessed in replicas or requested from other nodes.
  double micros_of_accesses(NodeId rank, std::size_t worker, std::size_t table) const;

  void apply_incident(NodeId rank, std::size_t step);
  void end_stall(NodeId rank);
  void check_lost_nodes(NodeId rank);
  void note_failure(NodeId rank);
  void announce(WorkerThread& thread, std::size_t table, std::size_t step);
  // The steps for which intent is signalled in the current step: the first of them, and the one after the
  // last.
  std::pair<std::size_t, std::size_t> announced_in(const WorkerThread& thread, std::size_t table) const;
  std::size_t keys_announced_in(const WorkerThread& thread) const;
  // The rows of a table that the worker accesses in a step. Empty for dense tables and after its last step.
  std::span<const Key> rows_of(const WorkerThread& thread, std::size_t table, std::size_t step) const;
  std::vector<Action> actions_of(const WorkerThread& thread) const;
  std::size_t floats_of(const Action& action) const;

  void begin_counting();
  ReplayResult counted();
  void trace(ReplaySpan::Kind kind, NodeId rank, std::size_t thread, std::uint64_t amount, Micros begin,
             Micros end);
  Micros network_time(const Node& node) const;

  // Number of a timer of the node: of a thread, or one of its other timers.
  std::uint32_t timer(NodeId rank, std::size_t thread) const;

  const Accesses& accesses_;
  const ReplaySettings settings_;
  const std::size_t threads_;  // number of threads of a node
  SimulatedNetwork network_;
  Random random_;
  std::vector<Node> nodes_;
  std::vector<Host> hosts_;
  std::vector<std::vector<Key>> dense_;  // keys by table
  std::vector<float> pulled_;            // buffer for the pulls of all workers; its contents are not used
  std::vector<float> gradients_;         // gradients that all workers push
  std::size_t warm_ = 0;                 // number of workers that have completed the warm-up
  std::size_t ended_ = 0;                // number of workers that have no step left, or were lost
  std::vector<LostNode> lost_;
  Micros counting_since_ = 0;
  bool tracing_ = false;
  std::size_t traced_until_ = 0;  // step of a worker at which tracing ends
  ReplayResult result_;
};

}  // namespace adaps
