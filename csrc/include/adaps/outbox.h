// What a channel has to send, one buffer a destination.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "adaps/message.h"
#include "adaps/stats.h"
#include "adaps/transport.h"
#include "adaps/types.h"

namespace adaps {

// Entries are appended while the lock of their key is held, so the order of messages on a link is the order
// of the state changes. Frames are cut at entries.
class Outbox {
 public:
  explicit Outbox(NodeId nodes) : buffers_(nodes), drained_(nodes) {}

  // Appends one message: its header (a multiple of 4 bytes) and what follows it.
  template <typename Header>
  void append(NodeId to, const Header& header, std::initializer_list<std::span<const float>> payload = {}) {
    static_assert(sizeof(Header) % 4 == 0);
    std::size_t size = sizeof(Header);
    for (const std::span<const float> part : payload) size += part.size_bytes();
    std::vector<Frame>& frames = buffers_[to];
    if (frames.empty() || frames.back().size() > kCut || frames.back().size() + size > kMaxFrameBytes)
      frames.emplace_back();
    Frame& frame = frames.back();
    const std::size_t before = frame.size();
    frame.resize(before + size);
    std::byte* end = frame.data() + before;
    std::memcpy(end, &header, sizeof(Header));
    end += sizeof(Header);
    for (const std::span<const float> part : payload) {
      if (!part.empty()) std::memcpy(end, part.data(), part.size_bytes());
      end += part.size_bytes();
    }
    bytes_by_type_[static_cast<std::size_t>(header.type)].add(size);
  }

  // Bytes of one kind of message so far; from any thread.
  std::uint64_t bytes_of(MessageType type) const {
    return bytes_by_type_[static_cast<std::size_t>(type)].get();
  }

  // Frames of a link are numbered from 1, modulo 2^32: the one that the last message went with,
  std::uint32_t last_frame(NodeId to) const {
    return drained_[to] + static_cast<std::uint32_t>(buffers_[to].size());
  }
  // and the last one that was drained.
  std::uint32_t last_drained(NodeId to) const { return drained_[to]; }

  // Hands every frame to `sink(to, frame)` and is empty then.
  template <typename Sink>
  void drain(Sink&& sink) {
    for (std::size_t to = 0; to < buffers_.size(); ++to) {
      drained_[to] += static_cast<std::uint32_t>(buffers_[to].size());
      for (Frame& frame : buffers_[to]) sink(static_cast<NodeId>(to), std::move(frame));
      buffers_[to].clear();
    }
  }

  bool empty() const {
    for (const auto& frames : buffers_) {
      if (!frames.empty()) return false;
    }
    return true;
  }
  std::size_t size_bytes() const {
    std::size_t sum = 0;
    for (const auto& frames : buffers_) {
      for (const Frame& frame : frames) sum += frame.size();
    }
    return sum;
  }

 private:
  static constexpr std::size_t kCut = std::size_t{1} << 20;
  std::vector<std::vector<Frame>> buffers_;
  std::vector<std::uint32_t> drained_;
  std::array<Counter, kMessageTypes> bytes_by_type_;
};

}  // namespace adaps
