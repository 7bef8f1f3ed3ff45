// A network and a clock that exist only in memory: discrete events in virtual time, all random choices from
// one seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <vector>

#include "common/random.h"
#include "common/types.h"

namespace adaps {

// One ordered pair of nodes on one channel: reliable and in order. Different links are independent of each
// other, but for the network cards that they share.
struct NetworkLink {
  int channel = 0;
  NodeId from = 0;
  NodeId to = 0;
};

struct LinkTraits {
  double latency = 0.0;  // micros
  double jitter = 0.0;   // mean of an exponentially distributed addition to the latency, micros
  double bytes_per_micro = std::numeric_limits<double>::infinity();
};

class SimulatedNetwork {
 public:
  SimulatedNetwork(NodeId nodes, int channels, std::uint32_t timers, std::uint64_t seed);

  Micros now() const { return now_; }
  void set_traits(NodeId from, NodeId to, const LinkTraits& traits);
  // What all links of a node together send, and receive, at most; without it each is alone.
  void set_card(NodeId node, double bytes_per_micro);
  // Probability that an entry is delivered in one frame with the one before it, if it has arrived by then.
  void set_merging(double probability) { merging_ = probability; }
  // To test the checker itself: entries of a link overtake each other.
  void set_reordering(bool reordering) { reordering_ = reordering; }

  // `entry` is one message; frames are made of whole entries. Returns when it will have arrived.
  Micros send(const NetworkLink& link, std::span<const std::byte> entry);
  // How many entries of the link have not left their node yet.
  std::size_t backlog(const NetworkLink& link) const;
  // Nothing is delivered on the link before `until`.
  void freeze(const NetworkLink& link, Micros until);
  // The timer goes off at the given time, or earlier if it was set to that.
  void set_timer(std::uint32_t timer, Micros at);

  struct Event {
    enum class Kind : std::uint8_t { kNothingLeft, kFrame, kTimer };
    Kind kind = Kind::kNothingLeft;
    std::uint32_t timer = 0;
    NetworkLink link;
    std::span<const std::byte> frame;  // until the next call
  };
  // Advances the clock to the next event. Events at the same time come in random order.
  Event next();

  // Scheduling by hand instead of next(): takes up to `entries` from the front of a link whatever their time.
  std::span<const std::byte> take(const NetworkLink& link, std::size_t entries);
  std::size_t waiting(const NetworkLink& link) const;
  void advance(Micros to) { now_ = to; }

 private:
  struct Entry {
    std::size_t begin;
    std::size_t size;
    Micros sent;
    Micros due;
  };
  struct Card {
    double bytes_per_micro = std::numeric_limits<double>::infinity();
    double sends_until = 0.0;
    double receives_until = 0.0;
  };
  struct Queue {
    std::vector<std::byte> bytes;
    std::vector<Entry> entries;
    std::size_t head = 0;
    Micros free_at = 0;
    Micros last_due = 0;
    Micros frozen_until = 0;
    bool scheduled = false;
    bool empty() const { return head == entries.size(); }
  };
  struct Scheduled {
    Micros at;
    std::uint64_t tie;
    std::uint32_t name;  // a timer, or behind all timers a link
    bool operator>(const Scheduled& other) const { return at != other.at ? at > other.at : tie > other.tie; }
  };

  std::uint32_t name(const NetworkLink& link) const;
  NetworkLink link_named(std::uint32_t name) const;
  void schedule(Micros at, std::uint32_t name);
  std::span<const std::byte> cut(Queue& queue, std::size_t entries);
  void swap_some(Queue& queue);

  const NodeId nodes_;
  const std::uint32_t timers_;
  Random random_;
  Micros now_ = 0;
  double merging_ = 0.0;
  bool reordering_ = false;
  std::vector<LinkTraits> traits_;
  std::vector<Card> cards_;  // by node
  std::vector<Queue> queues_;
  std::vector<Micros> timer_at_;
  std::vector<std::byte> frame_;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> schedule_;
};

}  // namespace adaps
