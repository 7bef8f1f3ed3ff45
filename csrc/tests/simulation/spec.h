// A simulated world before it runs: cluster, network, speeds, and what each worker calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types.h"
#include "protocol/message.h"
#include "simulation/content.h"
#include "store/directory.h"
#include "store/table.h"
#include "transport/simulated_network.h"

namespace adaps::simulation {

enum class CallKind : std::uint8_t {
  kPull,
  kPush,
  kPushGradients,
  kSet,
  kIntent,
  kWaitIntent,
  kPrepareSample,
  kPullSample,  // the one that the worker prepared first, if there is one
  kClock,
  kWaitAll,
  kSync,
  kBarrier,
  // Of a checkpoint, by the first worker of a node.
  kFreeze,
  kTake,
  kThaw
};

struct Call {
  CallKind kind = CallKind::kPull;
  bool asynchronous = false;
  std::vector<std::uint32_t> keys{};  // positions in WorldSpec::keys
  Clock start_in = 0;                 // intent, sample: clocks from now
  Clock length = 1;
  std::size_t table = 0;  // sample: of which
  std::size_t size = 0;   // sample: rows
};

using Program = std::vector<Call>;

// Longer than all that anybody waits for.
inline constexpr Micros kAges = 4'000'000'000;

struct WorldSpec {
  std::uint64_t seed = 0;
  Settings settings;  // rank aside
  std::vector<TableSpec> tables;
  std::vector<Key> keys;          // those that are used
  std::vector<Program> programs;  // node after node, its workers one after the other

  // Means of exponentially distributed delays, micros.
  std::vector<double> think;      // between two calls of a worker
  std::vector<double> submit;     // between the parts of one call of a worker; 0: no time passes
  std::vector<double> tick;       // until a channel does what it is woken for, by node
  std::vector<LinkTraits> links;  // from * nodes + to
  double merging = 0.0;
  // After a message of this type was sent, its link stands still for a while, with some probability.
  MessageType freeze_type = MessageType::kDelta;
  double freeze_probability = 0.0;
  double freeze_shortest = 0.0;
  double freeze_longest = 0.0;
  // Workers at a barrier go on at once and nothing is sent for it: the weakest barrier that there can be.
  bool weak_barrier = true;
  bool reordering = false;
  // The network takes a frame from its sender only when it delivers it, and tells so; else at once.
  bool backlog = false;
  // Decisions that leave no whole numbers: what values contain is not read from them; that replicas agree
  // with their owner is, up to rounding.
  bool rough = false;
  // Wires or tables round. Either what values contain is so coarse that it stays as it is; or it is only read
  // from checkpoints and, together with the rests that are still on nodes, at the end.
  bool coarse = false;
  bool rounded = false;

  const Coding& coding() const { return coarse ? kCoarse : kFine; }
  bool rounds() const { return coarse || rounded; }
  // Whether each value that a call reads tells what it contains.
  bool reads_tell() const { return !rough && !rounded; }
};

// As the specification says it, without asking a node.
Technique technique_of(const WorldSpec& spec, Key key);
Wire wire_of(const WorldSpec& spec, Key key);
// Clocks between two exchanges of the key, at least; 0: nothing is said.
Clock exchange_of(const WorldSpec& spec, Key key);
Clock longest_exchange(const WorldSpec& spec);
NodeId home_of(const WorldSpec& spec, Key key);

const char* name_of(CallKind kind);
// Whether links are full so early that it is met.
bool limits_room(const WorldSpec& spec);
std::string describe(const WorldSpec& spec);
std::string describe(const Call& call);

}  // namespace adaps::simulation
