#include "protocol/flusher.h"

#include <utility>

namespace adaps {

Flusher::Flusher(ChannelContext& channel, Replicas& replicas)
    : channel_(channel),
      replicas_(replicas),
      cadence_(channel.node.tables),
      deferred_(channel.node.tables.size()),
      table_due_(channel.node.tables.size()) {}

void Flusher::flush(bool everything) {
  const Clock clock = newest_clock();
  const bool joins = under_way();
  wanted_ = kNever;
  channel_.partition.dirty.take(newly_dirty_);
  end_ += newly_dirty_.size();
  if (joins) {
    keys_.insert(keys_.end(), newly_dirty_.begin(), newly_dirty_.end());
  } else {
    keys_.swap(newly_dirty_);
  }
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    table_due_[i] = everything || (joins ? table_due_[i] : cadence_.due(i, channel_.now, clock));
    if (!table_due_[i]) continue;
    keys_.insert(keys_.end(), deferred_[i].begin(), deferred_[i].end());
    end_ += deferred_[i].size();
    deferred_[i].clear();
  }
  go_on();
}

void Flusher::go_on() {
  const Tables& tables = channel_.node.tables;
  const Clock clock = newest_clock();
  const std::size_t before = channel_.outbox.size_bytes();
  const std::size_t first = next_;
  const Table* hint = nullptr;
  const bool through = channel_.go_on(keys_, next_, [&](Key key) {
    const std::size_t table = tables.number_of(tables.find(key, hint));
    if (table_due_[table]) {
      flush_key(key);
      cadence_.flushed(table, channel_.now, clock);
    } else {
      deferred_[table].push_back(key);
    }
  });
  flushed_ += next_ - first;
  bytes_ += channel_.outbox.size_bytes() - before;
  if (through) finish();
}

void Flusher::finish() {
  const Clock clock = newest_clock();
  keys_.clear();
  next_ = 0;
  any_deferred_ = false;
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    if (deferred_[i].empty()) continue;
    any_deferred_ = true;
    wanted_ = std::min(wanted_, cadence_.latest(i, clock));
  }
  const Settings& settings = channel_.node.settings;
  const auto bytes = static_cast<double>(std::exchange(bytes_, 0));
  const auto pause = static_cast<Micros>(bytes / settings.max_round_bytes_per_second * 1e6);
  allowed_ = channel_.now + std::max(settings.round_distance(), pause);
}

void Flusher::flush_key(Key number) {
  LockedKey key = channel_.lock(number);
  if (!key.has_slot()) return;
  key.header().flags &= static_cast<std::uint8_t>(~kOnDirtyList);
  replicas_.flush(key, channel_.node.exact.load());
}

void Flusher::defer(std::span<const Key> keys) {
  const Tables& tables = channel_.node.tables;
  const Table* hint = nullptr;
  for (const Key key : keys) deferred_[tables.number_of(tables.find(key, hint))].push_back(key);
}

Clock Flusher::newest_clock() const {
  Clock newest = 0;
  for (const auto& worker : channel_.node.workers)
    newest = std::max(newest, worker->clock.load(std::memory_order_relaxed));
  return newest;
}

}  // namespace adaps
