// A simulated network and clock. Discrete events take place in virtual time, and one seed determines all
// random choices.
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

// The link of one ordered pair of nodes on one channel: reliable and in order. Links are independent of each
// other, except that all links of a node share its network card.
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
  // Sets the bandwidth that all links of a node share, separately for sending and receiving. Without this
  // call, links share no bandwidth.
  void set_card(NodeId node, double bytes_per_micro);
  // Sets the probability that an entry is delivered in the same frame as the entry before it, if it has
  // arrived by then.
  void set_merging(double probability) { merging_ = probability; }

  // Sends `entry`, which is one message. Frames consist of complete entries. Returns the time of arrival.
  Micros send(const NetworkLink& link, std::span<const std::byte> entry);
  // Number of entries of the link that have not left their node yet.
  std::size_t backlog(const NetworkLink& link) const;
  // Delivers nothing on the link before `until`.
  void freeze(const NetworkLink& link, Micros until);
  // Sets a timer. If the timer is already set to an earlier time, it keeps that time.
  void set_timer(std::uint32_t timer, Micros at);

  struct Event {
    enum class Kind : std::uint8_t { kNothingLeft, kFrame, kTimer };
    Kind kind = Kind::kNothingLeft;
    std::uint32_t timer = 0;
    NetworkLink link;
    std::span<const std::byte> frame;  // valid until the next call
  };
  // Advances the clock to the next event. Events at the same time are in random order.
  Event next();

  // Manual scheduling instead of next(): takes up to `entries` entries from the front of a link, regardless
  // of their arrival time.
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
    std::uint32_t name;  // the number of a timer or, after all timers, of a link
    bool operator>(const Scheduled& other) const { return at != other.at ? at > other.at : tie > other.tie; }
  };

  std::uint32_t name(const NetworkLink& link) const;
  NetworkLink link_named(std::uint32_t name) const;
  void schedule(Micros at, std::uint32_t name);
  std::span<const std::byte> cut(Queue& queue, std::size_t entries);

  const NodeId nodes_;
  const std::uint32_t timers_;
  Random random_;
  Micros now_ = 0;
  double merging_ = 0.0;
  std::vector<LinkTraits> traits_;
  std::vector<Card> cards_;  // by node
  std::vector<Queue> queues_;
  std::vector<Micros> timer_at_;
  std::vector<std::byte> frame_;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> schedule_;
};

}  // namespace adaps
