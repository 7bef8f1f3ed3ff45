// Times when frames leave, and their contents.
#include "protocol/outbox.h"

#include <utility>
#include <vector>

#include "check.h"

using namespace adaps;

namespace {

constexpr Micros kWait = 1000;

// The actions of a channel when its outbox is due.
struct Drained {
  explicit Drained(Outbox& outbox, Micros now) {
    outbox.set_now(now);
    outbox.drain([this](NodeId to, const Frame& frame) {
      std::vector<MessageType> types;
      for (std::size_t at = 0; at < frame.size(); at += 12)
        types.push_back(static_cast<MessageType>(frame[at]));
      frames.emplace_back(to, types);
    });
  }
  std::vector<std::pair<NodeId, std::vector<MessageType>>> frames;
};
using Frames = decltype(Drained::frames);

Outbox waiting_outbox() {
  Outbox outbox(4);
  outbox.set_wait(kWait);
  return outbox;
}

AckMessage ack() { return {}; }

}  // namespace

TEST(a_frame_leaves_when_its_first_message_has_waited_long_enough) {
  Outbox outbox = waiting_outbox();
  outbox.append(2, IntentMessage{});
  outbox.set_now(600);
  outbox.append(2, IntentMessage{});
  outbox.append(1, IntentMessage{});
  CHECK_EQ(outbox.next_departure(), kWait);
  CHECK(Drained(outbox, kWait - 1).frames.empty());
  CHECK((Drained(outbox, kWait).frames == Frames{{2, {MessageType::kIntent, MessageType::kIntent}}}));
  CHECK_EQ(outbox.next_departure(), 600 + kWait);
  CHECK_EQ(Drained(outbox, 600 + kWait).frames.size(), std::size_t{1});
  CHECK_EQ(outbox.next_departure(), kNever);
}

TEST(waiting_messages_leave_in_order_with_a_message_that_does_not_wait) {
  Outbox outbox = waiting_outbox();
  outbox.append(1, IntentMessage{});
  outbox.append(3, IntentMessage{});
  outbox.append(1, ack());
  outbox.append(1, IntentMessage{});
  CHECK((Drained(outbox, 0).frames ==
         Frames{{1, {MessageType::kIntent, MessageType::kAck, MessageType::kIntent}}}));
  CHECK_EQ(outbox.next_departure(), kWait);
}

TEST(messages_with_a_waiting_caller_leave_earlier) {
  Outbox outbox = waiting_outbox();
  for (const NodeId to : {0, 1, 2}) outbox.append(to, IntentMessage{});
  outbox.leave_by(1, 10);
  CHECK_EQ(outbox.next_departure(), Micros{10});
  outbox.leave_now(2);
  CHECK_EQ(Drained(outbox, 5).frames.size(), std::size_t{1});
  CHECK_EQ(Drained(outbox, 10).frames.size(), std::size_t{1});
  outbox.leave_all_now();
  CHECK_EQ(Drained(outbox, 11).frames.size(), std::size_t{1});
}

TEST(expected_messages_are_added_before_a_frame_leaves) {
  Outbox outbox = waiting_outbox();
  outbox.expect(1);
  int fetched = 0;
  const auto fetch = [&] {
    outbox.fetch_expected([&](NodeId to) {
      ++fetched;
      outbox.append(to, IntentMessage{});
    });
  };
  fetch();
  CHECK_EQ(fetched, 0);
  outbox.append(1, ack());
  CHECK_EQ(Drained(outbox, 1).frames.size(), std::size_t{1});  // no caller has fetched it
  fetch();
  CHECK_EQ(fetched, 1);
  CHECK_EQ(Drained(outbox, 1).frames.size(), std::size_t{1});
  fetch();
  CHECK_EQ(fetched, 1);
}

TEST(the_memory_of_a_sent_frame_is_reused) {
  Outbox outbox(2);
  const std::vector<float> row(1000, 1.0F);
  const auto next_frame = [&] {
    Frame next;
    outbox.append(1, RefreshMessage{}, {row});
    outbox.drain([&](NodeId, Frame frame) { next = std::move(frame); });
    return next;
  };
  Frame first = next_frame();
  const std::byte* const memory = first.data();
  const Frame content = first;
  outbox.reuse(std::move(first));
  Frame second = next_frame();
  CHECK(second.data() == memory);
  CHECK(second == content);
  CHECK(next_frame().data() != memory);
  constexpr std::size_t kTooMuch = std::size_t{3} << 20;  // too large to be kept
  second.reserve(kTooMuch);
  outbox.reuse(std::move(second));
  CHECK(next_frame().capacity() < kTooMuch);
}
