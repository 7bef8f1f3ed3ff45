// Vocabulary types of the parameter server.
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
// Counts relocations of a key; a location entry keeps its low 18 bits.
using RelocationCount = std::uint32_t;
// Microseconds of a monotonic clock that the driver of a channel provides; the protocol has none of its own.
using Micros = std::int64_t;

inline constexpr Micros kNever = std::numeric_limits<Micros>::max();
inline constexpr Clock kForever = std::numeric_limits<Clock>::max();
inline constexpr std::size_t kMaxNodes = 4096;  // 12 bits of a key word
inline constexpr int kMaxWorkers = 4096;
inline constexpr int kMaxChannels = 1024;
inline constexpr std::uint64_t kMaxKeys = (std::uint64_t{1} << 40) - 1;
// The largest clock that a call may name: differences of two clocks stay far from overflow.
inline constexpr Clock kMaxClock = Clock{1} << 62;

enum class Technique : std::uint8_t { kAdaptive, kReplication, kRelocation, kStatic, kFullReplication };

// What the values and changes of a table are on the network: floats as they are, or rounded to fewer bytes.
enum class Wire : std::uint8_t { kFloat32, kBfloat16, kFloat16, kInt8 };

// What the values of a table are in memory; optimizer state is float32 in any case.
enum class Dtype : std::uint8_t { kFloat32, kBfloat16 };

// What becomes of gradients with NaN or infinity in them.
enum class NonFinite : std::uint8_t { kRaise, kSkip, kPass };

// Returns the name of a value from the names of its enumeration, in their order.
template <typename Enum, std::size_t kCount>
const char* name_in(const char* const (&names)[kCount], Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : "unknown";
}
// Names of the Python package.
const char* name_of(Technique technique);
const char* name_of(Wire wire);
const char* name_of(NonFinite policy);

// What every node of a cluster must agree on, and what each may tune.
struct Settings {
  NodeId rank = 0;
  NodeId nodes = 1;
  int workers = 1;
  int channels = 1;
  Technique technique = Technique::kAdaptive;
  // Act on an intent only when its start is near (see ActionTimer); if false, at once.
  bool timing = true;
  // Upper bound of exchange rounds; a round happens only when there is something to exchange.
  double max_rounds_per_second = 500.0;
  // Upper bound of what a channel's rounds put on the network; rounds are spaced accordingly.
  double max_round_bytes_per_second = 400e6;
  // How long what nobody waits for may wait for others to the same node; else as frame_wait.h says, which is
  // not at all with few nodes.
  std::optional<Micros> frame_wait{};
  NonFinite nonfinite = NonFinite::kRaise;
  // How long nodes may wait at a barrier, or for the end, for one that lives but does not come.
  Micros stall_timeout = kNever;
  // How much of one kind of work a channel does between two looks at the network, so that a call with
  // millions of keys neither keeps others waiting nor this node from saying that it lives. A key counts as
  // one, and so do 64 floats of its row.
  std::size_t slice = 16384;
  // After how many requests, made or answered in a row, what is there leaves, if as many more follow: whoever
  // gets it has woken up when the others come.
  std::size_t first_requests = 192;
  // Gradients of one key that go together; the next ones wait for the answer.
  std::size_t max_gradient_bytes = std::size_t{1} << 20;
  // Bytes of a worker's calls that may be on the way to other nodes, or back, before a call waits.
  std::size_t max_queued_bytes = std::size_t{256} << 20;
  // Bytes of rows and changes that nobody's call asks for which may wait for one other node, because it takes
  // them more slowly than this one has them, before further ones are kept back.
  std::size_t max_unsent_bytes = std::size_t{64} << 20;

  // Microseconds between two rounds at the least.
  Micros round_distance() const {
    return static_cast<Micros>(std::min(1e6 / max_rounds_per_second, kRarestRounds));
  }

 private:
  static constexpr double kRarestRounds = 1e15;  // microseconds: about 30 years, as good as never
};

inline bool newer(Version a, Version b) { return static_cast<std::int32_t>(a - b) > 0; }

// Version 0 is the initial content, which every node can make itself; no written value has it.
inline Version next_version(Version version) { return version + 1 == 0 ? 1 : version + 1; }

// A node of the cluster is gone; every blocked and every later call fails with this.
class PeerLost : public std::runtime_error {
 public:
  PeerLost(NodeId rank, const std::string& why) : std::runtime_error(why), rank_(rank) {}
  NodeId rank() const { return rank_; }

 private:
  NodeId rank_;
};

// A peer sent something that the protocol does not allow; its connection is closed.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace adaps
