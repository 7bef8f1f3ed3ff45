#include "store/replacement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/assert.h"
#include "common/random.h"

namespace adaps {

SeenSketch::SeenSketch(std::uint64_t bytes)
    : words_(std::max<std::uint64_t>(1, bytes / sizeof(std::uint64_t))),
      memory_(words_ * sizeof(std::uint64_t)) {}

SeenSketch::Place SeenSketch::place(std::int64_t id) const {
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
  const auto word =
      static_cast<std::uint64_t>((static_cast<unsigned __int128>(hash * kGoldenRatio) * words_) >> 64);
  return {static_cast<std::uint64_t*>(memory_.get()) + word, hash >> 32 & kFingerprintMask};
}

int SeenSketch::find(Place place) {
  for (int i = 0; i < kEntries; ++i) {
    const std::uint64_t entry = *place.word >> (kEntryBits * i) & kEntryMask;
    if (entry != 0 && (entry & kFingerprintMask) == place.fingerprint) return i;
  }
  return kEntries;
}

int SeenSketch::take(Place place) {
  const int i = find(place);
  if (i == kEntries) return 0;
  const std::uint64_t entry_and_older = *place.word >> (kEntryBits * i);
  const std::uint64_t newer = *place.word & ((std::uint64_t{1} << (kEntryBits * i)) - 1);
  *place.word = newer | (entry_and_older >> kEntryBits) << (kEntryBits * i);
  return static_cast<int>((entry_and_older & kEntryMask) >> kFingerprintBits);
}

void SeenSketch::put(Place place, int count) {
  constexpr std::uint64_t kAll = (std::uint64_t{1} << (kEntryBits * kEntries)) - 1;
  const std::uint64_t entry = static_cast<std::uint64_t>(count) << kFingerprintBits | place.fingerprint;
  *place.word = (*place.word << kEntryBits | entry) & kAll;
}

int SeenSketch::count(std::int64_t id) {
  const Place at = place(id);
  const int count = take(at) + 1;
  put(at, std::min(count, kMost));
  return count;
}

int SeenSketch::seen(std::int64_t id) const {
  const Place at = place(id);
  const int i = find(at);
  return i == kEntries ? 0
                       : static_cast<int>((*at.word >> (kEntryBits * i) & kEntryMask) >> kFingerprintBits);
}

void SeenSketch::set(std::int64_t id, int count) {
  ADAPS_ASSERT(count >= 1 && count <= kMost);
  forget(id);
  put(place(id), count);
}

namespace {

// Half-life of a use, as a multiple of the share's rows that are created meanwhile.
constexpr std::uint64_t kHalfLife = 8;
// Maximum weight, so that a row that was used very often goes soon after its last use.
constexpr float kMaxWeight = 16.0F;
// Steps of time per half-life.
constexpr int kHalfLifeSteps = 24;
// Maximum time since the weight of a row was one. It is renewed when the row is examined, before the
// difference of two times exceeds 8 bits.
constexpr int kOldestSteps = 4 * kHalfLifeSteps;
// Number of periods in which as many rows are created as the share has.
constexpr std::uint64_t kPeriods = 16;
// Bytes per row for the ids whose rows were retired. On the trace of docs/guides/raw-ids.md, two bytes find
// up to 0.002 fewer rows, and four bytes up to 0.001 more.
constexpr std::uint64_t kReturningBytes = 3;

// Returns a word that is not 0, because 0 marks a free row. Time 0 becomes the time before it.
template <typename Word>
Word not_free(Word word) {
  return word == 0 ? std::numeric_limits<Word>::max() : word;
}

// The ticks since a use. A use that another thread has just reported may be after `now`.
std::uint32_t age(Tick use, Tick now) {
  return std::max(std::int32_t{0}, static_cast<std::int32_t>(now - use));
}

// The steps since a weight was one; negative if it is above one.
int steps_since(std::uint8_t one, std::uint8_t time) {
  return static_cast<std::int8_t>(static_cast<std::uint8_t>(time - one));
}

// One use, for kLfu. The bits below it are the last bits of the tick of the last use.
constexpr std::uint32_t kOneUse = 1U << 20;
constexpr std::uint32_t kTickMask = kOneUse - 1;

}  // namespace

Replacement::Replacement(Evict evict, std::uint64_t rows, Tick ttl)
    : evict_(evict),
      rows_(rows),
      ttl_(ttl),
      memory_(rows * (evict == Evict::kIntent ? sizeof(std::uint8_t) : sizeof(std::uint32_t))),
      ones_(static_cast<std::atomic<std::uint8_t>*>(memory_.get())),
      uses_(static_cast<std::atomic<std::uint32_t>*>(memory_.get())),
      returning_(evict == Evict::kIntent ? rows * kReturningBytes : 0),
      counted_(evict == Evict::kIntent ? rows : 0) {}

void Replacement::set_weight(std::uint64_t row, std::uint8_t before, float weight) {
  const auto steps = std::lround(kHalfLifeSteps * std::log2(std::min(weight, kMaxWeight)));
  const auto one = static_cast<std::uint8_t>(time_.load(std::memory_order_relaxed) + steps);
  // The row may have become free meanwhile.
  ones_[row].compare_exchange_strong(before, not_free(one), std::memory_order_relaxed);
  counted_.add(row);
}

std::uint32_t Replacement::used_at(std::uint32_t word, Tick now) const {
  return evict_ == Evict::kLfu ? (word & ~kTickMask) | (now & kTickMask) : not_free(now);
}

void Replacement::created(std::uint64_t row, std::int64_t id, Tick now) {
  if (evict_ != Evict::kIntent) {
    uses_[row].store(used_at(kOneUse, now), std::memory_order_relaxed);
    return;
  }
  // All creations in a tick are in one period.
  if (now != tick_ && created_ >= next_period_) {
    counted_.clear();
    next_period_ = created_ + rows_ / kPeriods;
  }
  tick_ = now;
  ++created_;
  time_.store(static_cast<std::uint8_t>(kHalfLifeSteps * created_ / (kHalfLife * rows_)),
              std::memory_order_relaxed);
  set_weight(row, 0, 1.0F + static_cast<float>(returning_.seen(id)));
}

void Replacement::retired(std::uint64_t row, std::int64_t id) {
  if (evict_ != Evict::kIntent) {
    uses_[row].store(0, std::memory_order_relaxed);
    return;
  }
  ones_[row].store(0, std::memory_order_relaxed);
  returning_.count(id);
}

void Replacement::used(std::uint64_t row, Tick now) {
  const auto is_counted = [&] {
    if (evict_ == Evict::kIntent) return counted_.contains(row);
    const std::uint32_t word = uses_[row].load(std::memory_order_relaxed);
    return word == used_at(word, now);
  };
  if (!is_counted()) count_use(row, now);
}

void Replacement::refused(std::uint64_t row, Tick now) { count_use(row, now); }

void Replacement::count_use(std::uint64_t row, Tick now) {
  if (evict_ == Evict::kIntent) {
    const std::uint8_t one = ones_[row].load(std::memory_order_relaxed);
    const int since = steps_since(one, time_.load(std::memory_order_relaxed));
    if (one != 0) set_weight(row, one, 1.0F + std::exp2(static_cast<float>(-since) / kHalfLifeSteps));
    return;
  }
  std::uint32_t before = uses_[row].load(std::memory_order_relaxed);
  if (before == 0) return;
  std::uint32_t after = used_at(before, now);
  if (evict_ == Evict::kLfu && after < UINT32_MAX - kTickMask) after += kOneUse;
  // The row may have become free meanwhile.
  uses_[row].compare_exchange_strong(before, after, std::memory_order_relaxed);
}

bool Replacement::may_be_chosen(std::uint64_t row, Tick now) {
  if (evict_ != Evict::kIntent) {
    const std::uint32_t word = uses_[row].load(std::memory_order_relaxed);
    return word != 0 && (evict_ != Evict::kTtl || age(word, now) > ttl_);
  }
  std::uint8_t one = ones_[row].load(std::memory_order_relaxed);
  if (one == 0) return false;
  const std::uint8_t time = time_.load(std::memory_order_relaxed);
  if (steps_since(one, time) > kOldestSteps)
    ones_[row].compare_exchange_strong(one, not_free(static_cast<std::uint8_t>(time - kOldestSteps)),
                                       std::memory_order_relaxed);
  return true;
}

std::uint32_t Replacement::order(std::uint64_t row, Tick now) const {
  if (evict_ == Evict::kIntent) {
    const std::uint8_t one = ones_[row].load(std::memory_order_relaxed);
    return static_cast<std::uint32_t>(INT8_MAX - steps_since(one, time_.load(std::memory_order_relaxed)));
  }
  const std::uint32_t word = uses_[row].load(std::memory_order_relaxed);
  if (evict_ == Evict::kLfu) return (word | kTickMask) - ((now - word) & kTickMask);
  return UINT32_MAX - age(word, now);
}

std::size_t Replacement::best(std::span<std::uint64_t> rows) {
  const std::size_t chosen = std::min(rows.size(), candidates_.size());
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(chosen);
  std::partial_sort(candidates_.begin(), end, candidates_.end());
  for (std::size_t i = 0; i < chosen; ++i) rows[i] = candidates_[i].row;
  return chosen;
}

}  // namespace adaps
