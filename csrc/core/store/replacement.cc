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
// Number of periods in which as many rows are created as the share has.
constexpr std::uint64_t kPeriodsOfShare = 16;
// Maximum weight, so that a row that was used very often goes soon after its last use.
constexpr float kMaxWeight = 16.0F;
// Steps of a rank per half-life.
constexpr float kHalfLifeSteps = 4096.0F;

// The ticks since a use. A use that another thread has just reported may be after `now`.
std::uint32_t age(Tick use, Tick now) {
  return std::max(std::int32_t{0}, static_cast<std::int32_t>(now - use));
}

// The steps since a rank; negative if the weight is above one.
std::int32_t steps_since(std::uint32_t rank, std::uint32_t time) {
  return static_cast<std::int32_t>(time - rank);
}

}  // namespace

Replacement::Replacement(Evict evict, std::uint64_t rows, Tick ttl)
    : evict_(evict),
      rows_(rows),
      ttl_(ttl),
      memory_(rows * sizeof(Row)),
      first_(static_cast<Row*>(memory_.get())),
      returning_(evict == Evict::kIntent ? rows * 8 : 0) {}

void Replacement::set_weight(Row& entry, float weight) {
  const std::uint32_t rank =
      time_.load(std::memory_order_relaxed) +
      static_cast<std::uint32_t>(std::lround(kHalfLifeSteps * std::log2(std::min(weight, kMaxWeight))));
  entry.rank.store(rank == 0 ? 1 : rank, std::memory_order_relaxed);
}

void Replacement::created(std::uint64_t row, std::int64_t id, Tick now) {
  Row& entry = first_[row];
  entry.last.store(now, std::memory_order_relaxed);
  if (evict_ != Evict::kIntent) {
    entry.rank.store(1, std::memory_order_relaxed);
    return;
  }
  ++created_;
  if (created_ % std::max<std::uint64_t>(1, rows_ / kPeriodsOfShare) == 0) {
    period_.store(std::max<Tick>(1, now - period_begin_), std::memory_order_relaxed);
    period_begin_ = now;
  }
  time_.store(1 + static_cast<std::uint32_t>(static_cast<std::uint64_t>(kHalfLifeSteps) * created_ /
                                             (kHalfLife * rows_)),
              std::memory_order_relaxed);
  set_weight(entry, 1.0F + static_cast<float>(returning_.seen(id)));
}

void Replacement::retired(std::uint64_t row, std::int64_t id) {
  first_[row].rank.store(0, std::memory_order_relaxed);
  if (evict_ == Evict::kIntent) returning_.count(id);
}

void Replacement::used(std::uint64_t row, Tick now) {
  Row& entry = first_[row];
  const Tick since_last = now - entry.last.load(std::memory_order_relaxed);
  if (since_last >= (evict_ == Evict::kIntent ? period_.load(std::memory_order_relaxed) : 1))
    count_use(entry, now);
}

void Replacement::refused(std::uint64_t row, Tick now) { count_use(first_[row], now); }

void Replacement::count_use(Row& entry, Tick now) {
  entry.last.store(now, std::memory_order_relaxed);
  const std::uint32_t rank = entry.rank.load(std::memory_order_relaxed);
  if (rank == 0) return;
  if (evict_ == Evict::kIntent) {
    const std::int32_t since = steps_since(rank, time_.load(std::memory_order_relaxed));
    set_weight(entry, 1.0F + std::exp2(static_cast<float>(-since) / kHalfLifeSteps));
  } else if (evict_ == Evict::kLfu && rank != UINT32_MAX) {
    entry.rank.store(rank + 1, std::memory_order_relaxed);
  }
}

bool Replacement::may_be_chosen(std::uint64_t row, Tick now) const {
  const Row& entry = first_[row];
  if (entry.rank.load(std::memory_order_relaxed) == 0) return false;
  return evict_ != Evict::kTtl || age(entry.last.load(std::memory_order_relaxed), now) > ttl_;
}

std::uint64_t Replacement::order(std::uint64_t row, Tick now) const {
  const Row& entry = first_[row];
  const std::uint32_t rank = entry.rank.load(std::memory_order_relaxed);
  const std::uint32_t youth = UINT32_MAX - age(entry.last.load(std::memory_order_relaxed), now);
  if (evict_ == Evict::kLfu) return std::uint64_t{rank} << 32 | youth;
  if (evict_ != Evict::kIntent) return youth;
  const std::uint32_t time = time_.load(std::memory_order_relaxed);
  return (std::uint32_t{1} << 31) - static_cast<std::uint32_t>(steps_since(rank, time));
}

std::size_t Replacement::best(std::span<std::uint64_t> rows) {
  const std::size_t chosen = std::min(rows.size(), candidates_.size());
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(chosen);
  std::partial_sort(candidates_.begin(), end, candidates_.end());
  for (std::size_t i = 0; i < chosen; ++i) rows[i] = candidates_[i].row;
  return chosen;
}

}  // namespace adaps
