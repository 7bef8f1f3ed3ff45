#include "protocol/refreshes.h"

#include "protocol/message_values.h"

namespace adaps {

Refreshes::Refreshes(ChannelContext& channel)
    : channel_(channel),
      held_back_(channel.node.settings.nodes),
      network_awaited_(channel.node.settings.nodes),
      ever_held_back_(channel.node.settings.nodes),
      echoes_due_(channel.node.settings.nodes) {}

std::size_t Refreshes::send(LockedKey& key, Holder& holder) {
  const Version version = key.header().version();
  holder.held_back = 0;
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
  const auto to = static_cast<NodeId>(holder.node);
  const std::size_t bytes = channel_.outbox.append(to, message, {row});
  holder.frame = channel_.outbox.last_frame(to) & kKnownOfFrame;
  channel_.counters.refreshes_sent.add();
  return bytes;
}

// Sends the waiting messages for the peer at once, because they must precede the ECHO.
void Refreshes::expect_echo(NodeId to) {
  ++echoes_due_[to];
  if (decisions().leaves_for_echo()) channel_.outbox.leave_now(to);
}

// While the peer waits for an ECHO, refreshes need not wait until the network has accepted the previous
// refresh. This cannot lead to unlimited memory, because the number of ECHOs is limited by the number of the
// peer's waiting workers.
bool Refreshes::waits_for_network(NodeId to, std::uint32_t frame) const {
  if (channel_.backlog.is_full(to)) return true;
  return echoes_due_[to] == 0 && channel_.backlog.untaken(to, frame);
}

bool Refreshes::waits_for_frame(NodeId to) const {
  return channel_.outbox.leaves_later(to) && (echoes_due_[to] == 0 || !decisions().leaves_for_echo());
}

// At most one refresh of a key waits for a holder. It is sent with the key's latest value.
void Refreshes::send_or_hold_back(LockedKey& key, Holder& holder) {
  const auto to = static_cast<NodeId>(holder.node);
  const bool network = waits_for_network(to, holder.frame);
  if (!network && !waits_for_frame(to)) {
    if (const std::size_t bytes = send(key, holder); bytes > 0) channel_.backlog.add(to, bytes);
    return;
  }
  if (holder.sent == key.header().version() || holder.held_back != 0) return;
  holder.held_back = 1;
  ++ever_held_back_[to];
  decisions().hold_back(held_back_[to], {key.key(), holder.frame});
  if (network) {
    network_awaited_.insert(to);
    channel_.backlog.note_waiting(to);
    channel_.counters.refreshes_held_back.add();
  } else {
    channel_.outbox.expect(to);
  }
}

void Refreshes::send_held_back() {
  more_held_back_ = false;
  network_awaited_.for_each([this](NodeId to) { send_held_back(to); });
}

// Skips outdated entries: keys that were refreshed, dropped or given away since they were held back.
void Refreshes::send_held_back(NodeId to) {
  std::deque<HeldBack>& waiting = held_back_[to];
  network_awaited_.erase(to);
  while (!waiting.empty()) {
    const HeldBack first = waiting.front();
    if (waits_for_network(to, first.frame)) {
      network_awaited_.insert(to);
      return;
    }
    if (waits_for_frame(to)) {
      channel_.outbox.expect(to);
      return;
    }
    if (channel_.slice.is_used_up()) {
      network_awaited_.insert(to);
      channel_.outbox.go_on_leaving(to);
      more_held_back_ = true;
      return;
    }
    waiting.pop_front();
    LockedKey key = channel_.lock(first.key);
    channel_.slice.spend(key.width());
    if (key.state() != State::kOwner) continue;
    Holder* holder = channel_.holders_of(key).find(to);
    if (holder == nullptr || holder->held_back == 0 || holder->frame != first.frame) continue;
    if (const std::size_t bytes = send(key, *holder); bytes > 0) channel_.backlog.add(to, bytes);
  }
}

}  // namespace adaps
