// Counts writes of a node that are not yet applied at their owners, by epoch
// (docs/concepts/protocol.md, section 7a).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "protocol/operation.h"

namespace adaps {

class Epochs {
 public:
  // Counts a new outstanding write. Returns its epoch, which must be passed to remove().
  std::uint64_t add();
  void remove(std::uint64_t epoch);

  // Closes the current epoch for a wait_sync. Calls the operation's finish() when all writes of this epoch
  // and of all earlier ones are applied.
  void wait(Operation& operation);
  // Makes an operation impatient, because a worker waits for it now. Returns whether it was patient.
  bool hurry(Operation& operation);
  bool anyone_waits() const { return waiting_.load(std::memory_order_seq_cst) > 0; }
  // Whether an operation waits that is not patient.
  bool anyone_hurries() const { return hurrying_.load(std::memory_order_seq_cst) > 0; }
  // Removes and returns the waiting operations, after a failure.
  std::vector<Operation*> abandon();
  std::int64_t outstanding() const;

 private:
  static constexpr std::uint64_t kRing = 1024;
  void check();

  std::atomic<std::uint64_t> current_{0};
  std::array<std::atomic<std::int64_t>, kRing> pending_{};
  std::atomic<int> waiting_{0};
  std::atomic<int> hurrying_{0};  // number of waiting operations that are not patient
  std::mutex mutex_;
  std::uint64_t oldest_ = 0;
  std::vector<Operation*> waiters_;
};

}  // namespace adaps
