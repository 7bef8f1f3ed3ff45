// What a channel has to send, one buffer per destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/message.h"
#include "store/table.h"
#include "transport/transport.h"

namespace adaps {

// Entries are appended while the lock of their key is held, so the order of messages on a link is the order
// of the state changes. Frames are cut at entries.
class Outbox {
 public:
  // Counts by table what is sent of a key, if it is told the tables.
  explicit Outbox(NodeId nodes, const Tables* tables = nullptr)
      : buffers_(nodes),
        drained_(nodes),
        tables_(tables),
        no_table_(tables == nullptr ? 0 : tables->size()),
        sent_((no_table_ + 1) * kMessageTypes) {}

  // Appends one message: its header (a multiple of 4 bytes) and what follows it.
  template <typename Header>
  void append(NodeId to, const Header& header, std::initializer_list<std::span<const float>> payload = {}) {
    std::size_t table = no_table_;
    if constexpr (requires { header.key; }) table = table_of(header.key);
    put(table, to, header, payload);
  }
  // An answer does not name its key: its sender does.
  template <typename Header>
  void append_of(Key key, NodeId to, const Header& header,
                 std::initializer_list<std::span<const float>> payload) {
    put(table_of(key), to, header, payload);
  }

  // Messages of one kind about keys of one table so far; from any thread.
  struct Sent {
    std::uint64_t messages, bytes;
  };
  Sent sent_of(std::size_t table, MessageType type) const {
    const SentCounters& sent = sent_[table * kMessageTypes + static_cast<std::size_t>(type)];
    return {sent.messages.get(), sent.bytes.get()};
  }

  // Bytes of one kind of message so far; from any thread.
  std::uint64_t bytes_of(MessageType type) const {
    std::uint64_t bytes = 0;
    for (std::size_t table = 0; table <= no_table_; ++table) bytes += sent_of(table, type).bytes;
    return bytes;
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
  struct SentCounters {
    Counter messages, bytes;
  };

  std::size_t table_of(Key key) {
    return tables_ == nullptr ? no_table_ : tables_->number_of(tables_->find(key, hint_));
  }

  template <typename Header>
  void put(std::size_t table, NodeId to, const Header& header,
           std::initializer_list<std::span<const float>> payload) {
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
    SentCounters& sent = sent_[table * kMessageTypes + static_cast<std::size_t>(header.type)];
    sent.messages.add();
    sent.bytes.add(size);
  }

  std::vector<std::vector<Frame>> buffers_;
  std::vector<std::uint32_t> drained_;
  const Tables* const tables_;
  const Table* hint_ = nullptr;
  const std::size_t no_table_;      // in the place of a table's number: a message about no key
  std::vector<SentCounters> sent_;  // table after table
};

}  // namespace adaps
