// How every call of a worker or a closing node blocks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "protocol/context.h"

namespace adaps {

// How often a blocked call looks for interrupts.
inline constexpr std::chrono::milliseconds kInterruptPeriod{100};

// Waits with the lock held until `done()`. Throws PeerLost if a peer is lost, and what `check_interrupts`,
// which is called without the lock and may be empty, throws.
template <typename Done>
void wait_interruptibly(const NodeContext& node, std::unique_lock<std::mutex>& lock,
                        std::condition_variable& changed, const std::function<void()>& check_interrupts,
                        Done done) {
  while (!done()) {
    node.check();
    const bool woken = changed.wait_for(lock, kInterruptPeriod) == std::cv_status::no_timeout;
    if (woken || !check_interrupts) continue;
    lock.unlock();
    check_interrupts();
    lock.lock();
  }
}

}  // namespace adaps
