// A lock for critical sections of a few instructions. In rare cases, such a section grows a list.
#pragma once

#include <sched.h>

#include <atomic>

namespace adaps {

// Waits between two tries to take a lock that is held for tens of nanoseconds. After many tries, the thread
// that holds the lock is probably not running, so the core is yielded to it.
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

// A mutex for std::lock_guard. A std::mutex takes two atomic operations and two calls per critical section,
// which take longer than a section under this lock. A SpinLock takes one atomic operation and no call.
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
