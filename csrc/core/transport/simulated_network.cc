#include "transport/simulated_network.h"

#include <algorithm>
#include <utility>

namespace adaps {

SimulatedNetwork::SimulatedNetwork(NodeId nodes, int channels, std::uint32_t timers, std::uint64_t seed)
    : nodes_(nodes),
      timers_(timers),
      random_(seed, 0x6e6574),
      traits_(static_cast<std::size_t>(nodes) * nodes),
      cards_(nodes),
      queues_(static_cast<std::size_t>(nodes) * nodes * static_cast<std::size_t>(channels)),
      timer_at_(timers, kNever) {}

void SimulatedNetwork::set_traits(NodeId from, NodeId to, const LinkTraits& traits) {
  traits_[static_cast<std::size_t>(from) * nodes_ + to] = traits;
}

void SimulatedNetwork::set_card(NodeId node, double bytes_per_micro) {
  cards_[node].bytes_per_micro = bytes_per_micro;
}

Micros SimulatedNetwork::send(const NetworkLink& link, std::span<const std::byte> entry) {
  const LinkTraits& traits = traits_[static_cast<std::size_t>(link.from) * nodes_ + link.to];
  const std::uint32_t own_name = name(link);
  Queue& queue = queues_[own_name - timers_];
  const auto size = static_cast<double>(entry.size());
  const auto taken_by = [&](double& until, double bytes_per_micro) {
    until = std::max(until, static_cast<double>(now_)) + size / bytes_per_micro;
    return static_cast<Micros>(until);
  };
  queue.free_at = std::max(queue.free_at, now_) + static_cast<Micros>(size / traits.bytes_per_micro);
  Card& sender = cards_[link.from];
  Card& receiver = cards_[link.to];
  const Micros sent = std::max(queue.free_at, taken_by(sender.sends_until, sender.bytes_per_micro));
  const Micros received = std::max(sent, taken_by(receiver.receives_until, receiver.bytes_per_micro));
  const auto travel = static_cast<Micros>(traits.latency + random_.exponential(traits.jitter));
  queue.last_due = std::max(queue.last_due, received + travel);
  queue.entries.push_back({queue.bytes.size(), entry.size(), sent, queue.last_due});
  queue.bytes.insert(queue.bytes.end(), entry.begin(), entry.end());
  if (!std::exchange(queue.scheduled, true)) schedule(queue.last_due, own_name);
  return queue.last_due;
}

std::size_t SimulatedNetwork::backlog(const NetworkLink& link) const {
  const Queue& queue = queues_[name(link) - timers_];
  std::size_t count = 0;
  while (count < queue.entries.size() - queue.head &&
         queue.entries[queue.entries.size() - 1 - count].sent > now_)
    ++count;
  return count;
}

void SimulatedNetwork::freeze(const NetworkLink& link, Micros until) {
  Queue& queue = queues_[name(link) - timers_];
  queue.frozen_until = std::max(queue.frozen_until, until);
}

void SimulatedNetwork::set_timer(std::uint32_t timer, Micros at) {
  if (at >= timer_at_[timer]) return;
  timer_at_[timer] = at;
  schedule(at, timer);
}

SimulatedNetwork::Event SimulatedNetwork::next() {
  while (!schedule_.empty()) {
    const Scheduled first = schedule_.top();
    schedule_.pop();
    if (first.name < timers_) {
      if (timer_at_[first.name] != first.at) continue;  // the timer was later set to an earlier time
      timer_at_[first.name] = kNever;
      now_ = std::max(now_, first.at);
      return {Event::Kind::kTimer, first.name, {}, {}};
    }
    Queue& queue = queues_[first.name - timers_];
    if (queue.empty()) {
      queue.scheduled = false;
      continue;
    }
    if (queue.frozen_until > first.at) {
      schedule(queue.frozen_until, first.name);
      continue;
    }
    now_ = std::max(now_, first.at);
    std::size_t count = 1;
    const std::size_t left = queue.entries.size() - queue.head;
    while (count < left && queue.entries[queue.head + count].due <= now_ && random_.chance(merging_)) ++count;
    const std::span<const std::byte> frame = cut(queue, count);
    queue.scheduled = !queue.empty();
    if (queue.scheduled) schedule(std::max(now_, queue.entries[queue.head].due), first.name);
    return {Event::Kind::kFrame, 0, link_named(first.name), frame};
  }
  return {};
}

std::span<const std::byte> SimulatedNetwork::take(const NetworkLink& link, std::size_t entries) {
  Queue& queue = queues_[name(link) - timers_];
  return cut(queue, std::min(entries, queue.entries.size() - queue.head));
}

std::size_t SimulatedNetwork::waiting(const NetworkLink& link) const {
  const Queue& queue = queues_[name(link) - timers_];
  return queue.entries.size() - queue.head;
}

std::uint32_t SimulatedNetwork::name(const NetworkLink& link) const {
  const auto pair = static_cast<std::uint32_t>(link.from) * nodes_ + link.to;
  return timers_ + static_cast<std::uint32_t>(link.channel) * nodes_ * nodes_ + pair;
}

NetworkLink SimulatedNetwork::link_named(std::uint32_t name) const {
  const std::uint32_t index = name - timers_;
  const std::uint32_t pair = index % (static_cast<std::uint32_t>(nodes_) * nodes_);
  return {static_cast<int>(index / (static_cast<std::uint32_t>(nodes_) * nodes_)),
          static_cast<NodeId>(pair / nodes_), static_cast<NodeId>(pair % nodes_)};
}

void SimulatedNetwork::schedule(Micros at, std::uint32_t name) { schedule_.push({at, random_.next(), name}); }

// Copies the frame, because the queue may grow while the frame is processed.
std::span<const std::byte> SimulatedNetwork::cut(Queue& queue, std::size_t entries) {
  frame_.clear();
  for (std::size_t i = 0; i < entries; ++i) {
    const Entry& entry = queue.entries[queue.head++];
    const auto begin = queue.bytes.begin() + static_cast<std::ptrdiff_t>(entry.begin);
    frame_.insert(frame_.end(), begin, begin + static_cast<std::ptrdiff_t>(entry.size));
  }
  if (queue.empty()) {
    queue.bytes.clear();
    queue.entries.clear();
    queue.head = 0;
  }
  return frame_;
}

}  // namespace adaps
