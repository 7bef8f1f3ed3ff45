#include "links.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <system_error>
#include <utility>

namespace relay {
namespace {

// Size of the kernel's virtio_net_hdr, whose header file is not valid C++.
constexpr std::size_t kHeader = 10;
// Position of the last 4 bytes of the destination address in an IPv4 header without options.
constexpr std::size_t kDestination = kHeader + 16;
// Number of packets that are read before due packets are written, so that reading does not delay them.
constexpr int kPacketsAtOnce = 32;
constexpr Nanos kLongestWaking = 200'000;

}  // namespace

Nanos now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return Nanos{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

Links::Links(std::vector<End> ends, adaps::LinkShape shape)
    : ends_(std::move(ends)),
      paths_(ends_.size() * ends_.size(),
             {1e9 * shape.latency_seconds, shape.bits_per_second > 0.0 ? 8e9 / shape.bits_per_second : 0.0,
              0.0}) {}

void Links::slow_down(const SlowPair& pair) {
  for (Path* each : {&path(pair.one, pair.other), &path(pair.other, pair.one)}) {
    each->nanos *= pair.times;
    each->nanos_per_byte *= pair.times;
  }
}

void Links::run(int stop) {
  std::vector<pollfd> watched;
  for (const End& end : ends_) watched.push_back({end.device.get(), POLLIN, 0});
  watched.push_back({stop, POLLIN, 0});
  while (true) {
    const short wanted = in_use_ < kBuffers ? POLLIN : 0;
    for (std::size_t node = 0; node < ends_.size(); ++node) watched[node].events = wanted;
    const Nanos asleep = now();
    const Nanos left = held_.empty() ? 0 : std::max<Nanos>(held_.top().due - waking_ - asleep, 0);
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                           static_cast<long>(left % 1'000'000'000)};
    const int ready = ppoll(watched.data(), watched.size(), held_.empty() ? nullptr : &timeout, nullptr);
    if (ready < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "ppoll");
    if (watched.back().revents != 0) return;
    if (ready == 0 && left > 0) waking_ += (std::min(now() - asleep - left, kLongestWaking) - waking_) / 16;
    for (std::size_t node = 0; ready > 0 && node < ends_.size(); ++node) {
      if (watched[node].revents != 0) take_in(node);
    }
    send_due();
  }
}

void Links::take_in(std::size_t from) {
  for (int count = 0; count < kPacketsAtOnce && in_use_ < kBuffers; ++count) {
    auto bytes = buffer();
    const ssize_t size = read(ends_[from].device.get(), bytes.get(), kBytes);
    const auto length = static_cast<std::size_t>(std::max<ssize_t>(size, 0));
    std::size_t to = ends_.size();
    // Other packets that a kernel sends, such as IPv6 router solicitations, are discarded.
    if (length >= kDestination + 4 && std::to_integer<int>(bytes[kHeader]) >> 4 == 4) {
      to = std::to_integer<std::size_t>(bytes[kDestination + 3]) - 1;
    }
    if (to >= ends_.size() || to == from) {
      spare_.push_back(std::move(bytes));
      if (size < 0 && errno != EAGAIN) throw std::system_error(errno, std::generic_category(), "read");
      if (size < 0) return;
      continue;
    }
    Path& taken = path(from, to);
    taken.free_at = std::max(taken.free_at, static_cast<double>(now())) +
                    taken.nanos_per_byte * static_cast<double>(length - kHeader);
    held_.push({std::llround(taken.free_at + taken.nanos), packets_++, to, length, std::move(bytes)});
    ++in_use_;
  }
}

void Links::send_due() {
  while (!held_.empty() && held_.top().due <= now()) {
    // The order does not depend on the bytes, so they may be moved out of the top element.
    auto& packet = const_cast<Packet&>(held_.top());
    // The kernel refuses a packet only if the device is down. The node has then ended, so the packet is
    // dropped.
    if (write(ends_[packet.to].device.get(), packet.bytes.get(), packet.size) < 0 && errno != EIO) {
      throw std::system_error(errno, std::generic_category(), "write");
    }
    spare_.push_back(std::move(packet.bytes));
    held_.pop();
    --in_use_;
  }
}

std::unique_ptr<std::byte[]> Links::buffer() {
  if (spare_.empty()) return std::unique_ptr<std::byte[]>(new std::byte[kBytes]);
  auto bytes = std::move(spare_.back());
  spare_.pop_back();
  return bytes;
}

}  // namespace relay
