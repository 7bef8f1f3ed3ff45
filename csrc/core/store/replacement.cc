#include "store/replacement.h"

#include <algorithm>
#include <cmath>

#include "common/assert.h"
#include "common/random.h"

namespace adaps {

unsigned SeenSketch::Line::get(int index) const {
  const std::uint8_t* pair = &entries[static_cast<std::size_t>(index) / 2 * 3];
  return index % 2 == 0 ? pair[0] | (pair[1] & 0xfU) << 8 : pair[1] >> 4 | unsigned{pair[2]} << 4;
}

void SeenSketch::Line::put(int index, unsigned entry) {
  std::uint8_t* pair = &entries[static_cast<std::size_t>(index) / 2 * 3];
  if (index % 2 == 0) {
    pair[0] = static_cast<std::uint8_t>(entry);
    pair[1] = static_cast<std::uint8_t>((pair[1] & 0xf0U) | entry >> 8);
  } else {
    pair[1] = static_cast<std::uint8_t>((pair[1] & 0xfU) | (entry & 0xfU) << 4);
    pair[2] = static_cast<std::uint8_t>(entry >> 4);
  }
}

int SeenSketch::Line::find(unsigned fingerprint) const {
  int index = 0;
  while (index < used && (get(index) & ((1U << kFingerprintBits) - 1)) != fingerprint) ++index;
  return index;
}

void SeenSketch::Line::remove(int index) {
  for (; index + 1 < used; ++index) put(index, get(index + 1));
  --used;
}

void SeenSketch::Line::append(unsigned entry) {
  if (used == kOfLine) remove(0);
  put(used, entry);
  ++used;
}

SeenSketch::SeenSketch(std::uint64_t bytes)
    : lines_(std::max<std::uint64_t>(1, bytes / sizeof(Line))), memory_(lines_ * sizeof(Line)) {}

SeenSketch::Place SeenSketch::place(std::int64_t id) const {
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
  const auto line =
      static_cast<std::uint64_t>((static_cast<unsigned __int128>(hash * kGoldenRatio) * lines_) >> 64);
  return {static_cast<Line*>(memory_.get()) + line,
          static_cast<unsigned>(hash >> 32) & ((1U << kFingerprintBits) - 1)};
}

int SeenSketch::count(std::int64_t id) {
  const auto [line, fingerprint] = place(id);
  const int index = line->find(fingerprint);
  if (index == line->used) {
    line->append(1U << kFingerprintBits | fingerprint);
    return 1;
  }
  const unsigned entry = line->get(index);
  const int before = static_cast<int>(entry >> kFingerprintBits);
  if (before < kMost) line->put(index, entry + (1U << kFingerprintBits));
  return before + 1;
}

int SeenSketch::seen(std::int64_t id) const {
  const auto [line, fingerprint] = place(id);
  const int index = line->find(fingerprint);
  return index == line->used ? 0 : static_cast<int>(line->get(index) >> kFingerprintBits);
}

void SeenSketch::set(std::int64_t id, int count) {
  ADAPS_ASSERT(count >= 1 && count <= kMost);
  const auto [line, fingerprint] = place(id);
  const unsigned entry = static_cast<unsigned>(count) << kFingerprintBits | fingerprint;
  const int index = line->find(fingerprint);
  if (index == line->used) {
    line->append(entry);
  } else {
    line->put(index, entry);
  }
}

void SeenSketch::forget(std::int64_t id) {
  const auto [line, fingerprint] = place(id);
  const int index = line->find(fingerprint);
  if (index != line->used) line->remove(index);
}

namespace {

// Half-life of a use, as a multiple of the share's rows that are created meanwhile.
constexpr std::uint64_t kHalfLife = 8;
// Maximum weight, so that a row that was used very often goes soon after its last use.
constexpr float kMaxWeight = 16.0F;
// Steps of time per half-life.
constexpr int kHalfLifeSteps = 4096;
// Number of steps in which at most one use of a row counts. A sixteenth of the share is created in them.
constexpr int kPeriodSteps = kHalfLifeSteps / (16 * static_cast<int>(kHalfLife));
// Maximum time since the weight of a row was one. It is renewed when the row is examined, long before the
// difference of two times exceeds 16 bits.
constexpr int kOldestSteps = 4 * kHalfLifeSteps;
// Bytes per row for the ids whose rows were retired. On the trace of docs/guides/raw-ids.md, four bytes find
// 0.002 fewer rows, and eight bytes 0.001 more in one size of the table.
constexpr std::uint64_t kReturningBytes = 6;

// Returns a word that is not 0, because 0 marks a free row. Tick 0 becomes the tick before it.
std::uint32_t not_free(std::uint32_t word) { return word == 0 ? UINT32_MAX : word; }

// The ticks since a use. A use that another thread has just reported may be after `now`.
std::uint32_t age(Tick use, Tick now) {
  return std::max(std::int32_t{0}, static_cast<std::int32_t>(now - use));
}

std::uint32_t word_of(std::uint32_t weight_one, std::uint32_t last) {
  return not_free(weight_one << 16 | (last & 0xffff));
}
// The steps since a time, given the lower half of this time.
std::int16_t steps_since(std::uint32_t half, std::uint32_t time) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(time - half));
}
// The steps since the weight was one; negative if it is above one.
std::int16_t since_weight_one(std::uint32_t word, std::uint32_t time) {
  return steps_since(word >> 16, time);
}

}  // namespace

Replacement::Replacement(Evict evict, std::uint64_t rows, Tick ttl)
    : evict_(evict),
      rows_(rows),
      ttl_(ttl),
      use_memory_(rows * sizeof(std::uint32_t)),
      count_memory_(evict == Evict::kLfu ? rows * sizeof(std::uint32_t) : 0),
      uses_(static_cast<std::atomic<std::uint32_t>*>(use_memory_.get())),
      counts_(static_cast<std::atomic<std::uint32_t>*>(count_memory_.get())),
      returning_(evict == Evict::kIntent ? rows * kReturningBytes : 0) {}

std::uint32_t Replacement::time_of(Tick now) const {
  return (now == tick_.load(std::memory_order_relaxed) ? tick_time_ : time_).load(std::memory_order_relaxed);
}

std::uint32_t Replacement::weighed(float weight, Tick now) const {
  const auto steps = std::lround(kHalfLifeSteps * std::log2(std::min(weight, kMaxWeight)));
  return word_of(time_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(steps), time_of(now));
}

void Replacement::created(std::uint64_t row, std::int64_t id, Tick now) {
  if (evict_ != Evict::kIntent) {
    uses_[row].store(not_free(now), std::memory_order_relaxed);
    if (evict_ == Evict::kLfu) counts_[row].store(1, std::memory_order_relaxed);
    return;
  }
  if (now != tick_.load(std::memory_order_relaxed)) {
    tick_time_.store(time_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    tick_.store(now, std::memory_order_relaxed);
  }
  ++created_;
  time_.store(1 + static_cast<std::uint32_t>(kHalfLifeSteps * created_ / (kHalfLife * rows_)),
              std::memory_order_relaxed);
  uses_[row].store(weighed(1.0F + static_cast<float>(returning_.seen(id)), now), std::memory_order_relaxed);
}

void Replacement::retired(std::uint64_t row, std::int64_t id) {
  uses_[row].store(0, std::memory_order_relaxed);
  if (evict_ == Evict::kIntent) returning_.count(id);
}

void Replacement::used(std::uint64_t row, Tick now) {
  const std::uint32_t last = uses_[row].load(std::memory_order_relaxed);
  const bool is_counted =
      evict_ == Evict::kIntent ? steps_since(last, time_of(now)) >= kPeriodSteps : last != not_free(now);
  if (is_counted) count_use(row, now);
}

void Replacement::refused(std::uint64_t row, Tick now) { count_use(row, now); }

void Replacement::count_use(std::uint64_t row, Tick now) {
  std::uint32_t before = uses_[row].load(std::memory_order_relaxed);
  if (before == 0) return;
  std::uint32_t after = not_free(now);
  if (evict_ == Evict::kIntent) {
    const int since = since_weight_one(before, time_.load(std::memory_order_relaxed));
    after = weighed(1.0F + std::exp2(static_cast<float>(-since) / kHalfLifeSteps), now);
  } else if (evict_ == Evict::kLfu) {
    const std::uint32_t count = counts_[row].load(std::memory_order_relaxed);
    if (count != UINT32_MAX) counts_[row].store(count + 1, std::memory_order_relaxed);
  }
  // The row may have become free meanwhile.
  uses_[row].compare_exchange_strong(before, after, std::memory_order_relaxed);
}

bool Replacement::may_be_chosen(std::uint64_t row, Tick now) {
  std::uint32_t word = uses_[row].load(std::memory_order_relaxed);
  if (word == 0) return false;
  const std::uint32_t time = time_.load(std::memory_order_relaxed);
  if (evict_ == Evict::kIntent && since_weight_one(word, time) > kOldestSteps) {
    const std::uint32_t oldest = time - kOldestSteps;
    uses_[row].compare_exchange_strong(word, word_of(oldest, oldest), std::memory_order_relaxed);
  }
  return evict_ != Evict::kTtl || age(word, now) > ttl_;
}

std::uint64_t Replacement::order(std::uint64_t row, Tick now) const {
  const std::uint32_t word = uses_[row].load(std::memory_order_relaxed);
  if (evict_ == Evict::kIntent)
    return static_cast<std::uint64_t>(INT16_MAX -
                                      since_weight_one(word, time_.load(std::memory_order_relaxed)));
  const std::uint64_t youth = UINT32_MAX - age(word, now);
  return evict_ == Evict::kLfu ? std::uint64_t{counts_[row].load(std::memory_order_relaxed)} << 32 | youth
                               : youth;
}

std::size_t Replacement::best(std::span<std::uint64_t> rows) {
  const std::size_t chosen = std::min(rows.size(), candidates_.size());
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(chosen);
  std::partial_sort(candidates_.begin(), end, candidates_.end());
  for (std::size_t i = 0; i < chosen; ++i) rows[i] = candidates_[i].row;
  return chosen;
}

}  // namespace adaps
