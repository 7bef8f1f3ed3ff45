#include "replay/row_replay.h"

#include <algorithm>
#include <unordered_map>
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
        requested_(settings.rows) {}

  RowReplayResult run() {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (i % settings_.batch == 0) announce(i);
      request(i);
    }
    return result_;
  }

 private:
  // The end of the batches that are announced while a batch is processed.
  std::size_t announced_end(std::size_t position) const {
    return (position / settings_.batch + 1 + settings_.lookahead) * settings_.batch;
  }

  // Announces the requests of the batch that comes into the lookahead. Rows are already announced for earlier
  // requests of their ids.
  void announce(std::size_t position) {
    if (settings_.lookahead == 0) return;
    const std::size_t end = std::min(announced_end(position), ids_.size());
    const std::size_t begin = position == 0 ? 0 : std::min(announced_end(position - 1), ids_.size());
    for (std::size_t i = end; i > begin; --i) {
      const auto found = row_of_.find(ids_[i - 1]);
      if (found != row_of_.end() && next_[requested_[found->second]] == i)
        replacement_.announced(found->second, static_cast<Tick>(i));
    }
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
      if (settings_.evict == Evict::kNone ||
          replacement_.choose(now, std::span(&row, 1), [](std::uint64_t) { return true; }) == 0) {
        ++result_.full;
        return;
      }
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

  // A row has been requested. Its next request is announced if it is within the lookahead.
  void requested(std::uint64_t row, std::size_t position) {
    requested_[row] = position;
    const Tick next = next_[position];
    if (next != 0 && settings_.lookahead != 0 && next <= announced_end(position))
      replacement_.announced(row, next);
  }

  const std::span<const std::int64_t> ids_;
  const RowReplaySettings& settings_;
  const std::vector<Tick> next_;
  Replacement replacement_;
  SeenSketch seen_{settings_.rows};
  std::unordered_map<std::int64_t, std::uint64_t> row_of_;
  std::vector<std::size_t> requested_;  // position of the last request of each row
  RowReplayResult result_;
};

}  // namespace

RowReplayResult replay_rows(std::span<const std::int64_t> ids, const RowReplaySettings& settings) {
  return RowReplay(ids, settings).run();
}

}  // namespace adaps
