// A node's files of rows, in memory and on the network's virtual clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "storage/row_storage.h"
#include "transport/simulated_network.h"

namespace adaps::simulation {

// A fault of a disk. Each fault occurs at some of the writes or reads.
enum class DiskFault : std::uint8_t { kNone, kTorn, kLost, kMisdirected, kRotten };

// A file in memory, whose writes are subject to a fault.
class MemoryDisk : public Disk {
 public:
  // A write has the fault with the given probability.
  MemoryDisk(DiskFault fault, double probability, std::uint64_t seed)
      : fault_(fault), probability_(probability), random_(seed) {}

  void set_probability(double probability) { probability_ = probability; }
  void read(std::uint64_t position, std::span<std::byte> bytes) override;
  void write(std::uint64_t position, std::span<const std::byte> bytes) override;
  std::string name() const override { return "a file in memory"; }

 private:
  const DiskFault fault_;
  double probability_;
  Random random_;
  std::vector<std::byte> content_;
};

struct DiskTraits {
  double delay = 0.0;  // mean time of a transfer, in microseconds
  DiskFault fault = DiskFault::kNone;
  double fault_probability = 0.0;
};

// Transfers take random times, and each takes effect at its begin or at its end.
class SimulatedStorage : public RowStorage {
 public:
  // The storage sets the timers from `first_timer` on, one for each channel.
  SimulatedStorage(const Tables& tables, const Settings& settings, const DiskTraits& traits,
                   SimulatedNetwork& network, std::uint32_t first_timer, std::uint64_t seed);

  void submit(RowTransfers transfers) override;
  // Completes the channel's transfers that are due.
  void on_timer(int channel);

 private:
  struct Due {
    Micros at;
    std::unique_ptr<RowTransfer> transfer;
    bool is_executed;
  };

  const DiskTraits traits_;
  SimulatedNetwork& network_;
  const std::uint32_t first_timer_;
  Random random_;
  std::vector<std::vector<Due>> due_;  // by channel
};

}  // namespace adaps::simulation
