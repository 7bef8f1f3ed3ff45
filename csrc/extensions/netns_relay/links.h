// Connects network namespaces with links that have a latency and a bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "transport/descriptor.h"
#include "transport/socket_transport.h"

namespace relay {

using Nanos = std::int64_t;

// The time of CLOCK_MONOTONIC, in nanoseconds.
Nanos now();

// The network of one node: a network namespace that contains the device kDevice.
struct End {
  adaps::Descriptor space;   // the namespace, which exists as long as a process keeps it open
  adaps::Descriptor device;  // reads packets that the namespace sends; writes packets that it receives
};
inline constexpr char kDevice[] = "link0";
// Prefix of the nodes' addresses. The last byte of node n's address is n + 1.
inline constexpr char kSubnet[] = "10.210.0.";

// Creates the network of a node. Requires the permission to create namespaces and devices. Throws
// std::system_error that names the refused call.
End make_end(std::size_t node);

// A pair of nodes with a link that is slower than the other links by the factor `times`.
struct SlowPair {
  std::size_t one, other;
  double times;
};

// Transfers packets between the nodes. Each directed pair of nodes first limits the bandwidth, in first-in,
// first-out order, and then adds a latency.
class Links {
 public:
  Links(std::vector<End> ends, adaps::LinkShape shape);

  // Must be called before run().
  void slow_down(const SlowPair& pair);

  // Runs until `stop` is readable.
  void run(int stop);
  std::uint64_t packets() const { return packets_; }

 private:
  // Maximum size of a packet. The kernel passes up to 64 KiB of payload with one header, before it divides
  // the payload into segments.
  static constexpr std::size_t kBytes = (std::size_t{64} << 10) + 256;
  // Maximum number of packets in transit. The sockets of a run have fewer. If all buffers are used, reading
  // stops.
  static constexpr std::size_t kBuffers = 4096;

  struct Path {
    double nanos, nanos_per_byte;
    double free_at;  // time when all its packets are sent
  };

  struct Packet {
    Nanos due;
    std::uint64_t number;  // order of packets with equal times
    std::size_t to, size;
    std::unique_ptr<std::byte[]> bytes;
    bool operator>(const Packet& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  Path& path(std::size_t from, std::size_t to) { return paths_[from * ends_.size() + to]; }
  void take_in(std::size_t from);
  void send_due();
  std::unique_ptr<std::byte[]> buffer();

  std::vector<End> ends_;
  std::vector<Path> paths_;
  Nanos waking_ = 0;  // average delay of a wake-up; the relay sets its timer earlier by this time
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> held_;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  std::size_t in_use_ = 0;
  std::uint64_t packets_ = 0;
};

}  // namespace relay
