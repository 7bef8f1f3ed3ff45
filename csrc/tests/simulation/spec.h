// The specification of a simulated world: cluster, network, speeds, and the calls of each worker.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types.h"
#include "protocol/message.h"
#include "simulation/content.h"
#include "simulation/simulated_storage.h"
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
  kPullSample,  // pulls the sample that the worker prepared first, if there is one
  kClock,
  kWaitAll,
  kSync,
  kBarrier,
  kPullState,
  kSetState,
  kRowsOf,   // requests the rows of ids of one table
  kUsedIds,  // lists the ids of the used rows of one table
  // Calls of a checkpoint, made by the first worker of a node.
  kFreeze,
  kCount,
  kTake,
  kThaw
};

struct Call {
  CallKind kind = CallKind::kPull;
  bool asynchronous = false;
  std::vector<std::uint32_t> keys{};  // indices in WorldSpec::keys
  Clock start_in = 0;                 // intent, sample: number of clocks from now
  Clock length = 1;
  std::size_t table = 0;  // sample, rows of ids, used ids: index of the table
  std::size_t size = 0;   // sample: number of rows
  bool patient = false;   // wait_sync: no worker waits for it yet
  bool creates = true;    // rows of ids: new ids get rows
};

using Program = std::vector<Call>;

// Longer than any wait of a worker.
inline constexpr Micros kAges = 4'000'000'000;

struct WorldSpec {
  std::uint64_t seed = 0;
  Settings settings;  // without the rank
  std::vector<TableSpec> tables;
  // The used keys. For a row with an id, the key only names the table, because its row is assigned later.
  std::vector<Key> keys;
  std::vector<std::int64_t> ids;  // ids of the keys; empty if no table has ids
  std::vector<Program> programs;  // sorted by node, then by worker

  // Means of exponentially distributed delays, in microseconds.
  std::vector<double> think;      // between two calls of a worker
  std::vector<double> submit;     // between the parts of one call of a worker; 0: no delay
  std::vector<double> tick;       // until a woken channel acts, by node
  std::vector<LinkTraits> links;  // from * nodes + to
  DiskTraits disk;                // of the disks with rows that do not fit into memory
  double merging = 0.0;
  // After a message of this type, its link stops for a while, with some probability.
  MessageType freeze_type = MessageType::kDelta;
  double freeze_probability = 0.0;
  double freeze_shortest = 0.0;
  double freeze_longest = 0.0;
  // Workers continue at a barrier at once, without messages: the weakest possible barrier.
  bool weak_barrier = true;
  // The network accepts a frame from its sender only when it delivers the frame, and then notifies the
  // sender. If false, it accepts every frame at once.
  bool backlog = false;
  // Before a channel acts, its dirty keys are put into a random order, because their order must not matter.
  bool shuffles = false;
  // Values are not whole numbers, so their contents are not decoded. Replicas are still compared with their
  // owner, up to rounding.
  bool rough = false;
  // Wires or tables round numbers. With `coarse`, contents are numbers that rounding does not change. With
  // `rounded`, contents are only checked in checkpoints and at the end, together with the rests on the nodes.
  bool coarse = false;
  bool rounded = false;

  const Coding& coding() const { return coarse ? kCoarse : kFine; }
  bool rounds() const { return coarse || rounded; }
  // Whether the contents of values that calls read can be decoded.
  bool reads_tell() const { return !rough && !rounded; }
};

// Computes the key's technique from the specification, without a node.
Technique technique_of(const WorldSpec& spec, Key key);
Wire wire_of(const WorldSpec& spec, Key key);
// Minimum number of clocks between two exchanges of the key; 0 if it is not specified.
Clock exchange_of(const WorldSpec& spec, Key key);
Clock longest_exchange(const WorldSpec& spec);
NodeId home_of(const WorldSpec& spec, Key key);
const TableSpec& table_of(const WorldSpec& spec, Key key);
// Whether the row of a position in the world's list of keys has an id.
inline bool has_id(const WorldSpec& spec, std::size_t position) {
  return !spec.ids.empty() && table_of(spec, spec.keys[position]).has_ids;
}
// Whether the row of a position may be retired, so that its id loses its content.
inline bool is_retired_at_times(const WorldSpec& spec, std::size_t position) {
  return has_id(spec, position) && table_of(spec, spec.keys[position]).evict != Evict::kNone;
}

// Whether the predicate is true for a technique of some rows of a table.
template <typename Predicate>
bool any_technique(const WorldSpec& spec, const TableSpec& table, Predicate predicate) {
  const auto is = [&](const Management& management) {
    return predicate(management.technique.value_or(spec.settings.technique));
  };
  if (table.managed.empty()) return is(table.management);
  return std::any_of(table.managed.begin(), table.managed.end(),
                     [&](const ManagedRange& range) { return is(range.management); });
}

const char* name_of(CallKind kind);
// Whether the limit of unsent bytes is small enough to be reached.
bool limits_room(const WorldSpec& spec);
std::string describe(const WorldSpec& spec);
std::string describe(const Call& call);

}  // namespace adaps::simulation
