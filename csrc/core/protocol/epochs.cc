#include "protocol/epochs.h"

#include <algorithm>
#include <utility>

namespace adaps {

std::uint64_t Epochs::add() {
  for (;;) {
    const std::uint64_t epoch = current_.load();
    pending_[epoch % kRing].fetch_add(1);
    // A wait_sync may have closed the epoch in between without seeing this write. It is then counted in the
    // epoch that is open now, so that the next wait_sync waits for it.
    if (current_.load() == epoch) return epoch;
    remove(epoch);
  }
}

void Epochs::remove(std::uint64_t epoch) {
  if (pending_[epoch % kRing].fetch_sub(1) == 1 && anyone_waits()) check();
}

void Epochs::wait(Operation& operation) {
  {
    const std::lock_guard guard(mutex_);
    operation.epoch = current_.fetch_add(1);
    waiters_.push_back(&operation);
    waiting_.fetch_add(1);
    if (!operation.patient.load()) hurrying_.fetch_add(1);
  }
  check();
}

bool Epochs::hurry(Operation& operation) {
  const std::lock_guard guard(mutex_);
  if (!operation.patient.exchange(false)) return false;
  hurrying_.fetch_add(static_cast<int>(std::count(waiters_.begin(), waiters_.end(), &operation)));
  return true;
}

void Epochs::check() {
  const std::lock_guard guard(mutex_);
  const std::uint64_t current = current_.load();
  while (oldest_ < current && pending_[oldest_ % kRing].load() == 0) ++oldest_;
  std::erase_if(waiters_, [&](Operation* operation) {
    if (operation->epoch >= oldest_) return false;
    waiting_.fetch_sub(1);
    if (!operation->patient.load()) hurrying_.fetch_sub(1);
    operation->finish();
    return true;
  });
}

std::vector<Operation*> Epochs::abandon() {
  const std::lock_guard guard(mutex_);
  waiting_.store(0);
  hurrying_.store(0);
  return std::exchange(waiters_, {});
}

std::int64_t Epochs::outstanding() const {
  std::int64_t sum = 0;
  for (const auto& pending : pending_) sum += pending.load();
  return sum;
}

}  // namespace adaps
