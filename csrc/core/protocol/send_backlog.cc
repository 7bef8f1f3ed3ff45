#include "protocol/send_backlog.h"

#include <algorithm>

#include "protocol/decisions.h"
#include "protocol/holders.h"

namespace adaps {

SendBacklog::SendBacklog(const Settings& settings, Outbox& outbox, ChannelCounters& counters)
    : limit_(
          std::max<std::size_t>(settings.max_unsent_bytes / static_cast<std::size_t>(settings.channels), 1)),
      outbox_(outbox),
      counters_(counters),
      taken_(settings.nodes),
      waiting_(settings.nodes) {}

void SendBacklog::set_frames(std::function<std::size_t(NodeId)> frames) {
  frames_ = std::move(frames);
  outbox_.count_unasked();
}

void SendBacklog::look(Micros now) {
  if (!frames_) return;
  outbox_.untaken().for_each([this](NodeId peer) {
    const std::size_t frames = frames_(peer);
    taken_[peer] = outbox_.last_drained(peer) - static_cast<std::uint32_t>(frames);
    outbox_.note_untaken(peer, frames);
  });
  const Micros since = std::exchange(last_look_, now);
  if (!std::exchange(any_waiting_, false)) return;
  for (std::size_t peer = 0; peer < waiting_.size(); ++peer) {
    if (!waiting_[peer]) continue;
    counters_.unsent_full_micros.add(static_cast<std::uint64_t>(now - since));
    waiting_[peer] = is_full(static_cast<NodeId>(peer));
    any_waiting_ = any_waiting_ || waiting_[peer];
  }
}

// Holders store 31 bits of a frame's number, so an old frame may look like a recent one. The only consequence
// is that a refresh is sent later than necessary.
bool SendBacklog::untaken(NodeId to, std::uint32_t frame) const {
  if (!frames_) return false;
  const std::uint32_t last = outbox_.last_frame(to);
  return ((last - frame) & kKnownOfFrame) < ((last - taken_[to]) & kKnownOfFrame);
}

// Counts a message. If it reaches the limit, the frame leaves at once, so that space becomes available.
void SendBacklog::add(NodeId to, std::size_t bytes) {
  outbox_.add_unasked(to, bytes);
  if (is_full(to)) outbox_.leave_now(to);
}

bool SendBacklog::is_full(NodeId to) const {
  if (!frames_) return false;
  const std::uint64_t waits = outbox_.unasked_appended(to) - decisions().taken(outbox_.unasked_taken(to));
  return decisions().is_full(waits, limit_);
}

void SendBacklog::note_waiting(NodeId to) {
  newly_waiting_ = true;
  if (!is_full(to)) return;  // it waits for a frame, not for room
  waiting_[to] = true;
  any_waiting_ = true;
}

}  // namespace adaps
