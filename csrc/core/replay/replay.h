// A training's accesses, replayed by the parameter server's real code on simulated machines and links.
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

// Microseconds of a core of speed 1.
struct ReplayCosts {
  double call = 20.0;      // of a worker, or a turn of a channel's thread
  double wake = 0.0;       // a thread goes on after it has waited for something
  double resume = 0.0;     // what a worker computes after it has waited takes longer by that
  double key = 0.0;        // that a worker reads, writes or announces
  double value = 0.0;      // a byte of a row that is read or written
  double copy = 0.0;       // beside the key, if the worker reads or writes a copy of another node's row
  double elsewhere = 0.0;  // beside the key, at the worker, if another node is asked
  double intent = 0.0;     // that a channel acts on: its begin and its end
  double message = 0.0;    // a question or an answer, at each end
  double upkeep = 0.0;     // a message that moves or copies a row or keeps copies alike, at each end
  double frame = 0.0;      // at each end
  double byte = 0.0;       // of a frame, at each end
};

struct Machine {
  // Nodes of one host, which is called after one of them, share its cores: those of its first node.
  std::optional<NodeId> host = std::nullopt;
  int cores = 1;
  double speed = 1.0;
  double card = std::numeric_limits<double>::infinity();  // bytes per microsecond of all links together
};

// What befalls a node once its first worker has done so many steps.
struct Incident {
  enum class Kind : std::uint8_t { kSpeed, kStall, kLoss };
  Kind kind = Kind::kSpeed;
  NodeId node = 0;
  std::size_t step = 0;
  double amount = 1.0;  // kSpeed: the part of its machine's speed that it has from now on; kStall: micros
};

struct ReplaySettings {
  Technique technique = Technique::kAdaptive;
  bool timing = true;
  double max_rounds_per_second = 500.0;
  int workers = 1;  // of a node
  int channels = 1;
  std::vector<std::size_t> lookahead{};  // by table: batches announced ahead, 0 for none; dense ones for good
  // First steps of every worker, which are not counted; counting ends with the first worker that has none
  // left whose batches are announced in full. Without it everything is counted, from the first step on until
  // nothing is under way after the last one.
  std::optional<std::size_t> warm_up;
  // Steps of an epoch; 0: there are none. Behind each, workers wait until everything that was written is
  // visible everywhere, and for each other, and nothing is announced across it.
  std::size_t epoch = 0;
  double compute = 10'000.0;  // what a step computes for: microseconds of a core of speed 1
  ReplayCosts costs{};
  std::vector<Machine> machines{};  // by node
  std::vector<LinkTraits> links{};  // from each node to each, those of node 0 first
  std::uint64_t seed = 1;
  std::size_t traced_steps = 0;  // so many steps of each worker are recorded as spans
  std::vector<Incident> incidents{};
  Micros peer_timeout = 5'000'000;
};

struct NodeReplay {
  std::uint64_t steps = 0;
  // Of its workers' time:
  Micros computing = 0;
  Micros visiting = 0;    // the node's share of the server, in calls
  Micros waiting = 0;     // for other nodes, in calls
  Micros on_network = 0;  // of waiting, while a frame to or from this node was under way
  // Since counting began:
  Micros last_step = 0;                // when a worker had done its last step
  std::optional<Micros> lost;          // when the node was lost
  std::optional<NodeId> peer_lost;     // whom PeerLost named in its calls
  std::optional<Micros> peer_lost_at;  // when its calls began to raise it
  // What its workers' and its channels' threads worked: microseconds of its own cores.
  double working = 0.0;
  double channels = 0.0;
  // As of Node::stats and Node::table_stats.
  std::map<std::string, double> counters;
  std::vector<std::map<std::string, double>> tables;
};

// What a thread did, or how a frame travelled.
struct ReplaySpan {
  enum class Kind : std::uint8_t {
    kAnnounce,
    kPull,
    kCompute,
    kPush,
    kSynchronize,
    kMeet,
    kWait,
    kChannel,
    kFrame
  };
  Kind kind;
  NodeId node;
  std::uint32_t thread;  // channels first, then workers; of a frame, the node that it goes to
  std::uint64_t amount;  // keys, or bytes
  Micros begin, end;
};
const char* name_of(ReplaySpan::Kind kind);

struct ReplayResult {
  Micros elapsed = 0;  // until the last worker that was counted had done its last step
  std::vector<NodeReplay> nodes;
  std::vector<ReplaySpan> spans;
};

// Every worker does what autoada does in a step: it announces the batch that is `lookahead` ahead, pulls
// dense tables, but for its first step, and its rows, table after table, computes, pushes gradients of its
// rows and of dense tables, pulls those again, as they are seen after a step, and advances its clock.
// Workers begin at different moments of a step and do not wait for each other. A node that is lost says
// nothing any more; the others' calls raise PeerLost once one of them has noticed that, which ends a worker.
class Replay {
 public:
  // `accesses` must outlive it. Throws std::invalid_argument if they are too short for the settings.
  Replay(const Accesses& accesses, const ReplaySettings& settings);

  // Once. `interrupted` is called several times per second; it may throw.
  ReplayResult run(const std::function<void()>& interrupted = [] {});

 private:
  // One thing that a worker does in a step; with all rows of one table that the step accesses, if it is a
  // pull or a push.
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
    std::vector<Action> actions;  // of the step
    std::size_t next = 0;         // of them
    bool slept = false;           // it has waited since its last call
    bool cold = false;            // it has waited since it computed
    bool waits = false;
    bool at_barrier = false;  // waits for all other workers
    double owed = 0.0;   // micros of its last call, which turned out to cost more: part of its next piece
    bool ended = false;  // it has no step left, or a call has raised PeerLost
    Ticket ticket = kDone;
    Micros began = 0;  // what it does
    Micros network_then = 0;
  };
  struct Received {
    NodeId from;
    Frame frame;
  };
  struct Handled {  // messages that a channel has sent or received
    std::uint64_t messages = 0;
    std::uint64_t upkeep = 0;  // these are none of the others
  };
  struct ChannelThread {
    bool busy = false;
    bool woken = false;
    Micros due = 0;
    Micros began = 0;
    Handled handled;  // before this turn
    std::vector<Received> inbox;
    std::vector<std::pair<NodeId, Frame>> sending;  // at the end of this turn
  };
  struct Node {
    std::unique_ptr<NodeState> state;
    std::size_t host = 0;
    std::size_t first_thread = 0;  // of its threads in the host's processor
    bool stalled = false;
    std::vector<ChannelThread> channels;
    std::vector<WorkerThread> workers;
    NodeReplay times;
    bool lost = false;
    std::map<NodeId, Micros> heard;  // when from nodes that are lost, since they are
    std::size_t under_way = 0;       // frames to or from it
    Micros network_since = 0;
    Micros network_time = 0;  // during which any was
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
  bool advance();  // by one event; false if nothing is left
  void arrive(const NetworkLink& link, std::span<const std::byte> frame);
  bool has_ended() const;
  void work(NodeId rank, std::size_t thread, double micros);
  void end_work(Host& host);
  void set_timer_of(const Host& host);

  void begin_turn(NodeId rank, std::size_t channel, bool slept);
  void end_turn(NodeId rank, std::size_t channel);
  std::uint64_t send_all(NodeId rank, std::size_t channel);  // bytes
  void queue(NodeId rank, std::size_t channel, NodeId to, Frame frame);
  Handled handled_by(const Channel& channel) const;

  void begin_work(NodeId rank, std::size_t worker);
  void end_work_of(NodeId rank, std::size_t worker);
  void resume(NodeId rank, std::size_t worker);
  void continue_worker(NodeId rank, std::size_t worker);
  void check_calls(NodeId rank);
  void end_worker(WorkerThread& thread);
  void release_workers_if_all_wait();
  // How many keys the worker found in copies, and how many it asked other nodes for, times what that costs.
  double micros_of_accesses(NodeId rank, std::size_t worker, std::size_t table) const;

  void apply_incident(NodeId rank, std::size_t step);
  void end_stall(NodeId rank);
  void check_lost_nodes(NodeId rank);
  void note_failure(NodeId rank);
  void announce(WorkerThread& thread, std::size_t table, std::size_t step);
  // The steps whose rows are announced in this one, and how many these are.
  std::pair<std::size_t, std::size_t> announced_in(const WorkerThread& thread, std::size_t table) const;
  std::size_t keys_announced_in(const WorkerThread& thread) const;
  // What the worker accesses of a table in a step; nothing of dense ones, or behind its last step.
  std::span<const Key> rows_of(const WorkerThread& thread, std::size_t table, std::size_t step) const;
  std::vector<Action> actions_of(const WorkerThread& thread) const;
  std::size_t floats_of(const Action& action) const;

  void begin_counting();
  ReplayResult counted();
  void trace(ReplaySpan::Kind kind, NodeId rank, std::size_t thread, std::uint64_t amount, Micros begin,
             Micros end);
  Micros network_time(const Node& node) const;

  // Of a thread, or another one of the node's.
  std::uint32_t timer(NodeId rank, std::size_t thread) const;

  const Accesses& accesses_;
  const ReplaySettings settings_;
  const std::size_t threads_;  // of a node
  SimulatedNetwork network_;
  Random random_;
  std::vector<Node> nodes_;
  std::vector<Host> hosts_;
  std::vector<std::vector<Key>> dense_;  // keys by table
  std::vector<float> pulled_;            // by all workers: nobody looks at it
  std::vector<float> gradients_;         // of all workers
  std::size_t warm_ = 0;                 // workers that are
  std::size_t ended_ = 0;                // workers that have no step left, or never will
  std::vector<LostNode> lost_;
  Micros counting_since_ = 0;
  bool tracing_ = false;
  std::size_t traced_until_ = 0;  // a worker's step
  ReplayResult result_;
};

}  // namespace adaps
