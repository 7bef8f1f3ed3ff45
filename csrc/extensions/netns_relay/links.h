// Network namespaces that are joined by links with a latency and a bandwidth.
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

// CLOCK_MONOTONIC.
Nanos now();

// One node's end: a network namespace of its own with the device kDevice in it.
struct End {
  adaps::Descriptor space;   // the namespace, which lives as long as somebody holds it
  adaps::Descriptor device;  // what the namespace sends is read here; what it is to receive is written here
};
inline constexpr char kDevice[] = "link0";
// Of node n: the last byte is n + 1.
inline constexpr char kSubnet[] = "10.210.0.";

// Needs the right to make namespaces and devices; std::system_error names the call that was refused.
End make_end(std::size_t node);

// A pair of nodes whose packets take so many times as long as those of the others.
struct SlowPair {
  std::size_t one, other;
  double times;
};

// Carries packets between the ends: each directed pair has a bandwidth of its own, first in, first out, and
// then a latency.
class Links {
 public:
  Links(std::vector<End> ends, adaps::LinkShape shape);

  // Before run().
  void slow_down(const SlowPair& pair);

  // Until `stop` can be read.
  void run(int stop);
  std::uint64_t packets() const { return packets_; }

 private:
  // What the kernel hands over is up to 64 KiB of payload with one header, before the network cuts it up.
  static constexpr std::size_t kBytes = (std::size_t{64} << 10) + 256;
  // More than all sockets of a run have in flight; when they are used up, reading waits.
  static constexpr std::size_t kBuffers = 4096;

  struct Path {
    double nanos, nanos_per_byte;
    double free_at;  // when it has sent what it was given
  };

  struct Packet {
    Nanos due;
    std::uint64_t number;  // packets of the same moment stay in order
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
  Nanos waking_ = 0;  // what it takes to wake up, on average: the relay gets up that much earlier
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> held_;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  std::size_t in_use_ = 0;
  std::uint64_t packets_ = 0;
};

}  // namespace relay
