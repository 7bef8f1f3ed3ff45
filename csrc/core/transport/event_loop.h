// Waiting for sockets with microsecond timeouts.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "common/types.h"
#include "transport/descriptor.h"

namespace adaps {

// CLOCK_MONOTONIC.
Micros monotonic_now();

class EventLoop {
 public:
  // `precise_syscall`: epoll_pwait2, which takes nanoseconds, where the kernel has it (5.11); otherwise a
  // timerfd.
  explicit EventLoop(bool precise_syscall = true);

  void watch(int fd, std::uint32_t events, std::uint64_t tag);
  void change(int fd, std::uint32_t events, std::uint64_t tag);
  // Fills `events` with what is ready by `deadline` (kNever: without limit); level-triggered. Never reports
  // the tag of wake().
  std::span<epoll_event> wait(Micros deadline, std::span<epoll_event> events);
  // Ends a wait(), or the next one. From any thread.
  void wake();
  bool valid_here() const { return epoll_.valid_here(); }

 private:
  int wait_precise(Micros timeout, std::span<epoll_event> events);
  int wait_with_timer(Micros timeout, std::span<epoll_event> events);
  void acknowledge_wake();

  Descriptor epoll_, wake_, timer_;
  std::atomic<bool> wake_pending_{false};
};

}  // namespace adaps
