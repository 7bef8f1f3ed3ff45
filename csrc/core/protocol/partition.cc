#include "protocol/partition.h"

namespace adaps {

namespace {

// Partition of the channel that the current thread drives.
thread_local const Partition* driven = nullptr;

}  // namespace

Partition::Driving::Driving(const Partition& partition) : before_(std::exchange(driven, &partition)) {}

Partition::Driving::~Driving() { driven = before_; }

void Partition::wake() {
  if (driven == this) return;
  if (!signalled_.exchange(true) && waker_) waker_();
}

void Partition::request_round() {
  if (!round_requested_.exchange(true)) wake();
}

void Partition::request_round_at(Clock clock) {
  round_at_.store(clock);
  // A worker may have advanced its clock before the store, and missed the request.
  for (const auto& worker : workers_) {
    if (worker->clock.load() >= clock) request_round();
  }
}

void Partition::submit(std::span<KeyRequest* const> requests) {
  {
    const std::lock_guard guard(mutex_);
    submitted_.requests.insert(submitted_.requests.end(), requests.begin(), requests.end());
  }
  wake();
}

void Partition::submit(std::span<IdRequest* const> requests) {
  {
    const std::lock_guard guard(mutex_);
    submitted_.id_requests.insert(submitted_.id_requests.end(), requests.begin(), requests.end());
  }
  wake();
}

void Partition::submit_id_listing(Operation& operation) {
  {
    const std::lock_guard guard(mutex_);
    submitted_.id_listings.push_back(&operation);
  }
  wake();
}

void Partition::submit_sync(Operation& operation) {
  {
    const std::lock_guard guard(mutex_);
    submitted_.syncs.push_back(&operation);
  }
  wake();
}

void Partition::submit_arrival(bool for_good) {
  {
    const std::lock_guard guard(mutex_);
    submitted_.arrivals.push_back(for_good);
  }
  wake();
}

void Partition::submit_goodbye() {
  {
    const std::lock_guard guard(mutex_);
    submitted_.goodbye = true;
  }
  wake();
}

void Partition::submit_intent(int worker, std::vector<Key> keys, Clock start, Clock end) {
  if (intents.submit(worker, std::move(keys), start, end)) request_round();
}

void Partition::on_clock(int worker, Clock clock) {
  if (intents.on_clock(worker, clock) || clock >= round_at_.load()) request_round();
}

void Partition::mark_dirty(LockedKey& key) {
  SlotHeader& header = key.header();
  if ((header.flags & kOnDirtyList) != 0) return;
  header.flags |= kOnDirtyList;
  if (dirty.add(key.key())) request_round();
}

Partition::Submissions Partition::take() {
  const std::lock_guard guard(mutex_);
  return std::exchange(submitted_, {});
}

}  // namespace adaps
