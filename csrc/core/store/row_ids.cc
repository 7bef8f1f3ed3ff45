#include "store/row_ids.h"

#include <algorithm>
#include <bit>

#include "common/assert.h"
#include "common/prefetch.h"
#include "common/random.h"

namespace adaps {

namespace {

constexpr std::uint64_t kEachByte = 0x0101010101010101ULL;
constexpr std::uint64_t kLowBits = 0x7f * kEachByte;
// Number of ids between the prefetch of a bucket and of an id, and the use of both.
constexpr std::size_t kIdDistance = 16;
constexpr std::size_t kBucketDistance = 2 * kIdDistance;

// Sets the highest bit of each byte of `tags` that equals `tag`, and no other bit. The sum of a byte's low
// bits has no carry into the next byte. A carry could make an entry match whose row was removed.
std::uint64_t matching(std::uint64_t tags, std::uint64_t tag) {
  const std::uint64_t different = tags ^ (kEachByte * tag);
  return ~(((different & kLowBits) + kLowBits) | different | kLowBits);
}
std::size_t index_of(std::uint64_t match) { return static_cast<std::size_t>(std::countr_zero(match)) / 8; }

}  // namespace

// At most 80 % of the entries are used, so some bucket is never full and every search ends there.
RowIds::RowIds(std::uint64_t rows)
    : buckets_(rows * 5 / (4 * kOfBucket) + 1),
      bucket_memory_(buckets_ * sizeof(Bucket)),
      id_memory_(rows * sizeof(std::int64_t)),
      bit_memory_((rows + 63) / 64 * sizeof(std::uint64_t)),
      first_bucket_(static_cast<Bucket*>(bucket_memory_.get())),
      ids_(static_cast<std::atomic<std::int64_t>*>(id_memory_.get())),
      is_known_(static_cast<std::atomic<std::uint64_t>*>(bit_memory_.get())),
      used_(rows) {}

// The bits for bucket and tag differ from those that determine the assigning node and the channel. Otherwise
// the ids of one node would use a part of the buckets or tags.
RowIds::Place RowIds::place(std::int64_t id) const {
  const std::uint64_t hash = mix(static_cast<std::uint64_t>(id));
  const auto bucket =
      static_cast<std::uint64_t>((static_cast<unsigned __int128>(hash * kGoldenRatio) * buckets_) >> 64);
  return {bucket, 1 + (((hash >> 32) & 0xff) * 255 >> 8)};
}

std::int64_t RowIds::match(const Bucket& bucket, std::uint64_t tag, std::int64_t id) const {
  std::uint64_t low = matching(bucket.low_tags.load(std::memory_order_acquire), tag);
  for (; low != 0; low &= low - 1) {
    const std::uint32_t row = bucket.rows[index_of(low)].load(std::memory_order_relaxed);
    if (ids_[row].load(std::memory_order_relaxed) == id) return row;
  }
  // The upper half of the word is filled with zeros, which match no tag.
  std::uint64_t high = matching(bucket.high_tags.load(std::memory_order_acquire), tag);
  for (; high != 0; high &= high - 1) {
    const std::uint32_t row = bucket.rows[8 + index_of(high)].load(std::memory_order_relaxed);
    if (ids_[row].load(std::memory_order_relaxed) == id) return row;
  }
  return kUnknown;
}

std::int64_t RowIds::find(Place place, std::int64_t id) const {
  for (std::uint64_t i = place.bucket;;) {
    const Bucket& bucket = first_bucket_[i];
    const std::int64_t row = match(bucket, place.tag, id);
    if (row != kUnknown || bucket.passed.load(std::memory_order_acquire) == 0) return row;
    i = next(i);
    if (i == place.bucket) return kUnknown;  // ids passed every bucket at some time
  }
}

std::int64_t RowIds::find(std::int64_t id) const { return find(place(id), id); }

std::size_t RowIds::find(std::span<const std::int64_t> ids, std::int64_t* rows) const {
  std::array<Place, kBucketDistance> places;
  const auto begin = [&](std::size_t i) {
    Place& ahead = places[i % kBucketDistance];
    ahead = place(ids[i]);
    prefetch_line(&first_bucket_[ahead.bucket]);
  };
  const auto fetch_id = [&](std::size_t i) {
    const Place& ahead = places[i % kBucketDistance];
    const Bucket& bucket = first_bucket_[ahead.bucket];
    const std::uint64_t low = matching(bucket.low_tags.load(std::memory_order_relaxed), ahead.tag);
    const std::uint64_t high = matching(bucket.high_tags.load(std::memory_order_relaxed), ahead.tag);
    if ((low | high) == 0) return;
    const std::size_t index = low != 0 ? index_of(low) : 8 + index_of(high);
    prefetch_line(&ids_[bucket.rows[index].load(std::memory_order_relaxed)]);
  };
  std::size_t unknown = 0;
  for (std::size_t i = 0; i < std::min(kBucketDistance, ids.size()); ++i) begin(i);
  for (std::size_t i = 0; i < std::min(kIdDistance, ids.size()); ++i) fetch_id(i);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kIdDistance < ids.size()) fetch_id(i + kIdDistance);
    rows[i] = find(places[i % kBucketDistance], ids[i]);
    unknown += rows[i] == kUnknown ? 1 : 0;
    if (i + kBucketDistance < ids.size()) begin(i + kBucketDistance);
  }
  return unknown;
}

std::uint64_t RowIds::resident_bytes() const {
  const std::uint64_t known = most_known_.load(std::memory_order_relaxed);
  const std::uint64_t bits = 2 * known;  // the id is known, the row was used
  return std::min(known, buckets_) * sizeof(Bucket) + known * sizeof(std::int64_t) + bits / 8 +
         (seen_ == nullptr ? 0 : seen_->bytes());
}

void RowIds::set_known(std::uint64_t row, bool is_known) {
  std::atomic<std::uint64_t>& bits = is_known_[row / 64];
  const std::uint64_t bit = std::uint64_t{1} << (row % 64);
  const std::uint64_t before = bits.load(std::memory_order_relaxed);
  bits.store(is_known ? before | bit : before & ~bit, std::memory_order_release);
  const std::uint64_t known = known_.load(std::memory_order_relaxed) + (is_known ? 1 : -1);
  known_.store(known, std::memory_order_relaxed);
  if (known > most_known_.load(std::memory_order_relaxed))
    most_known_.store(known, std::memory_order_relaxed);
}

// The id of the row is stored first, and the tag last. A reader that sees the tag then sees both others.
void RowIds::Adding::add(std::int64_t id, std::uint64_t row) {
  // The uses of a retired row were those of its previous id.
  if (ids_.id(row) != id) ids_.used_.remove(row);
  ids_.ids_[row].store(id, std::memory_order_relaxed);
  ids_.set_known(row, true);
  const Place place = ids_.place(id);
  for (std::uint64_t i = place.bucket;; i = ids_.next(i)) {
    Bucket& bucket = ids_.first_bucket_[i];
    const std::uint64_t low = bucket.low_tags.load(std::memory_order_relaxed);
    const std::uint32_t high = bucket.high_tags.load(std::memory_order_relaxed);
    // Entries without a row have the tag 0.
    if (const std::uint64_t free = matching(low, 0); free != 0) {
      const std::size_t index = index_of(free);
      bucket.rows[index].store(static_cast<std::uint32_t>(row), std::memory_order_relaxed);
      bucket.low_tags.store(low | place.tag << (8 * index), std::memory_order_release);
      return;
    }
    if (const std::uint64_t free = matching(high, 0) & 0xffffffffU; free != 0) {
      const std::size_t index = index_of(free);
      bucket.rows[8 + index].store(static_cast<std::uint32_t>(row), std::memory_order_relaxed);
      bucket.high_tags.store(high | static_cast<std::uint32_t>(place.tag) << (8 * index),
                             std::memory_order_release);
      return;
    }
    bucket.passed.store(bucket.passed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
}

void RowIds::Adding::remove(std::uint64_t row) {
  ids_.set_known(row, false);
  for (std::uint64_t i = ids_.place(ids_.id(row)).bucket;; i = ids_.next(i)) {
    Bucket& bucket = ids_.first_bucket_[i];
    const std::uint64_t low = bucket.low_tags.load(std::memory_order_relaxed);
    const std::uint32_t high = bucket.high_tags.load(std::memory_order_relaxed);
    for (std::size_t index = 0; index < kOfBucket; ++index) {
      const bool is_low = index < 8;
      const std::size_t shift = 8 * (is_low ? index : index - 8);
      const bool is_free = ((is_low ? low : high) >> shift & 0xff) == 0;
      if (is_free || bucket.rows[index].load(std::memory_order_relaxed) != row) continue;
      if (is_low) {
        bucket.low_tags.store(low & ~(std::uint64_t{0xff} << shift), std::memory_order_release);
      } else {
        bucket.high_tags.store(high & ~(std::uint32_t{0xff} << shift), std::memory_order_release);
      }
      return;
    }
    bucket.passed.store(bucket.passed.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }
}

std::uint64_t RowIds::Adding::take(const RowRange& share, std::int64_t id) {
  if (ids_.seen_ != nullptr) ids_.seen_->forget(id);
  ids_.assigned_.store(ids_.assigned() + 1, std::memory_order_relaxed);
  if (ids_.given_back_.empty()) return share.first + ids_.ever_assigned_++;
  const std::uint64_t row = ids_.given_back_.back();
  ids_.given_back_.pop_back();
  return row;
}

bool RowIds::Adding::admits(std::int64_t id) {
  if (ids_.seen_ == nullptr || ids_.find(id) != kUnknown) return true;
  if (static_cast<std::uint32_t>(ids_.seen_->count(id)) >= ids_.admitted_at_) return true;
  ids_.not_admitted_.store(ids_.not_admitted() + 1, std::memory_order_relaxed);
  return false;
}

void RowIds::Adding::give_back(std::uint64_t row) {
  ids_.assigned_.store(ids_.assigned() - 1, std::memory_order_relaxed);
  ids_.retired_.store(ids_.retired() + 1, std::memory_order_relaxed);
  ids_.given_back_.push_back(static_cast<std::uint32_t>(row));
  ids_.used_.remove(row);
}

}  // namespace adaps
