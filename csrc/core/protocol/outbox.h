// What a channel has to send, one buffer per destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "common/node_set.h"
#include "common/stats.h"
#include "common/types.h"
#include "protocol/decisions.h"
#include "protocol/message.h"
#include "store/table.h"
#include "transport/transport.h"

namespace adaps {

// Entries are appended while the lock of their key is held, so the order of messages on a link is the order
// of the state changes. Frames are cut at entries.
//
// In a large cluster a frame costs more than what is in it, so what a node begins by itself and nobody waits
// for, waits for others to the same node (docs/concepts/protocol.md, section 8). All that waits for a node
// leaves together, in its order: at the latest when the first of it has waited long enough, and with whatever
// is to leave at once.
class Outbox {
 public:
  // Counts by table what is sent of a key, if it is told the tables. Nothing waits unless it is told so.
  explicit Outbox(NodeId nodes, const Tables* tables = nullptr)
      : buffers_(nodes),
        due_(nodes, kNever),
        leaving_(nodes),
        waiting_(nodes),
        expected_(nodes),
        drained_(nodes),
        untaken_(nodes),
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
    std::byte* at = grow(to, Header{}.type, sizeof(Header));
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

  // --- when it leaves ---

  void set_now(Micros now) { now_ = now; }
  // How long messages wait for others from now on; 0: not at all.
  void set_wait(Micros wait) { wait_ = wait; }
  bool lets_wait() const { return wait_ > 0; }
  // What waits for the node, here or outside, leaves then at the latest,
  void leave_by(NodeId to, Micros due) {
    if (due >= due_[to]) return;
    due_[to] = due;
    if (due <= now_) {
      waiting_.erase(to);
      leaving_.insert(to);
    } else {
      waiting_.insert(to);
      departures_.push({due, to});
    }
  }
  // or at once.
  void leave_now(NodeId to) { leave_by(to, kAtOnce); }
  void leave_all_now() {
    waiting_.for_each([this](NodeId to) { leave_now(to); });
  }
  // Something that is not here yet is to go along when what waits for the node leaves.
  void expect(NodeId to) {
    expected_.insert(to);
    leave_by(to, now_ + wait_);
  }
  // The same of what did not get into the frame that leaves now, so that the next one leaves right behind it.
  void go_on_leaving(NodeId to) {
    if (!lets_wait()) return;
    expected_.insert(to);
    leave_now(to);
  }
  // Whether what is appended now leaves later, unless it is to leave at once.
  bool leaves_later(NodeId to) const { return lets_wait() && !leaving_.contains(to); }
  // Calls function(to) for those of which something is expected and whose frames leave now: before they do,
  // and once.
  template <typename Function>
  void fetch_expected(Function function) {
    look_who_leaves();
    expected_.for_each_in(leaving_, [&](NodeId to) {
      expected_.erase(to);
      function(to);
    });
  }
  // When the next frame leaves that does not leave now.
  Micros next_departure() {
    look_who_leaves();
    return departures_.empty() ? kNever : departures_.top().first;
  }

  // --- what has left ---

  // Frames of a link are numbered from 1, modulo 2^32: the one that the last message went with,
  std::uint32_t last_frame(NodeId to) const {
    return drained_[to] + static_cast<std::uint32_t>(buffers_[to].size());
  }
  // and the last one that was drained.
  std::uint32_t last_drained(NodeId to) const { return drained_[to]; }
  // To whom frames were drained that the network has not taken, as far as it was told.
  const NodeSet& untaken() const { return untaken_; }

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
    if (frames == 0) untaken_.erase(to);
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
  // Bytes of all messages so far.
  std::uint64_t appended() const { return appended_; }

  // A later frame is written to the memory of one that was sent. That is in the caches, and need not grow. A
  // few megabytes are kept so.
  void reuse(Frame sent) {
    if (spare_.size() == kSpare || sent.capacity() > 2 * kCut) return;
    sent.clear();
    spare_.push_back(std::move(sent));
  }

  // Hands every frame that leaves now to `sink(to, frame)`. What is expected of a node still leaves at once.
  template <typename Sink>
  void drain(Sink&& sink) {
    look_who_leaves();
    leaving_.for_each([&](NodeId to) {
      std::vector<Frame>& frames = buffers_[to];
      if (!frames.empty() && counts_unasked_) untaken_.insert(to);
      drained_[to] += static_cast<std::uint32_t>(frames.size());
      for (Frame& frame : frames) sink(to, std::move(frame));
      frames.clear();
      if (expected_.contains(to)) return;
      due_[to] = kNever;
      leaving_.erase(to);
    });
  }

 private:
  static constexpr std::size_t kCut = std::size_t{1} << 20;
  static constexpr std::size_t kSpare = 4;
  static constexpr Micros kAtOnce = std::numeric_limits<Micros>::min();
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
    std::byte* end = grow(to, header.type, size);
    std::memcpy(end, &header, sizeof(Header));
    end += sizeof(Header);
    for (const std::span<const float> part : payload) {
      if (!part.empty()) std::memcpy(end, part.data(), part.size_bytes());
      end += part.size_bytes();
    }
    count(table, header.type, size);
    return size;
  }

  // Room for a message of so many bytes at the end of the last frame, or of a new one.
  std::byte* grow(NodeId to, MessageType type, std::size_t size) {
    const bool waits = lets_wait() && decisions().may_wait(type);
    leave_by(to, waits ? now_ + wait_ : kAtOnce);
    std::vector<Frame>& frames = buffers_[to];
    if (frames.empty() || frames.back().size() > kCut || frames.back().size() + size > kMaxFrameBytes)
      begin_frame(to);
    Frame& frame = decisions().frame_for(frames, lets_wait() && !waits);
    const std::size_t before = frame.size();
    frame.resize(before + size);
    return frame.data() + before;
  }
  void count(std::size_t table, MessageType type, std::size_t bytes) {
    SentCounters& sent = sent_[table * kMessageTypes + static_cast<std::size_t>(type)];
    sent.messages.add();
    sent.bytes.add(bytes);
    appended_ += bytes;
  }

  void begin_frame(NodeId to) {
    buffers_[to].emplace_back();
    if (!spare_.empty()) {
      buffers_[to].back().swap(spare_.back());
      spare_.pop_back();
    }
    if (counts_unasked_) unasked_[to].ends.push_back(unasked_[to].appended);
  }

  void look_who_leaves() {
    for (; !departures_.empty(); departures_.pop()) {
      const auto [due, to] = departures_.top();
      if (due_[to] != due) continue;  // it left before
      if (!decisions().is_time(due, now_)) return;
      leave_now(to);
    }
  }

  using Departure = std::pair<Micros, NodeId>;

  std::vector<std::vector<Frame>> buffers_;
  std::vector<Frame> spare_;
  Micros now_ = 0;
  Micros wait_ = 0;
  std::vector<Micros> due_;  // by destination: when what waits for it leaves
  std::priority_queue<Departure, std::vector<Departure>, std::greater<>> departures_;
  NodeSet leaving_;   // who is due
  NodeSet waiting_;   // who will be
  NodeSet expected_;  // see expect
  std::vector<std::uint32_t> drained_;
  NodeSet untaken_;
  std::vector<Unasked> unasked_;
  bool counts_unasked_ = false;
  const Tables* const tables_;
  const Table* hint_ = nullptr;
  const std::size_t no_table_;      // in the place of a table's number: a message about no key
  std::vector<SentCounters> sent_;  // table after table
  std::uint64_t appended_ = 0;
};

}  // namespace adaps
