// Times when frames leave, and their contents.
#include "protocol/outbox.h"

#include <utility>
#include <vector>

#include "check.h"

using namespace adaps;

namespace {

// Lets a channel's frames leave that are due. Returns their number.
std::size_t drained(Outbox& outbox, Micros now) {
  std::size_t frames = 0;
  outbox.set_now(now);
  outbox.drain([&](NodeId, const Frame&) { ++frames; });
  return frames;
}

}  // namespace

TEST(expected_messages_are_added_before_a_frame_leaves) {
  Outbox outbox(4);
  outbox.set_wait(1000);
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
  outbox.append(1, AckMessage{});
  CHECK_EQ(drained(outbox, 1), std::size_t{1});  // no caller has fetched it
  fetch();
  CHECK_EQ(fetched, 1);
  CHECK_EQ(drained(outbox, 1), std::size_t{1});
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
