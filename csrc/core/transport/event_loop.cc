#include "transport/event_loop.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <system_error>

namespace adaps {
namespace {

constexpr std::uint64_t kWakeTag = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kTimerTag = kWakeTag - 1;
constexpr long kEpollPwait2 = 441;  // equal on all architectures; older headers do not define it

struct Timespec {  // the kernel's __kernel_timespec, which is 64-bit on all architectures
  std::int64_t seconds, nanoseconds;
};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void read_counter(const Descriptor& descriptor) {
  std::uint64_t count = 0;
  if (::read(descriptor.get(), &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) fail("read");
}

}  // namespace

Micros monotonic_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Micros>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
}

EventLoop::EventLoop(bool precise_syscall)
    : epoll_(create_or_throw("epoll_create1", [] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      wake_(create_or_throw("eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  watch(wake_.get(), EPOLLIN, kWakeTag);
  const Timespec none{0, 0};
  epoll_event unused;
  // Sandboxes that do not support the call return EPERM.
  if (precise_syscall &&
      ::syscall(kEpollPwait2, epoll_.get(), &unused, 1, &none, nullptr, std::size_t{0}) >= 0)
    return;
  timer_ = create_or_throw("timerfd_create",
                           [] { return ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); });
  watch(timer_.get(), EPOLLIN, kTimerTag);
}

void EventLoop::watch(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

void EventLoop::change(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) fail("epoll_ctl");
}

std::span<epoll_event> EventLoop::wait(Micros deadline, std::span<epoll_event> events) {
  if (!valid_here())
    throw std::runtime_error("connections of a node do not survive a fork; use it in its own process");
  const Micros timeout = deadline == kNever ? kNever : std::max<Micros>(0, deadline - monotonic_now());
  const int ready = timer_ && timeout != 0 ? wait_with_timer(timeout, events) : wait_precise(timeout, events);
  if (ready < 0 && errno != EINTR) fail("epoll_wait");
  const auto last =
      std::remove_if(events.begin(), events.begin() + std::max(0, ready), [&](const epoll_event& e) {
        if (e.data.u64 == kWakeTag) acknowledge_wake();
        return e.data.u64 >= kTimerTag;
      });
  return events.first(static_cast<std::size_t>(last - events.begin()));
}

int EventLoop::wait_precise(Micros timeout, std::span<epoll_event> events) {
  const int capacity = static_cast<int>(events.size());
  if (timeout == 0 || timeout == kNever)
    return ::epoll_wait(epoll_.get(), events.data(), capacity, timeout == 0 ? 0 : -1);
  const Timespec time{timeout / 1'000'000, timeout % 1'000'000 * 1000};
  return static_cast<int>(
      ::syscall(kEpollPwait2, epoll_.get(), events.data(), capacity, &time, nullptr, std::size_t{0}));
}

int EventLoop::wait_with_timer(Micros timeout, std::span<epoll_event> events) {
  itimerspec time{};  // all zero: disables the timer
  if (timeout != kNever) {
    time.it_value.tv_sec = static_cast<time_t>(timeout / 1'000'000);
    time.it_value.tv_nsec = static_cast<long>(timeout % 1'000'000 * 1000);
  }
  // This call also clears an expiry that an earlier wait reported.
  if (::timerfd_settime(timer_.get(), 0, &time, nullptr) != 0) fail("timerfd_settime");
  return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
}

// One write per wait is enough for any number of calls of wake(). The counter is read before the flag is
// cleared. A thread that still sees the flag set has submitted its work before this wait returns, so the
// caller finds that work.
void EventLoop::wake() {
  if (!valid_here()) return;
  if (wake_pending_.exchange(true, std::memory_order_acq_rel)) return;
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0 && errno != EAGAIN) fail("write to an eventfd");
}

void EventLoop::acknowledge_wake() {
  read_counter(wake_);
  wake_pending_.exchange(false, std::memory_order_acq_rel);
}

}  // namespace adaps
