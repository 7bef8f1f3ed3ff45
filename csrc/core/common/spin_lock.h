// A lock for a few instructions, and seldom for as long as a list of them grows.
#pragma once

#include <sched.h>

#include <atomic>

namespace adaps {

// Between two looks at a lock that is held for tens of nanoseconds. If it takes longer, its holder is not
// running: the core is yielded to it.
inline void pause(int spins) {
  if (spins < 64) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  } else {
    sched_yield();
  }
}

// For std::lock_guard. A std::mutex takes two atomic operations and two calls per critical section, which
// cost more than what they guard here; this one takes one and none.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; held_.exchange(true, std::memory_order_acquire);) {
      while (held_.load(std::memory_order_relaxed)) pause(spins++);
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace adaps
