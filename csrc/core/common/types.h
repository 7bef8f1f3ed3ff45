// Basic types of the parameter server.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace adaps {

using Key = std::uint64_t;
using NodeId = std::uint16_t;
using Clock = std::int64_t;
// Counts changes of the owner's value; compared modulo 2^32.
using Version = std::uint32_t;
// Counts relocations of a key, modulo 2^18.
using RelocationCount = std::uint32_t;
// Microseconds of a monotonic clock. The driver of a channel provides it, since the protocol reads no clock.
using Micros = std::int64_t;

inline constexpr Micros kNever = std::numeric_limits<Micros>::max();
inline constexpr Clock kForever = std::numeric_limits<Clock>::max();
// An intent with this end or a later one is for good: the node will use the key in all of its steps.
inline constexpr Clock kForGood = Clock{1} << 40;
inline constexpr std::size_t kMaxNodes = 4096;  // 12 bits of a key word
inline constexpr int kMaxWorkers = 4096;
inline constexpr int kMaxChannels = 1024;
inline constexpr std::uint64_t kMaxKeys = (std::uint64_t{1} << 40) - 1;
// Largest clock that a call accepts, so that differences of two clocks stay far from overflow.
inline constexpr Clock kMaxClock = Clock{1} << 62;

enum class Technique : std::uint8_t { kAdaptive, kReplication, kRelocation, kStatic, kFullReplication };

// Encoding of a table's values and changes on the network: floats that are unchanged, or floats that are
// rounded to fewer bytes.
enum class Wire : std::uint8_t { kFloat32, kBfloat16, kFloat16, kInt8 };

// Encoding of a table's values in memory. Optimizer state is always float32.
enum class Dtype : std::uint8_t { kFloat32, kBfloat16 };

// Treatment of gradients that contain NaN or infinity.
enum class NonFinite : std::uint8_t { kRaise, kSkip, kPass };

// Returns the name of an enumeration's value. `names` has one name for each value, in order.
template <typename Enum, std::size_t kCount>
const char* name_in(const char* const (&names)[kCount], Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : "unknown";
}
inline std::string name_of(NodeId rank) { return "node " + std::to_string(rank); }
// The Python package uses these names.
const char* name_of(Technique technique);
const char* name_of(Wire wire);
const char* name_of(NonFinite policy);

// Settings of a node. Some must be equal on all nodes of a cluster; each node may choose the others.
struct Settings {
  NodeId rank = 0;
  NodeId nodes = 1;
  int workers = 1;
  int channels = 1;
  Technique technique = Technique::kAdaptive;
  // Act on an intent only shortly before its start (see ActionTimer). If false, act at once.
  bool timing = true;
  // Maximum number of rounds per second, in which a channel sends the changes that are due. A channel runs a
  // round only if there are changes to send.
  double max_rounds_per_second = 500.0;
  // Maximum number of bytes per second that a node sends in rounds. Its channels have equal shares. The time
  // between rounds is chosen accordingly.
  double max_round_bytes_per_second = 400e6;
  // Maximum time for which a message is kept, so that later messages to the same node are sent in the same
  // frame. Messages that a caller waits for are not kept. If not set, frame_wait.h determines the time; with
  // few nodes it is 0.
  std::optional<Micros> frame_wait{};
  // Number of times in a row that one node must be the only interested node until a key leaves its home node
  // for it. If not set, it is 1 with up to 8 nodes, and 3 with more.
  std::optional<int> times_alone{};
  NonFinite nonfinite = NonFinite::kRaise;
  // Maximum time that nodes wait, at a barrier or when closing, for a node that is alive but does not arrive.
  Micros stall_timeout = kNever;
  // Largest amount of one kind of work that a channel does between two polls of the network. The limit
  // ensures that a call with millions of keys delays neither other calls nor this node's keep-alives. A key
  // counts as 1, and 64 floats of its row count as 1.
  std::size_t slice = 16384;
  // After this number of consecutive requests or answers, a frame is sent, if at least as many requests or
  // answers follow. The receiver then wakes up while this node prepares the rest.
  std::size_t first_requests = 192;
  // Maximum number of bytes of one key's gradients that are sent together. The remaining gradients are sent
  // after the answer.
  std::size_t max_gradient_bytes = std::size_t{1} << 20;
  // Maximum number of bytes of a worker's calls that are unfinished at a time. Further calls wait.
  std::size_t max_queued_bytes = std::size_t{256} << 20;
  // Maximum number of bytes of rows and changes that are queued for one node, if this node receives more
  // slowly than they are sent. Rows and changes that a caller waits for are not counted. Above the limit,
  // further rows and changes are kept back.
  std::size_t max_unsent_bytes = std::size_t{64} << 20;

  // Number of rows for which each channel keeps memory free in a table whose memory is limited. If not set,
  // it is a sixteenth of the rows.
  std::optional<std::uint64_t> free_rows{};

  int times_until_leaving_home() const { return times_alone.value_or(nodes <= 8 ? 1 : 3); }
  // The same number for a node whose intent is for good. It is never 1: several nodes usually want such a
  // key, and the first of them would own it until the end.
  int times_for_good() const { return std::max(times_until_leaving_home(), 3); }
  // Minimum time between two rounds.
  Micros round_distance() const {
    return static_cast<Micros>(std::min(1e6 / max_rounds_per_second, kRarestRounds));
  }

 private:
  static constexpr double kRarestRounds = 1e15;  // about 30 years, so effectively never
};

inline bool newer(Version a, Version b) { return static_cast<std::int32_t>(a - b) > 0; }

// Version 0 is the initial value, which every node can compute. No written value has version 0.
inline Version next_version(Version version) { return version + 1 == 0 ? 1 : version + 1; }

// A node of the cluster was lost. Every blocked call and every later call fails with this exception.
class PeerLost : public std::runtime_error {
 public:
  PeerLost(NodeId rank, const std::string& why) : std::runtime_error(why), rank_(rank) {}
  NodeId rank() const { return rank_; }

 private:
  NodeId rank_;
};

// A table has no row left for a new id.
class TableFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A peer violated the protocol. Its connection is closed.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // The message begins with the rank of the peer, as in "rank 2 says goodbye twice".
  ProtocolError(NodeId from, const std::string& violation)
      : std::runtime_error("rank " + std::to_string(from) + " " + violation) {}
};

}  // namespace adaps
