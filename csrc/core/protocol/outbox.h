// The messages that a channel sends, with a buffer for each destination.
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

// Collects messages in frames, one list of frames for each destination. A message is appended while the lock
// of its key is held, so the order of messages on a link equals the order of the state changes. Frames
// contain complete messages.
//
// In a large cluster, a frame costs more than its contents. Therefore a message that no caller waits for, and
// that is not an answer, waits for other messages to the same node (docs/concepts/protocol.md, section 8).
// All messages that wait for a node leave together and in order: when the first of them has waited long
// enough, or with the first message that leaves at once.
class Outbox {
 public:
  // If `tables` is not null, counts sent messages by table. Messages wait only after set_wait().
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

  // Appends one message: its header (a multiple of 4 bytes) and its payload. Returns its size in bytes.
  template <typename Header>
  std::size_t append(NodeId to, const Header& header,
                     std::initializer_list<std::span<const float>> payload = {}) {
    std::size_t table = no_table_;
    if constexpr (requires { header.key; }) table = table_of(header.key);
    return put(table, to, header, payload);
  }
  // Appends a message without a payload. `fill` writes its fields directly to the frame. If a header was
  // first built and then copied, the copy would read memory that was just written in smaller parts. Such a
  // read waits until all earlier stores have left the processor's store buffer.
  template <typename Header, typename Fill>
  void append_in_place(Key key, NodeId to, Fill fill) {
    const std::size_t table = table_of(key);
    std::byte* at = grow(to, Header{}.type, sizeof(Header));
    fill(*new (at) Header);
    count(table, Header{}.type, sizeof(Header));
  }
  // Appends an answer, which does not contain its key, so the caller passes the key.
  template <typename Header>
  std::size_t append_of(Key key, NodeId to, const Header& header,
                        std::initializer_list<std::span<const float>> payload) {
    return put(table_of(key), to, header, payload);
  }

  // Number and bytes of messages of one type about keys of one table so far. May be called from any thread.
  struct Sent {
    std::uint64_t messages, bytes;
  };
  Sent sent_of(std::size_t table, MessageType type) const {
    const SentCounters& sent = sent_[table * kMessageTypes + static_cast<std::size_t>(type)];
    return {sent.messages.get(), sent.bytes.get()};
  }

  // Bytes of messages of one type so far. May be called from any thread.
  std::uint64_t bytes_of(MessageType type) const {
    std::uint64_t bytes = 0;
    for (std::size_t table = 0; table <= no_table_; ++table) bytes += sent_of(table, type).bytes;
    return bytes;
  }

  // --- departure of frames ---

  void set_now(Micros now) { now_ = now; }
  // Sets for how long messages wait for other messages from now on. With 0, they do not wait.
  void set_wait(Micros wait) { wait_ = wait; }
  bool lets_wait() const { return wait_ > 0; }
  // Ensures that messages for the node that wait, in this object or outside, leave at `due` at the latest.
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
  // Lets all waiting messages for the node leave at once.
  void leave_now(NodeId to) { leave_by(to, kAtOnce); }
  void leave_all_now() {
    waiting_.for_each([this](NodeId to) { leave_now(to); });
  }
  // Registers that a message outside of this object must be added to the next frame to the node before the
  // frame leaves.
  void expect(NodeId to) {
    expected_.insert(to);
    leave_by(to, now_ + wait_);
  }
  // Registers that some messages did not fit into the departing frame, so that the next frame follows at
  // once.
  void go_on_leaving(NodeId to) {
    if (!lets_wait()) return;
    expected_.insert(to);
    leave_now(to);
  }
  // Whether a message that is appended now will wait, unless its kind requires it to leave at once.
  bool leaves_later(NodeId to) const { return lets_wait() && !leaving_.contains(to); }
  // Calls function(to) once for each node with expected messages and a frame that leaves now, before the
  // frame leaves.
  template <typename Function>
  void fetch_expected(Function function) {
    look_who_leaves();
    expected_.for_each_in(leaving_, [&](NodeId to) {
      expected_.erase(to);
      function(to);
    });
  }
  // Time when the next waiting frame leaves.
  Micros next_departure() {
    look_who_leaves();
    return departures_.empty() ? kNever : departures_.top().first;
  }

  // --- frames that were sent ---

  // Number of the frame that contains the last message. Frames of a link are numbered from 1, modulo 2^32.
  std::uint32_t last_frame(NodeId to) const {
    return drained_[to] + static_cast<std::uint32_t>(buffers_[to].size());
  }
  // Number of the last drained frame.
  std::uint32_t last_drained(NodeId to) const { return drained_[to]; }
  // Nodes with drained frames that the network has not accepted yet, according to note_untaken().
  const NodeSet& untaken() const { return untaken_; }

  // Starts to count the bytes of unrequested messages that the network has not accepted. The caller must then
  // report them with add_unasked() and note_untaken().
  void count_unasked() { counts_unasked_ = true; }
  // Counts the last appended message, which has `bytes` bytes, as not requested by any call.
  void add_unasked(NodeId to, std::size_t bytes) {
    if (!counts_unasked_) return;
    Unasked& unasked = unasked_[to];
    unasked.appended += bytes;
    unasked.ends.back() = unasked.appended;
  }
  // Records that the network has not accepted the last `frames` drained frames.
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
  // Bytes of unrequested messages: all of them, and the ones that the network has accepted.
  std::uint64_t unasked_appended(NodeId to) const { return unasked_[to].appended; }
  std::uint64_t unasked_taken(NodeId to) const { return unasked_[to].taken; }
  // Bytes of all messages so far.
  std::uint64_t appended() const { return appended_; }

  // Keeps the memory of a sent frame for a later frame. This memory is in the caches and has the right size.
  // At most a few megabytes are kept.
  void reuse(Frame sent) {
    if (spare_.size() == kSpare || sent.capacity() > 2 * kCut) return;
    sent.clear();
    spare_.push_back(std::move(sent));
  }

  // Passes every frame that leaves now to `sink(to, frame)`. Nodes with further expected messages stay due.
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
    std::vector<std::uint64_t> ends;  // appended bytes at the end of each frame
    std::size_t first = 0;            // index in `ends` of the first frame that the network has not accepted
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

  // Allocates `size` bytes for a message at the end of the last frame, or in a new frame.
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
      if (due_[to] != due) continue;  // the frame has already left
      if (!decisions().is_time(due, now_)) return;
      leave_now(to);
    }
  }

  using Departure = std::pair<Micros, NodeId>;

  std::vector<std::vector<Frame>> buffers_;
  std::vector<Frame> spare_;
  Micros now_ = 0;
  Micros wait_ = 0;
  std::vector<Micros> due_;  // by destination: time when the waiting messages leave
  std::priority_queue<Departure, std::vector<Departure>, std::greater<>> departures_;
  NodeSet leaving_;   // nodes with frames that are due
  NodeSet waiting_;   // nodes with frames that wait
  NodeSet expected_;  // see expect
  std::vector<std::uint32_t> drained_;
  NodeSet untaken_;
  std::vector<Unasked> unasked_;
  bool counts_unasked_ = false;
  const Tables* const tables_;
  const Table* hint_ = nullptr;
  const std::size_t no_table_;      // index for messages that are not about a key
  std::vector<SentCounters> sent_;  // sorted by table
  std::uint64_t appended_ = 0;
};

}  // namespace adaps
