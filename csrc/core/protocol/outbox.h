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
        unasked_(nodes),
        tables_(tables),
        no_table_(tables == nullptr ? 0 : tables->size()),
        sent_((no_table_ + 1) * kMessageTypes) {}

  // Appends one message: its header (a multiple of 4 bytes) and what follows it. Gives its bytes.
  template <typename Header>
  std::size_t append(NodeId to, const Header& header,
                     std::initializer_list<std::span<const float>> payload = {}) {
    std::size_t table = no_table_;
    if constexpr (requires { header.key; }) table = table_of(header.key);
    return put(table, to, header, payload);
  }
  // The same of a message without payload whose fields are written where it will lie, by `fill`. A header
  // that is built first and copied is read across the parts in which it was just written, which waits until
  // all that was stored before has left the processor's store buffer.
  template <typename Header, typename Fill>
  void append_in_place(Key key, NodeId to, Fill fill) {
    const std::size_t table = table_of(key);
    std::byte* at = grow(to, sizeof(Header));
    fill(*new (at) Header);
    count(table, Header{}.type, sizeof(Header));
  }
  // An answer does not name its key: its sender does.
  template <typename Header>
  std::size_t append_of(Key key, NodeId to, const Header& header,
                        std::initializer_list<std::span<const float>> payload) {
    return put(table_of(key), to, header, payload);
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

  // From now on it counts, of messages that it is told of, those that the network has not taken: who tells it
  // of messages tells it of what the network took, too.
  void count_unasked() { counts_unasked_ = true; }
  // The message that was appended last has so many bytes and was not asked for by anybody's call.
  void add_unasked(NodeId to, std::size_t bytes) {
    if (!counts_unasked_) return;
    Unasked& unasked = unasked_[to];
    unasked.appended += bytes;
    unasked.ends.back() = unasked.appended;
  }
  // Of the frames that were drained, the network has not taken the last so many.
  void note_untaken(NodeId to, std::size_t frames) {
    Unasked& unasked = unasked_[to];
    const std::size_t left = frames + buffers_[to].size();
    while (unasked.ends.size() - unasked.first > left) unasked.taken = unasked.ends[unasked.first++];
    if (2 * unasked.first < unasked.ends.size()) return;
    unasked.ends.erase(unasked.ends.begin(),
                       unasked.ends.begin() + static_cast<std::ptrdiff_t>(unasked.first));
    unasked.first = 0;
  }
  // Bytes of such messages: of all, and of those that the network has taken.
  std::uint64_t unasked_appended(NodeId to) const { return unasked_[to].appended; }
  std::uint64_t unasked_taken(NodeId to) const { return unasked_[to].taken; }

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
  struct Unasked {
    std::uint64_t appended = 0;
    std::uint64_t taken = 0;
    std::vector<std::uint64_t> ends;  // how much was appended up to the end of each frame, from `first` on of
    std::size_t first = 0;            // those that the network has not taken
  };

  std::size_t table_of(Key key) {
    return tables_ == nullptr ? no_table_ : tables_->number_of(tables_->find(key, hint_));
  }

  template <typename Header>
  std::size_t put(std::size_t table, NodeId to, const Header& header,
                  std::initializer_list<std::span<const float>> payload) {
    static_assert(sizeof(Header) % 4 == 0);
    std::size_t size = sizeof(Header);
    for (const std::span<const float> part : payload) size += part.size_bytes();
    std::byte* end = grow(to, size);
    std::memcpy(end, &header, sizeof(Header));
    end += sizeof(Header);
    for (const std::span<const float> part : payload) {
      if (!part.empty()) std::memcpy(end, part.data(), part.size_bytes());
      end += part.size_bytes();
    }
    count(table, header.type, size);
    return size;
  }

  // Room for so many bytes at the end of the last frame, or of a new one.
  std::byte* grow(NodeId to, std::size_t size) {
    std::vector<Frame>& frames = buffers_[to];
    if (frames.empty() || frames.back().size() > kCut || frames.back().size() + size > kMaxFrameBytes)
      begin_frame(to);
    Frame& frame = frames.back();
    const std::size_t before = frame.size();
    frame.resize(before + size);
    return frame.data() + before;
  }
  void count(std::size_t table, MessageType type, std::size_t bytes) {
    SentCounters& sent = sent_[table * kMessageTypes + static_cast<std::size_t>(type)];
    sent.messages.add();
    sent.bytes.add(bytes);
  }

  void begin_frame(NodeId to) {
    buffers_[to].emplace_back();
    if (counts_unasked_) unasked_[to].ends.push_back(unasked_[to].appended);
  }

  std::vector<std::vector<Frame>> buffers_;
  std::vector<std::uint32_t> drained_;
  std::vector<Unasked> unasked_;
  bool counts_unasked_ = false;
  const Tables* const tables_;
  const Table* hint_ = nullptr;
  const std::size_t no_table_;      // in the place of a table's number: a message about no key
  std::vector<SentCounters> sent_;  // table after table
};

}  // namespace adaps
