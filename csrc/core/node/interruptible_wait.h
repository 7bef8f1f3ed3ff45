// The function in which all blocking calls wait: calls of workers, and the close of a node.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "protocol/context.h"

namespace adaps {

// Interval at which a blocked call checks for interrupts.
inline constexpr std::chrono::milliseconds kInterruptPeriod{100};

// Waits, with the lock held, until `done()` is true. Throws PeerLost if a peer is lost. `check_interrupts` is
// called without the lock, may be empty, and may throw.
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
