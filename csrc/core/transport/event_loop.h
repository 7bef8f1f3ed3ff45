// Waits for sockets with timeouts in microseconds.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "common/types.h"
#include "transport/descriptor.h"

namespace adaps {

// The time of CLOCK_MONOTONIC.
Micros monotonic_now();

class EventLoop {
 public:
  // With `precise_syscall`, the loop uses epoll_pwait2, which takes nanoseconds, if the kernel supports it
  // (5.11). Otherwise it uses a timerfd.
  explicit EventLoop(bool precise_syscall = true);

  void watch(int fd, std::uint32_t events, std::uint64_t tag);
  void change(int fd, std::uint32_t events, std::uint64_t tag);
  // Fills `events` with the events that are ready by `deadline` (kNever: no limit). Events are
  // level-triggered. wake() ends the wait, but is not reported as an event.
  std::span<epoll_event> wait(Micros deadline, std::span<epoll_event> events);
  // Ends the current wait(), or the next one if none is running. May be called from any thread.
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
