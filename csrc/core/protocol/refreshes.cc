#include "protocol/refreshes.h"

#include "protocol/message_values.h"

namespace adaps {

Refreshes::Refreshes(ChannelContext& channel)
    : channel_(channel),
      held_back_(channel.node.settings.nodes),
      ever_held_back_(channel.node.settings.nodes),
      echoes_due_(channel.node.settings.nodes) {}

std::size_t Refreshes::send(LockedKey& key, Holder& holder) {
  const Version version = key.header().version();
  holder.held_back = false;
  if (holder.sent == version) return 0;
  holder.sent = version;
  RefreshMessage message;
  message.key = key.key();
  message.version = version;
  std::span<const float> row = key.stored(key.width());
  if (encode_row(key, key.width(), channel_.encoded)) {
    message.encoded = 1;
    row = channel_.encoded;
  }
  const std::size_t bytes = channel_.outbox.append(holder.node, message, {row});
  holder.frame = channel_.outbox.last_frame(holder.node);
  channel_.counters.refreshes_sent.add();
  return bytes;
}

// If the peer waits for an ECHO, what went before need not have been taken; it cannot ask for more ECHOs than
// it has workers that wait.
bool Refreshes::has_to_wait(NodeId to, std::uint32_t frame) const {
  if (channel_.backlog.is_full(to)) return true;
  return echoes_due_[to] == 0 && channel_.backlog.untaken(to, frame);
}

// At most one refresh of a key waits on a link: a later one replaces those that were held back.
void Refreshes::send_or_hold_back(LockedKey& key, Holder& holder) {
  if (!has_to_wait(holder.node, holder.frame)) {
    if (const std::size_t bytes = send(key, holder); bytes > 0) channel_.backlog.add(holder.node, bytes);
    return;
  }
  if (holder.sent == key.header().version() || holder.held_back) return;
  holder.held_back = true;
  channel_.backlog.note_waiting(holder.node);
  channel_.counters.refreshes_held_back.add();
  ++ever_held_back_[holder.node];
  rules().hold_back(held_back_[holder.node], {key.key(), holder.frame});
}

// An entry whose key was refreshed, dropped or given away since it was held back is stale and skipped.
void Refreshes::send_held_back() {
  more_held_back_ = false;
  for (NodeId peer = 0; peer < channel_.node.settings.nodes; ++peer) {
    std::deque<HeldBack>& waiting = held_back_[peer];
    while (!waiting.empty() && !has_to_wait(peer, waiting.front().frame)) {
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
      if (holder == nullptr || !holder->held_back || holder->frame != first.frame) continue;
      if (const std::size_t bytes = send(key, *holder); bytes > 0) channel_.backlog.add(peer, bytes);
    }
  }
}

}  // namespace adaps
