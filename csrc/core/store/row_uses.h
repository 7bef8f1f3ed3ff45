// Uses of the rows of a table whose rows are retired (docs/concepts/protocol.md, section 20).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/types.h"
#include "store/byte_counts.h"
#include "store/replacement.h"

namespace adaps {

// The last use of a row on this node.
struct RowUse {
  static constexpr std::uint32_t kSeveral = UINT32_MAX;

  std::uint64_t last;    // in ticks of the node; 0 if no use is known
  std::uint32_t worker;  // kSeveral if several workers may use the row in their present clocks
};

// The uses of each row by this node's workers, so that a row that is in use is not retired.
//
// A node has a tick, which advances whenever the clock of one of its workers advances. A worker that finds a
// row records the tick, and uses the row until its clock advances. An intent or a call that is not finished
// pins its rows. A worker pins a row before its clock advances, so a reader must read the worker's clock
// before the pins.
//
// A row's word has the pins in eight bits, the worker in as many bits as the number of workers needs, and the
// last bits of the tick in the rest: 11 to 22 bits. The others follow from the present tick, because renew()
// visits each row before an eighth of the ticks that these bits distinguish have passed. It forgets uses that
// have ended, and renews the ticks of others that are as old.
class RowUses {
 public:
  explicit RowUses(std::uint64_t rows) : rows_(rows), words_(rows) {}

  // --- any thread, without a lock; `tick` is the present tick ---

  RowUse last_use(std::uint64_t row, std::uint64_t tick) const {
    return unpacked(words_.word(row).load(std::memory_order_acquire), tick);
  }
  std::uint32_t pins(std::uint64_t row) const { return words_.get(row); }
  // Records that a worker uses a row from now on. `is_over(use)` returns whether an earlier use has ended.
  template <typename IsOver>
  void use(std::uint64_t row, std::uint64_t tick, std::uint32_t worker, const IsOver& is_over) {
    std::uint32_t word = words_.word(row).load(std::memory_order_relaxed);
    for (;;) {
      const RowUse before = unpacked(word, tick);
      const bool is_other = before.worker != worker && !is_over(before);
      if (before.last >= tick && (before.worker == worker || before.worker == RowUse::kSeveral)) return;
      // A later tick stays, so that a thread that read the tick earlier does not shorten another use.
      const RowUse after{std::max(before.last, tick), is_other ? RowUse::kSeveral : worker};
      if (replace(row, word, packed(after))) return;
    }
  }
  // Renews a part of the words. Must be called at each tick.
  template <typename IsOver>
  void renew(std::uint64_t tick, const IsOver& is_over) {
    const std::uint64_t ticks_to_renew = std::uint64_t{1} << (32 - kPinBits - worker_bits_ - 3);
    const std::uint64_t part = rows_ / ticks_to_renew + 1;
    const std::uint64_t begin = std::min(tick % ticks_to_renew * part, rows_);
    const std::uint64_t end = std::min(begin + part, rows_);
    for (std::uint64_t row = begin; row < end; ++row) {
      std::uint32_t word = words_.word(row).load(std::memory_order_acquire);
      while (word >> kPinBits != 0) {
        const RowUse use = unpacked(word, tick);
        const bool over = is_over(use);
        // A later tick can prolong the use of several workers, so only old ticks are renewed.
        if (!over && use.last + ticks_to_renew > tick) break;
        if (replace(row, word, over ? 0 : packed({tick, use.worker}))) break;
      }
    }
  }
  // Bytes of memory that are reserved. Only used pages are resident.
  std::uint64_t bytes() const { return rows_ * sizeof(std::uint32_t) + order_->bytes(); }
  void pin(std::uint64_t row) { words_.increment(row); }
  void unpin(std::uint64_t row) { words_.decrement(row); }

  // --- with the lock of the table's ids ---

  // The order in which the rows of this node's share are retired, by their index in the share.
  Replacement& order() { return *order_; }
  void set_order(Evict evict, std::uint64_t rows, Tick ttl, std::size_t channels, int workers) {
    order_ = std::make_unique<Replacement>(evict, rows, ttl);
    worker_bits_ = std::bit_width(static_cast<unsigned>(workers) + 1);
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
  static constexpr int kPinBits = 8;

  // The part of a word above the pins. It has the worker's number plus one, so that no use is 0. The largest
  // number stands for several workers.
  std::uint32_t packed(RowUse use) const {
    const std::uint32_t several = (1U << worker_bits_) - 1;
    const std::uint32_t worker = use.worker == RowUse::kSeveral ? several : use.worker + 1;
    return (static_cast<std::uint32_t>(use.last) << worker_bits_ | worker) << kPinBits;
  }
  RowUse unpacked(std::uint32_t word, std::uint64_t tick) const {
    if (word >> kPinBits == 0) return {0, 0};
    const int shift = kPinBits + worker_bits_;
    const std::uint32_t several = (1U << worker_bits_) - 1;
    const std::uint32_t worker = word >> kPinBits & several;
    // The difference is negative for an earlier tick.
    const std::uint32_t difference = (word >> shift) - static_cast<std::uint32_t>(tick);
    const std::int32_t later = static_cast<std::int32_t>(difference << shift) >> shift;
    return {tick + static_cast<std::uint64_t>(std::int64_t{later}),
            worker == several ? RowUse::kSeveral : worker - 1};
  }
  // Replaces the part of a word above the pins. Returns false, and reads the word again, if it has changed.
  bool replace(std::uint64_t row, std::uint32_t& word, std::uint32_t use) {
    const std::uint32_t pins = word & ((1U << kPinBits) - 1);
    return words_.word(row).compare_exchange_weak(word, use | pins, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed);
  }
  struct Search {
    std::uint64_t finished = 0;
    std::uint64_t exhausted = 0;
  };

  const std::uint64_t rows_;
  SmallCounts<std::uint32_t, kPinBits> words_;  // by row: the last use, above the pins
  int worker_bits_ = std::bit_width(static_cast<unsigned>(kMaxWorkers) + 1);
  std::unique_ptr<Replacement> order_;
  std::unordered_map<std::int64_t, std::uint32_t> awaited_;  // by id: the number of requests
  std::unordered_map<std::uint64_t, bool> retiring_;         // by row: whether its id was requested again
  std::uint64_t requested_ = 0;
  std::uint64_t wanted_ = 0;
  std::vector<Search> searches_;  // by channel
};

}  // namespace adaps
