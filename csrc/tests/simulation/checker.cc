#include "simulation/checker.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

constexpr Step kNotYet = std::numeric_limits<Step>::max();

struct WriteInfo {
  CallKind kind = CallKind::kPush;
  Step start = 0;
  Step end = kNotYet;
  NodeId node = 0;
  std::uint32_t worker = 0;
  std::uint32_t key = 0;
  bool superseded = false;  // a set that is overwritten by a later set of the same key in the same call
  // For a push, the step from which it is certainly applied at the owner: the end of the node's first
  // wait_sync that began after the push had ended, or the end of a read on another node that contains the
  // push. For a write of an optimizer state, also the end of a pull_state that read it.
  Step applied = kNotYet;
  std::optional<std::uint32_t> before{};  // for a push, the previous push of the same key in the same call
  // For a write of an optimizer state, a step before which it is certainly not applied at the owner.
  Step unapplied = 0;
};

// A pull_state, or the state at the end.
struct SeenState {
  std::uint32_t key;
  StateContent content;
  NodeId node;
  Step start, end;
};

struct Sync {
  Step start, end;
};

struct Seen {
  Step end;
  Content content;
};

class Checker {
 public:
  Checker(const History& history, std::size_t keys)
      : history_(history),
        pushes_(keys),
        sets_(1),
        state_sets_(1),
        initial_states_(keys, {.start = -1, .end = -1, .applied = -1, .unapplied = -1}),
        order_(keys) {
    for (const Record& record : history) index(record);
    for (auto& of_key : pushes_) {
      for (WriteInfo& push : of_key) push.applied = first_sync_after(push);
    }
    for (const Record& record : history) index_reads(record);
  }

  void check_reads() {
    for (const Record& record : history_) {
      if (record.end == kOpen) continue;
      const Step synced = last_sync(record);
      for (std::size_t i = 0; i < record.reads.size(); ++i) {
        const Read& read = record.reads[i];
        check_plausible(read.key, read.content, record.end);
        check_own_writes(record, read);
        check_monotonic(record, read);
        if (synced >= 0) check_visible(read, synced);
        for (std::size_t j = 0; j < i; ++j) {
          if (record.reads[j].key == read.key) check_rows(record.reads[j].content, read.content);
        }
      }
      for (const Read& read : record.reads)
        seen_[{record.worker, read.key}].push_back({record.end, read.content});
    }
  }

  void check_last(const Rows& last) {
    for (std::uint32_t key = 0; key < last.values.size(); ++key) {
      if (!last.has_ended.empty() && last.has_ended[key]) continue;
      const Content& content = last.values[key];
      check_plausible(key, content, kNotYet);
      for (std::uint32_t push = 0; push < pushes_[key].size(); ++push)
        check_contains(key, push, content, "lost update");
      for (std::uint32_t set = 1; set < sets_.size(); ++set) {
        if (sets_[set].key != key || sets_[set].superseded || set == content.set) continue;
        if (surely_before(content.set, set)) throw Violation("lost update: set ", set);
        order_[key].emplace_back(set, content.set);
      }
    }
  }

  // A pull_state and a set_state have their effect at the owner, at one moment between their start and end. A
  // gradient has it between its start and `applied`.
  void check_states(const std::vector<StateRead>& last) {
    std::vector<SeenState> all;
    for (const Record& record : history_) {
      for (const StateRead& read : record.states)
        all.push_back({read.key, read.content, record.node, record.start, record.end});
    }
    for (const StateRead& read : last) all.push_back({read.key, read.content, 0, kNotYet, kNotYet});
    for (const SeenState& seen : all) {
      WriteInfo& write = write_of(seen);
      write.applied = std::min(write.applied, seen.end);
      for (const SeenState& earlier : all) {
        if (earlier.key == seen.key && earlier.end < seen.start && earlier.content != seen.content)
          write.unapplied = std::max(write.unapplied, earlier.start);
      }
    }
    for (const SeenState& seen : all) check_state(seen);
  }

  void check_order_of_sets() {
    for (std::uint32_t key = 0; key < order_.size(); ++key) {
      if (order_[key].empty()) continue;
      std::vector<std::uint32_t> left;
      for (std::uint32_t set = 1; set < sets_.size(); ++set) {
        if (sets_[set].key == key && !sets_[set].superseded) left.push_back(set);
      }
      const auto precedes = [&](std::uint32_t a, std::uint32_t b) {
        return surely_before(a, b) ||
               std::find(order_[key].begin(), order_[key].end(), std::pair(a, b)) != order_[key].end();
      };
      // Removes a set that no other set precedes. If there is none, the order has a cycle.
      while (!left.empty()) {
        const auto first = std::find_if(left.begin(), left.end(), [&](std::uint32_t b) {
          return std::none_of(left.begin(), left.end(),
                              [&](std::uint32_t a) { return a != b && precedes(a, b); });
        });
        if (first == left.end()) throw Violation("order of sets: observed orders contradict each other");
        left.erase(first);
      }
    }
  }

 private:
  void index(const Record& record) {
    const Step end = record.end == kOpen ? kNotYet : record.end;
    if (record.kind == CallKind::kSync) {
      if (syncs_.size() <= record.node) syncs_.resize(record.node + 1U);
      syncs_[record.node].push_back({record.start, end});
      return;
    }
    for (std::size_t i = 0; i < record.writes.size(); ++i) {
      const Write& write = record.writes[i];
      WriteInfo info{record.kind, record.start, end,     record.node, record.worker,
                     write.key,   false,        kNotYet, {},          record.start};
      const bool sets_state = record.kind == CallKind::kSetState;
      std::vector<WriteInfo>& list = sets_state                      ? state_sets_
                                     : record.kind == CallKind::kSet ? sets_
                                                                     : pushes_[write.key];
      if (sets_state) info.applied = end;
      if (sets_state || record.kind == CallKind::kSet) {
        for (std::size_t j = i + 1; j < record.writes.size(); ++j) {
          info.superseded = info.superseded || record.writes[j].key == write.key;
        }
      }
      for (std::size_t j = 0; j < i && record.kind != CallKind::kSet; ++j) {
        if (record.writes[j].key == write.key) info.before = record.writes[j].number;
      }
      if (list.size() <= write.number) list.resize(write.number + 1);
      list[write.number] = info;
    }
  }

  Step first_sync_after(const WriteInfo& push) const {
    Step first = kNotYet;
    if (push.end == kNotYet || push.node >= syncs_.size()) return first;
    for (const Sync& sync : syncs_[push.node]) {
      if (sync.start >= push.end) first = std::min(first, sync.end);
    }
    return first;
  }

  // A read of another node's pushes proves that they were applied at the owner.
  void index_reads(const Record& record) {
    if (record.end == kOpen) return;
    for (const Read& read : record.reads) {
      std::vector<WriteInfo>& pushes = pushes_[read.key];
      for (std::size_t number = 0; number < pushes.size(); ++number) {
        if (!read.content.pushes[number] || pushes[number].node == record.node) continue;
        pushes[number].applied = std::min(pushes[number].applied, record.end);
      }
    }
  }

  // The start of the node's last wait_sync that ended before the record's call, or -1 if there is none.
  Step last_sync(const Record& record) const {
    Step last = -1;
    if (record.node >= syncs_.size()) return last;
    for (const Sync& sync : syncs_[record.node]) {
      if (sync.end < record.start) last = std::max(last, sync.start);
    }
    return last;
  }

  bool surely_before(std::uint32_t earlier, std::uint32_t later) const {
    return earlier == 0 || sets_[earlier].end < sets_[later].start;
  }

  // Checks that the content has only writes that may be visible at `until`, and no push that a set overwrote.
  void check_plausible(std::uint32_t key, const Content& content, Step until) const {
    if (content.set != 0) {
      if (content.set >= sets_.size() || sets_[content.set].key != key) {
        throw Violation("value: set ", content.set, " does not exist");
      }
      if (sets_[content.set].superseded) throw Violation("duplicates: an earlier duplicate of a set won");
      if (sets_[content.set].start > until) throw Violation("value: a set from the future");
    }
    for (std::uint32_t number = 0; number < kMaxPushes; ++number) {
      if (!content.pushes[number]) continue;
      if (number >= pushes_[key].size() || pushes_[key][number].start > until) {
        throw Violation("value: push ", number, " does not exist yet");
      }
      const WriteInfo& push = pushes_[key][number];
      if (push.before) check_contains(key, *push.before, content, "duplicates");
      if (content.set == 0) continue;
      const WriteInfo& set = sets_[content.set];
      if ((push.end < set.start && push.node == set.node) || push.applied < set.start) {
        throw Violation("order of sets: push ", number, " survives the later set ", content.set);
      }
    }
  }

  // Checks that the content has the push, unless a set that may be later overwrote it.
  void check_contains(std::uint32_t key, std::uint32_t number, const Content& content,
                      const char* promise) const {
    if (content.pushes[number]) return;
    if (content.set == 0 || sets_[content.set].end < pushes_[key][number].start) {
      throw Violation(promise, ": push ", number, " is missing");
    }
  }

  void check_own_writes(const Record& record, const Read& read) const {
    const std::vector<WriteInfo>& pushes = pushes_[read.key];
    for (std::uint32_t number = 0; number < pushes.size(); ++number) {
      if (pushes[number].worker == record.worker && pushes[number].end < record.start) {
        check_contains(read.key, number, read.content, "read-your-writes");
      }
    }
    for (std::uint32_t set = 1; set < sets_.size(); ++set) {
      const WriteInfo& info = sets_[set];
      if (info.key != read.key || info.superseded || info.worker != record.worker || info.end >= record.start)
        continue;
      if (set != read.content.set && surely_before(read.content.set, set)) {
        throw Violation("read-your-writes: set ", set, " is missing");
      }
    }
  }

  void check_monotonic(const Record& record, const Read& read) {
    const auto found = seen_.find({record.worker, read.key});
    if (found == seen_.end()) return;
    for (const Seen& earlier : found->second) {
      if (earlier.end >= record.start) continue;
      const std::uint32_t before = earlier.content.set;
      if (before == read.content.set) {
        if ((earlier.content.pushes & ~read.content.pushes).any())
          throw Violation("monotonic reads: a push vanished");
      } else if (before != 0) {
        if (surely_before(read.content.set, before)) throw Violation("monotonic reads: a set vanished");
        order_[read.key].emplace_back(before, read.content.set);
      }
    }
  }

  // Checks that all writes that were applied at their owners before `synced` are visible.
  void check_visible(const Read& read, Step synced) const {
    const std::vector<WriteInfo>& pushes = pushes_[read.key];
    for (std::uint32_t number = 0; number < pushes.size(); ++number) {
      if (pushes[number].applied < synced) check_contains(read.key, number, read.content, "wait_sync");
    }
    for (std::uint32_t set = 1; set < sets_.size(); ++set) {
      const WriteInfo& info = sets_[set];
      if (info.key != read.key || info.superseded || info.end >= synced) continue;
      if (set != read.content.set && surely_before(read.content.set, set)) {
        throw Violation("wait_sync: set ", set, " is invisible");
      }
    }
  }

  // Checks two rows that one pull returned for the same key: the second row must not be older than the first.
  void check_rows(const Content& first, const Content& second) const {
    if (first.set == second.set && (first.pushes & ~second.pushes).any()) {
      throw Violation("duplicates: a later row of a pull is older than an earlier one");
    }
  }

  WriteInfo& write_of(const SeenState& seen) {
    std::vector<WriteInfo>& list = seen.content.is_gradient ? pushes_[seen.key] : state_sets_;
    if (seen.content == StateContent{}) return initial_states_[seen.key];
    const bool exists = seen.content.number < list.size() && list[seen.content.number].key == seen.key;
    if (!exists || list[seen.content.number].kind == CallKind::kPush)
      throw Violation("state: ", to_string(seen.content), " of key ", seen.key, " does not exist");
    return list[seen.content.number];
  }

  void check_state(const SeenState& seen) {
    const WriteInfo& last = write_of(seen);
    if (last.superseded) throw Violation("duplicates: an earlier duplicate of a set_state won");
    if (last.start > seen.end) throw Violation("state: ", to_string(seen.content), " from the future");
    if (last.unapplied > last.applied) throw Violation("state: ", to_string(seen.content), " came back");
    const auto check_newer = [&](const WriteInfo& write) {
      if (write.key == seen.key && !write.superseded && is_before(last, write) && is_before(write, seen))
        throw Violation("state: ", to_string(seen.content), " is older than a later ", name_of(write.kind));
    };
    for (const WriteInfo& write : pushes_[seen.key]) {
      if (write.kind == CallKind::kPushGradients) check_newer(write);
    }
    std::for_each(state_sets_.begin() + 1, state_sets_.end(), check_newer);
  }

  // Whether a write of a state certainly took effect before another one. A set_state takes effect after the
  // earlier gradients of its node.
  static bool is_before(const WriteInfo& earlier, const WriteInfo& later) {
    return earlier.applied < later.unapplied ||
           (later.kind == CallKind::kSetState && earlier.node == later.node && earlier.end < later.start);
  }
  // Whether a write of a state certainly took effect before a pull_state, which takes effect after the
  // earlier gradients of its node. At the end, all writes have taken effect.
  static bool is_before(const WriteInfo& write, const SeenState& seen) {
    const bool at_end = seen.start == kNotYet;
    return write.applied < seen.start || ((at_end || write.node == seen.node) && write.end < seen.start);
  }

  const History& history_;
  std::vector<std::vector<WriteInfo>> pushes_;  // by key and number
  std::vector<WriteInfo> sets_;                 // by number; 0 is the initial value
  std::vector<WriteInfo> state_sets_;           // by number; 0 is unused
  std::vector<WriteInfo> initial_states_;       // by key
  std::vector<std::vector<Sync>> syncs_;        // by node
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Seen>> seen_;  // by worker and key
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> order_;  // observed order of sets, by key
};

}  // namespace

void check_history(const History& history, const Rows& last) {
  Checker checker(history, last.values.size());
  checker.check_reads();
  checker.check_last(last);
  checker.check_order_of_sets();
  checker.check_states(last.states);
}

}  // namespace adaps::simulation
