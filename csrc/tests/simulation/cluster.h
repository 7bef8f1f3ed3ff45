// All nodes of a simulated world. One thread runs the real protocol code.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/random.h"
#include "node/node_state.h"
#include "protocol/channel.h"
#include "simulation/entries.h"
#include "simulation/simulated_storage.h"
#include "simulation/spec.h"
#include "transport/simulated_network.h"

namespace adaps::simulation {

class Cluster {
 public:
  // The network's timers 0 .. nodes * channels - 1 are the channels' ticks. As many timers for the channels'
  // files follow, and then `more_timers` further timers.
  Cluster(const WorldSpec& spec, std::uint32_t more_timers);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  SimulatedNetwork& network() { return network_; }
  NodeState& node(NodeId rank) { return *nodes_[rank]; }
  Channel& channel(NodeId rank, int index) {
    return *nodes_[rank]->channels[static_cast<std::size_t>(index)];
  }
  NodeId nodes() const { return static_cast<NodeId>(nodes_.size()); }
  int channels() const { return channels_; }
  std::uint32_t tick_timer(NodeId rank, int index) const {
    return static_cast<std::uint32_t>(rank * channels_ + index);
  }

  std::uint32_t first_further_timer() const {
    return 2 * static_cast<std::uint32_t>(static_cast<int>(nodes_.size()) * channels_);
  }
  // Completes transfers of rows, if the timer is the one of a channel's files. Returns whether it is.
  bool transfer(std::uint32_t timer);

  // Both functions send the channel's queued messages to the network, one message at a time.
  Micros tick(NodeId rank, int index);
  void deliver(const NetworkLink& link, std::span<const std::byte> frame);

  // Number of bytes of the messages that were passed to add_waiting() and are not delivered yet.
  std::uint64_t waiting(const NetworkLink& link);
  // Adds the last message that was sent, with its number of bytes.
  void add_waiting(const NetworkLink& link, std::size_t bytes);

  // Number of messages sent so far.
  std::uint64_t messages() const { return messages_; }
  // Called for every message that is sent.
  std::function<void(const NetworkLink&, const Entry&)> on_sent;
  // Writes every message and its arrival to the log, if it is not null.
  void set_log(std::vector<std::string>* log) { log_ = log; }
  void note(const std::string& line);

 private:
  struct Sent {
    std::uint64_t entries = 0;
    std::deque<std::uint64_t> frames;  // number of the last entry of each frame
    struct Waiting {
      std::uint64_t entry;
      std::size_t bytes;
    };
    std::deque<Waiting> waiting;
  };

  Channel& ready_channel(NodeId rank, int index);
  void send_all(NodeId rank, int index);
  Sent& sent(const NetworkLink& link);
  std::size_t backlog(const NetworkLink& link);
  void note_entries(const NetworkLink& link, const char* arrow, std::span<const std::byte> frame);

  const int channels_;
  const bool shuffles_;
  Random order_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<NodeState>> nodes_;
  std::vector<EntryCutter> cutters_;  // by channel
  std::vector<Sent> sent_;            // by channel and pair of nodes
  std::uint64_t messages_ = 0;
  std::vector<std::string>* log_ = nullptr;
};

}  // namespace adaps::simulation
