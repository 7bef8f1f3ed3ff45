#include "protocol/refreshes.h"

#include "protocol/message_values.h"

namespace adaps {

Refreshes::Refreshes(ChannelContext& channel)
    : channel_(channel),
      taken_(channel.node.settings.nodes),
      held_back_(channel.node.settings.nodes),
      echoes_due_(channel.node.settings.nodes) {}

void Refreshes::send(LockedKey& key, Holder& holder) {
  const Version version = key.header().version();
  holder.held_back = false;
  if (holder.sent == version) return;
  holder.sent = version;
  RefreshMessage message;
  message.key = key.key();
  message.version = version;
  std::span<const float> row(key.value(), key.width());
  if (encode_row(key, row, channel_.encoded)) {
    message.encoded = 1;
    row = channel_.encoded;
  }
  channel_.outbox.append(holder.node, message, {row});
  holder.frame = channel_.outbox.last_frame(holder.node);
  channel_.counters.refreshes_sent.add();
}

void Refreshes::look_at_links() {
  if (!backlog_) return;
  const Outbox& outbox = channel_.outbox;
  for (NodeId peer = 0; peer < channel_.node.settings.nodes; ++peer) {
    if (peer != channel_.rank)
      taken_[peer] = outbox.last_drained(peer) - static_cast<std::uint32_t>(backlog_(peer));
  }
}

// Frame numbers wrap around at 2^32, so an old one may look like a recent one; then a refresh is merely sent
// later than it could be.
bool Refreshes::untaken(NodeId to, std::uint32_t frame) const {
  if (!backlog_) return false;
  const std::uint32_t last = channel_.outbox.last_frame(to);
  return last - frame < last - taken_[to];
}

// At most one refresh of a key waits on a link: a later one replaces those that were held back. If the holder
// waits for an ECHO, the refresh goes at once; it cannot ask for more ECHOs than it has workers that wait.
void Refreshes::send_or_hold_back(LockedKey& key, Holder& holder) {
  if (echoes_due_[holder.node] > 0 || !untaken(holder.node, holder.frame)) {
    send(key, holder);
    return;
  }
  if (holder.sent == key.header().version() || holder.held_back) return;
  holder.held_back = true;
  newly_held_back_ = true;
  channel_.counters.refreshes_held_back.add();
  rules().hold_back(held_back_[holder.node], {key.key(), holder.frame});
}

// An entry whose key was refreshed, dropped or given away since it was held back is stale and skipped.
void Refreshes::send_held_back() {
  more_held_back_ = false;
  for (NodeId peer = 0; peer < channel_.node.settings.nodes; ++peer) {
    std::deque<HeldBack>& waiting = held_back_[peer];
    while (!waiting.empty() && !untaken(peer, waiting.front().frame)) {
      if (channel_.slice.is_used_up()) {
        more_held_back_ = true;
        return;
      }
      const HeldBack first = waiting.front();
      waiting.pop_front();
      LockedKey key = channel_.lock(first.key);
      channel_.slice.spend(key.width());
      if (key.state() != State::kOwner) continue;
      Holder* holder = channel_.holders_of(key).find(peer);
      if (holder != nullptr && holder->held_back && holder->frame == first.frame) send(key, *holder);
    }
  }
}

std::vector<Key> Refreshes::take_held_back(NodeId to) {
  std::vector<Key> keys;
  for (const HeldBack& refresh : held_back_[to]) keys.push_back(refresh.key);
  held_back_[to].clear();
  return keys;
}

}  // namespace adaps
