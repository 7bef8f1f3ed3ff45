// Decides which rows of a table with ids are given to other ids, and which ids get a row at all
// (docs/guides/raw-ids.md).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/reserved.h"
#include "store/used_rows.h"

namespace adaps {

// Order in which rows are retired. kNone: rows are never retired.
enum class Evict : std::uint8_t { kNone, kIntent, kLru, kLfu, kTtl };

// Time of a use. Ticks wrap, so only their differences are compared.
using Tick = std::uint32_t;

// Counts the requests of ids that have no row, approximately and in at most one byte per id.
//
// TinyLFU (Einziger, Friedman, Manes: TinyLFU: A Highly Efficient Cache Admission Policy, ACM Transactions on
// Storage 13(4), 2017) counts with Bloom filters. At one byte per id they would be too full to tell one use
// from three. This sketch stores a fingerprint of seven bits and a count of three bits for an id, in the word
// that its hash selects, and only for ids that have no row. So few ids share a count, and an id that gets a
// row leaves its space to others.
//
// A word has space for six ids. If it is full, a new id takes the place of the id that was not counted for
// the longest time. An id is therefore forgotten only after six other ids of its word, which on average are
// as many ids as the sketch has space for. Until then its count is exact, or too high if another id of the
// word has the same fingerprint.
class SeenSketch {
 public:
  // The largest count that is stored.
  static constexpr int kMost = 7;

  // Uses at most `bytes` bytes of memory, and at least one word.
  explicit SeenSketch(std::uint64_t bytes);

  // Counts a request of the id. Returns the number of its requests, including this one, up to kMost + 1.
  int count(std::int64_t id);
  // The number of counted requests of the id.
  int seen(std::int64_t id) const;
  // Sets the number of requests of the id, from 1 to kMost.
  void set(std::int64_t id, int count);
  // Removes the id, because it has a row.
  void forget(std::int64_t id) { take(place(id)); }
  // Bytes of memory that are reserved. Only used pages are resident.
  std::uint64_t bytes() const { return words_ * sizeof(std::uint64_t); }

 private:
  static constexpr int kFingerprintBits = 7;
  static constexpr int kEntryBits = 10;
  static constexpr int kEntries = 6;
  static constexpr std::uint64_t kFingerprintMask = (1U << kFingerprintBits) - 1;
  static constexpr std::uint64_t kEntryMask = (1U << kEntryBits) - 1;

  // A word has entries of ten bits, the newest in the lowest bits: the count above the fingerprint. Entries
  // without an id are 0.
  struct Place {
    std::uint64_t* word;
    std::uint64_t fingerprint;
  };
  Place place(std::int64_t id) const;
  // Returns the position of the id's entry in its word, or kEntries.
  static int find(Place place);
  // Removes the id's entry. Returns its count, or 0.
  static int take(Place place);
  static void put(Place place, int count);

  const std::uint64_t words_;
  const Reserved memory_;
};

// The order in which the rows of a share are retired.
//
// The order is not kept: each choice examines some rows, in a rotating order, and takes the first of them. A
// use therefore only changes the entry of its row, so that any thread may report it without a lock.
//
// kIntent estimates the future from the past as LRFU does (Lee et al.: LRFU: A Spectrum of Policies that
// Subsumes the Least Recently Used and Least Frequently Used Policies, IEEE Transactions on Computers 50(12),
// 2001): the weight of a row is the sum over its uses of 2^-(age / half-life). The order of two weights does
// not change while neither row is used, so one number is sufficient: the time at which the weight was, or
// will be, one. Time is the number of rows created, as a multiple of the share, because a row has to compete
// with those that are created after it. Uses in quick succession belong together, so a row has at most one
// counted use in a period, in which a sixteenth of the share is created. The weight of a new row is higher if
// its id had a row before. The order does not contain announced uses, because the caller retires no row with
// intent.
class Replacement {
 public:
  // `ttl` is the maximum number of ticks since a row's last use, for kTtl.
  Replacement(Evict evict, std::uint64_t rows, Tick ttl);

  // The next three calls need a lock.
  // A row was given to an id.
  void created(std::uint64_t row, std::int64_t id, Tick now);
  // A row was taken from its id.
  void retired(std::uint64_t row, std::int64_t id);
  // Writes up to rows.size() rows that may be retired, the best first, and returns their number. Returns 0
  // only if no row of the share may be retired. `may_retire(row)` returns whether the caller can retire a row
  // with an id.
  template <typename MayRetire>
  std::size_t choose(Tick now, std::span<std::uint64_t> rows, const MayRetire& may_retire);

  // These calls need no lock. An update that another thread overwrites is lost, which only changes the order.
  // A row is used. Several uses in one tick count once, and with kIntent, several uses in a period.
  void used(std::uint64_t row, Tick now);
  // A row could not be retired, because another node uses it. This counts as a use.
  void refused(std::uint64_t row, Tick now);

  // Bytes of memory that are reserved. Only used pages are resident.
  std::uint64_t bytes() const {
    return rows_ * (evict_ == Evict::kIntent ? sizeof(std::uint8_t) : sizeof(std::uint32_t)) +
           counted_.bytes() + returning_.bytes();
  }

 private:
  // Number of rows that are examined for each row that is chosen.
  static constexpr std::size_t kExamined = 64;
  struct Candidate {
    std::uint32_t order;  // the smallest goes first
    std::uint64_t row;
    bool operator<(const Candidate& other) const { return order < other.order; }
  };

  bool may_be_chosen(std::uint64_t row, Tick now);
  std::uint32_t order(std::uint64_t row, Tick now) const;
  // Writes the best candidates to `rows`.
  std::size_t best(std::span<std::uint64_t> rows);
  void count_use(std::uint64_t row, Tick now);
  // Returns a word of uses_ with the tick of its last use replaced.
  std::uint32_t used_at(std::uint32_t word, Tick now) const;
  // Gives a row a weight, for kIntent, and counts its use in this period. `before` is the row's present word.
  void set_weight(std::uint64_t row, std::uint8_t before, float weight);

  const Evict evict_;
  const std::uint64_t rows_;
  const Tick ttl_;
  const Reserved memory_;
  // By row; 0: the row is free. For kIntent, the time at which the row's weight is one, in steps modulo 2^8.
  // For kLfu, the number of uses, up to 4095, above 20 bits of the tick of the last use. Otherwise, this
  // tick.
  std::atomic<std::uint8_t>* const ones_;
  std::atomic<std::uint32_t>* const uses_;
  // For kIntent.
  SeenSketch returning_;
  UsedRows counted_;  // the rows with a counted use in this period
  std::atomic<std::uint8_t> time_{0};
  std::uint64_t created_ = 0;
  std::uint64_t next_period_ = 0;  // the value of created_ at which the next period begins
  Tick tick_ = 0;                  // of the last creation
  std::uint64_t hand_ = 0;         // the row that is examined next
  std::vector<Candidate> candidates_;
};

template <typename MayRetire>
std::size_t Replacement::choose(Tick now, std::span<std::uint64_t> rows, const MayRetire& may_retire) {
  candidates_.clear();
  const std::size_t enough = kExamined * rows.size();
  for (std::uint64_t examined = 0; examined < rows_ && candidates_.size() < enough; ++examined) {
    const std::uint64_t row = hand_;
    hand_ = hand_ + 1 == rows_ ? 0 : hand_ + 1;
    if (may_be_chosen(row, now) && may_retire(row)) candidates_.push_back({order(row, now), row});
  }
  return best(rows);
}

}  // namespace adaps
