// Uses of the rows of a table whose rows are retired (docs/concepts/protocol.md, section 20).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/assert.h"
#include "common/types.h"
#include "store/replacement.h"
#include "store/reserved.h"

namespace adaps {

// The last use of a row on this node.
struct RowUse {
  static constexpr std::uint32_t kSeveral = (1U << 13) - 1;

  std::uint64_t last;    // in ticks of the node; 0 if the row was never used
  std::uint32_t worker;  // kSeveral if several workers may use the row in their present clocks
};
static_assert(kMaxWorkers < static_cast<int>(RowUse::kSeveral));

// The uses of each row by this node's workers, so that a row that is in use is not retired.
//
// A node has a tick, which advances whenever the clock of one of its workers advances. A worker that finds a
// row records the tick, and uses the row until its clock advances. An intent or a call that is not finished
// pins its rows. A worker pins a row before its clock advances, so a reader must read the worker's clock
// before the pins.
class RowUses {
 public:
  explicit RowUses(std::uint64_t rows)
      : word_memory_(rows * sizeof(std::uint64_t)),
        pin_memory_(rows * sizeof(std::uint32_t)),
        words_(static_cast<std::atomic<std::uint64_t>*>(word_memory_.get())),
        pins_(static_cast<std::atomic<std::uint32_t>*>(pin_memory_.get())) {}

  // --- any thread, without a lock ---

  RowUse last_use(std::uint64_t row) const { return unpacked(words_[row].load(std::memory_order_acquire)); }
  std::uint32_t pins(std::uint64_t row) const { return pins_[row].load(std::memory_order_acquire); }
  // Records that a worker uses a row from now on. `is_over(use)` returns whether an earlier use has ended.
  template <typename IsOver>
  void use(std::uint64_t row, std::uint64_t tick, std::uint32_t worker, const IsOver& is_over) {
    std::uint64_t word = words_[row].load(std::memory_order_relaxed);
    for (;;) {
      const RowUse before = unpacked(word);
      const bool is_other = before.worker != worker && !is_over(before);
      if (before.last >= tick && (before.worker == worker || before.worker == RowUse::kSeveral)) return;
      // A later tick stays, so that a thread that read the tick earlier does not shorten another use.
      const std::uint64_t after =
          std::max(before.last, tick) << kWorkerBits | (is_other ? RowUse::kSeveral : worker);
      if (words_[row].compare_exchange_weak(word, after, std::memory_order_acq_rel,
                                            std::memory_order_relaxed))
        return;
    }
  }
  void pin(std::uint64_t row) {
    if (pins_[row].fetch_add(1, std::memory_order_acq_rel) != ~std::uint32_t{0}) return;
    pins_[row].fetch_sub(1, std::memory_order_acq_rel);
    throw std::length_error("2^32 intents and calls need row " + std::to_string(row) +
                            "; signal each intent once");
  }
  void unpin(std::uint64_t row) {
    [[maybe_unused]] const std::uint32_t before = pins_[row].fetch_sub(1, std::memory_order_acq_rel);
    ADAPS_ASSERT(before != 0);
  }

  // --- with the lock of the table's ids ---

  // The order in which the rows of this node's share are retired, by their index in the share.
  Replacement& order() { return *order_; }
  void set_order(Evict evict, std::uint64_t rows, Tick ttl, std::size_t channels) {
    order_ = std::make_unique<Replacement>(evict, rows, ttl);
    searches_.resize(channels);
  }

  // The ids that this node has requested and that are not answered. Their rows may already be on the way.
  void await(std::int64_t id) { ++awaited_[id]; }
  void end_await(std::int64_t id) {
    const auto found = awaited_.find(id);
    if (found != awaited_.end() && --found->second == 0) awaited_.erase(found);
  }
  bool awaits(std::int64_t id) const { return awaited_.contains(id); }

  // Rows of this node's share that other nodes are asked to give up. If one of their ids is requested, the
  // row is kept.
  void begin_retiring(std::uint64_t row) { retiring_.emplace(row, false); }
  bool is_retiring(std::uint64_t row) const { return retiring_.contains(row); }
  void keep(std::uint64_t row) {
    if (const auto found = retiring_.find(row); found != retiring_.end()) found->second = true;
  }
  // Returns whether the row's id was requested since begin_retiring().
  bool end_retiring(std::uint64_t row) {
    const auto found = retiring_.find(row);
    const bool was_requested = found->second;
    retiring_.erase(found);
    return was_requested;
  }

  // Requests that every channel looks for rows that can be retired, until this node has retired `retired`
  // rows in all. Returns the number of the search.
  std::uint64_t request_search(std::uint64_t retired) {
    wanted_ = std::max(wanted_, retired);
    return ++requested_;
  }
  // The number of retired rows at which the searches end.
  std::uint64_t wanted() const { return wanted_; }
  // The search that a channel has to begin; 0 if there is none.
  std::uint64_t next_search(std::size_t channel) const {
    return searches_[channel].finished == requested_ ? 0 : requested_;
  }
  // Ends the search of a channel. `found_all` is false if it has looked at all rows, and those that remain
  // are in use.
  void finish_search(std::size_t channel, std::uint64_t search, bool found_all) {
    searches_[channel].finished = search;
    if (!found_all) searches_[channel].exhausted = search;
  }
  bool is_finished(std::uint64_t search) const {
    return std::ranges::all_of(searches_, [&](const Search& of) { return of.finished >= search; });
  }
  // Whether all channels have found in this search, or in a later one, that the remaining rows are in use.
  bool is_exhausted(std::uint64_t search) const {
    return std::ranges::all_of(searches_, [&](const Search& of) { return of.exhausted >= search; });
  }

 private:
  static constexpr int kWorkerBits = 13;
  static RowUse unpacked(std::uint64_t word) {
    return {word >> kWorkerBits, static_cast<std::uint32_t>(word) & RowUse::kSeveral};
  }
  struct Search {
    std::uint64_t finished = 0;
    std::uint64_t exhausted = 0;
  };

  const Reserved word_memory_;
  const Reserved pin_memory_;
  std::atomic<std::uint64_t>* const words_;  // by row: the tick of the last use, and its worker
  std::atomic<std::uint32_t>* const pins_;   // by row
  std::unique_ptr<Replacement> order_;
  std::unordered_map<std::int64_t, std::uint32_t> awaited_;  // by id: the number of requests
  std::unordered_map<std::uint64_t, bool> retiring_;         // by row: whether its id was requested again
  std::uint64_t requested_ = 0;
  std::uint64_t wanted_ = 0;
  std::vector<Search> searches_;  // by channel
};

}  // namespace adaps
