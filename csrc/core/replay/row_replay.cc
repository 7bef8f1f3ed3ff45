#include "replay/row_replay.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adaps {

namespace {

// Ticks are positions in the stream, from 1 on. The next request of each position; 0 if there is none.
std::vector<Tick> next_requests(std::span<const std::int64_t> ids) {
  std::vector<Tick> next(ids.size());
  std::unordered_map<std::int64_t, Tick> later;
  for (std::size_t i = ids.size(); i > 0; --i) {
    Tick& of_id = later[ids[i - 1]];
    next[i - 1] = of_id;
    of_id = static_cast<Tick>(i);
  }
  return next;
}

class RowReplay {
 public:
  RowReplay(std::span<const std::int64_t> ids, const RowReplaySettings& settings)
      : ids_(ids),
        settings_(settings),
        next_(next_requests(ids)),
        replacement_(settings.evict, settings.rows,
                     static_cast<Tick>(
                         std::min<std::uint64_t>(std::uint64_t{settings.ttl} * settings.batch, INT32_MAX))),
        requested_(settings.rows),
        announced_at_(settings.rows) {}

  RowReplayResult run() {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (has_lookahead() && i % settings_.batch == 0) announce(i);
      request(i);
    }
    return result_;
  }

 private:
  bool has_lookahead() const { return settings_.evict == Evict::kIntent && settings_.lookahead != 0; }

  // The end of the batches that are announced while a batch is processed.
  std::size_t announced_end(std::size_t position) const {
    return (position / settings_.batch + 1 + settings_.lookahead) * settings_.batch;
  }

  // Announces the requests of the batch that comes into the lookahead. Rows are already announced for earlier
  // requests of their ids.
  void announce(std::size_t position) {
    const std::size_t end = std::min(announced_end(position), ids_.size());
    const std::size_t begin = position == 0 ? 0 : std::min(announced_end(position - 1), ids_.size());
    for (std::size_t i = begin; i < end; ++i) {
      const auto found = row_of_.find(ids_[i]);
      if (found != row_of_.end() && next_[requested_[found->second]] == i + 1)
        set_announced(found->second, static_cast<Tick>(i + 1));
    }
  }

  // Sets the announced request of a row. 0: its next request is not announced.
  void set_announced(std::uint64_t row, Tick at) {
    if (announced_at_[row] != 0) announced_.erase({announced_at_[row], row});
    announced_at_[row] = at;
    if (at != 0) announced_.emplace(at, row);
  }

  void request(std::size_t position) {
    const std::int64_t id = ids_[position];
    const Tick now = static_cast<Tick>(position + 1);
    const auto found = row_of_.find(id);
    if (found != row_of_.end()) {
      ++result_.hits;
      replacement_.used(found->second, now);
      requested(found->second, position);
    } else if (settings_.admit_seen > 1 && seen_.count(id) < settings_.admit_seen) {
      ++result_.not_admitted;
    } else {
      create(id, position);
    }
  }

  void create(std::int64_t id, std::size_t position) {
    const Tick now = static_cast<Tick>(position + 1);
    std::uint64_t row = row_of_.size();
    if (row == settings_.rows) {
      const std::optional<std::uint64_t> retired = choose(now);
      if (!retired) {
        ++result_.full;
        return;
      }
      row = *retired;
      const std::int64_t before = ids_[requested_[row]];
      row_of_.erase(before);
      replacement_.retired(row, before);
    }
    seen_.forget(id);
    row_of_[id] = row;
    replacement_.created(row, id, now);
    ++result_.created;
    requested(row, position);
  }

  // Chooses the row to retire. A server retires no announced row, and refuses an id if all rows are
  // announced. The replay then retires the row with the farthest request, which is optimal (Belady: A Study
  // of Replacement Algorithms for a Virtual-Storage Computer, IBM Systems Journal 5(2), 1966).
  std::optional<std::uint64_t> choose(Tick now) {
    if (settings_.evict == Evict::kNone) return std::nullopt;
    std::uint64_t row = 0;
    const auto may_retire = [this](std::uint64_t each) { return announced_at_[each] == 0; };
    if (announced_.size() < settings_.rows && replacement_.choose(now, std::span(&row, 1), may_retire) == 1)
      return row;
    if (announced_.empty()) return std::nullopt;
    return announced_.rbegin()->second;
  }

  // A row has been requested. Its next request is announced if it is within the lookahead. If the last batch
  // is announced and has no further request of the row, the row is the first to retire.
  void requested(std::uint64_t row, std::size_t position) {
    requested_[row] = position;
    if (!has_lookahead()) return;
    const std::size_t end = announced_end(position);
    const Tick next = next_[position];
    const bool is_last = next == 0 && end >= ids_.size();
    set_announced(row, is_last ? kNoRequest : next <= end ? next : 0);
  }

  static constexpr Tick kNoRequest = UINT32_MAX;

  const std::span<const std::int64_t> ids_;
  const RowReplaySettings& settings_;
  const std::vector<Tick> next_;
  Replacement replacement_;
  SeenSketch seen_{settings_.rows};
  std::unordered_map<std::int64_t, std::uint64_t> row_of_;
  std::vector<std::size_t> requested_;                  // position of the last request of each row
  std::vector<Tick> announced_at_;                      // by row: its announced request, or 0
  std::set<std::pair<Tick, std::uint64_t>> announced_;  // announced requests with their rows
  RowReplayResult result_;
};

}  // namespace

RowReplayResult replay_rows(std::span<const std::int64_t> ids, const RowReplaySettings& settings) {
  return RowReplay(ids, settings).run();
}

}  // namespace adaps
