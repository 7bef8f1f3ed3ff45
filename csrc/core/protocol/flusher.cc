#include "protocol/flusher.h"

#include <utility>

namespace adaps {

Flusher::Flusher(ChannelContext& channel, Replicas& replicas)
    : channel_(channel),
      replicas_(replicas),
      cadence_(channel.node.tables),
      deferred_(cadence_.groups()),
      due_(cadence_.groups()),
      kept_back_(channel.node.settings.nodes),
      room_awaited_(channel.node.settings.nodes) {}

void Flusher::flush(Beyond beyond) {
  // A flush that joins another one sends everything. If it deferred keys, the next one would take them back,
  // and the flush would not end. After all workers of the node have left, the clock does not advance, so all
  // changes are due.
  const bool joins = under_way();
  if (joins || (cadence_.any_by_clocks() && channel_.node.barrier.all_left())) beyond = Beyond::kEverything;
  const Clock clock = newest_clock();
  wanted_ = kNever;
  channel_.partition.dirty.take(newly_dirty_);
  if (joins) {
    keys_.insert(keys_.end(), newly_dirty_.begin(), newly_dirty_.end());
  } else {
    if (cadence_.any_by_clocks()) let_wait();
    keys_.swap(newly_dirty_);
  }
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    due_[i] = beyond == Beyond::kEverything || cadence_.due(i, channel_.now, clock);
    if (!due_[i] && beyond == Beyond::kNothing) continue;
    if (cadence_.by_clocks(i)) decisions().list_once(deferred_[i]);
    keys_.insert(keys_.end(), deferred_[i].begin(), deferred_[i].end());
    deferred_[i].clear();
  }
  end_ = flushed_ + keys_.size() - next_;
  beyond_ = beyond;
  continue_flush();
}

bool Flusher::due() const {
  return decisions().may_begin_flush(under_way()) && channel_.now >= std::max(wanted_, allowed_);
}

void Flusher::continue_flush() {
  const Clock clock = newest_clock();
  const std::uint64_t before = channel_.outbox.appended();
  const bool awaited = decisions().leaves_for_sync(channel_.node.epochs.anyone_hurries());
  const std::size_t first = next_;
  const Table* hint = nullptr;
  const bool through = channel_.process_slice(keys_, next_, [&](Key key) {
    const std::size_t group = group_of(key, hint);
    if (due_[group]) {
      flush_key(key, awaited || cadence_.by_clocks(group));
      cadence_.flushed(group, channel_.now, clock);
    } else if (goes_beyond(key)) {
      flush_key(key, awaited || cadence_.by_clocks(group));
    } else {
      deferred_[group].push_back(key);
    }
  });
  flushed_ += next_ - first;
  bytes_ += channel_.outbox.appended() - before;
  if (through) finish();
}

// Whether the flush sends the key's change although it is not due.
bool Flusher::goes_beyond(Key key) const {
  if (beyond_ == Beyond::kNothing) return false;
  const bool owned = is_owned(channel_.node.store.peek(key));
  return includes(beyond_, owned ? Beyond::kRefreshes : Beyond::kChanges);
}

void Flusher::finish() {
  const Clock clock = newest_clock();
  keys_.clear();
  next_ = 0;
  deferred_kinds_ = Beyond::kNothing;
  Clock due_at = kForever;
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    if (deferred_[i].empty()) continue;
    deferred_kinds_ = all_but(beyond_);
    if (cadence_.by_clocks(i)) {
      due_at = std::min(due_at, cadence_.due_at(i));
    } else {
      wanted_ = std::min(wanted_, cadence_.latest(i, clock));
    }
  }
  if (cadence_.any_by_clocks()) channel_.partition.request_round_at(decisions().round_at(due_at));
  const Settings& settings = channel_.node.settings;
  // The channels of a node share its network card.
  const auto bytes = static_cast<double>(std::exchange(bytes_, 0)) * settings.channels;
  const auto pause = static_cast<Micros>(bytes / settings.max_round_bytes_per_second * 1e6);
  ended_ = channel_.now;
  allowed_ = ended_ + std::max(settings.round_distance(), pause);
}

// Sends the key's changes. With `at_once`, changes do not wait until a frame leaves. A change that must wait
// stays with the key, where later changes are merged into it.
void Flusher::flush_key(Key number, bool at_once) {
  LockedKey key = channel_.lock(number);
  if (!key.has_slot()) return;
  SlotHeader& header = key.header();
  header.flags &= static_cast<std::uint8_t>(~kOnDirtyList);
  const bool exact = channel_.node.exact.load();
  if (at_once && channel_.outbox.lets_wait()) leave_now(key);
  const bool is_copy = key.state() == State::kReplica;
  const bool waits =
      is_copy && (channel_.backlog.is_full(header.location) || channel_.outbox.leaves_later(header.location));
  if (waits && replicas_.has_to_flush(key, exact)) {
    keep_back(key);
  } else {
    const std::size_t bytes = replicas_.flush(key, exact);
    if (bytes > 0) channel_.backlog.add(header.location, bytes);
  }
}

void Flusher::keep_back(LockedKey& key) {
  SlotHeader& header = key.header();
  const NodeId owner = header.location;
  if ((header.flags & kKeptBack) == 0) {
    header.flags |= kKeptBack;
    decisions().keep_change(kept_back_[owner], key.key());
  }
  if (channel_.backlog.is_full(owner)) {
    room_awaited_.insert(owner);
    channel_.backlog.note_waiting(owner);
  } else {
    channel_.outbox.expect(owner);
  }
}

// Lets the frames leave that contain the key's changes, to its owner or to its holders.
void Flusher::leave_now(LockedKey& key) {
  if (key.state() == State::kReplica) {
    channel_.outbox.leave_now(key.header().location);
  } else if (key.state() == State::kOwner) {
    const Version version = key.header().version();
    channel_.holders_of(key).for_each([&](const Holder& holder) {
      if (holder.sent != version) channel_.outbox.leave_now(static_cast<NodeId>(holder.node));
    });
  }
}

void Flusher::send_kept_back() {
  more_kept_back_ = false;
  room_awaited_.for_each([this](NodeId owner) { send_kept_back(owner); });
}

void Flusher::send_kept_back(NodeId owner) {
  std::deque<Key>& keys = kept_back_[owner];
  room_awaited_.erase(owner);
  for (std::size_t i = keys.size(); i > 0; --i) {
    if (channel_.backlog.is_full(owner)) {
      room_awaited_.insert(owner);
      return;
    }
    if (channel_.outbox.leaves_later(owner)) {
      channel_.outbox.expect(owner);
      return;
    }
    if (channel_.slice.is_used_up()) {
      room_awaited_.insert(owner);
      channel_.outbox.go_on_leaving(owner);
      more_kept_back_ = true;
      return;
    }
    const Key number = keys.front();
    keys.pop_front();
    channel_.spend(number);
    {
      LockedKey key = channel_.lock(number);
      if (!key.has_slot()) continue;
      key.header().flags &= static_cast<std::uint8_t>(~kKeptBack);
    }
    flush_key(number, false);
  }
}

// Defers keys that became dirty, if a policy has set the number of clocks for them. All of them are deferred,
// so that a key that is listed twice is found when its group is due.
void Flusher::let_wait() {
  const Table* hint = nullptr;
  std::erase_if(newly_dirty_, [&](Key key) {
    const std::size_t group = group_of(key, hint);
    if (!cadence_.by_clocks(group)) return false;
    deferred_[group].push_back(key);
    deferred_kinds_ = Beyond::kEverything;
    return true;
  });
}

std::size_t Flusher::group_of(Key key, const Table*& hint) const {
  const Tables& tables = channel_.node.tables;
  return cadence_.group(tables, tables.number_of(tables.find(key, hint)), key);
}

Clock Flusher::newest_clock() const {
  Clock newest = 0;
  for (const auto& worker : channel_.node.workers)
    newest = std::max(newest, worker->clock.load(std::memory_order_relaxed));
  return newest;
}

}  // namespace adaps
