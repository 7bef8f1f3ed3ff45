#include "node/sampling.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "protocol/context.h"
#include "protocol/local_access.h"
#include "store/stratified_draws.h"

namespace adaps {

namespace {

// Number of candidates that are tried for each row before another method is used. The first constant is for
// rows that must not be in the sample yet, the second for rows that must be local.
constexpr std::size_t kTriesPerRow = 8;
constexpr std::size_t kTriesPerLocalRow = 64;
// Number of candidates that are prefetched together.
constexpr std::size_t kBlock = 32;

// Rows of one sample: a hash table with open addressing.
class RowSet {
 public:
  explicit RowSet(std::size_t most) : slots_(std::bit_ceil(2 * most + 2), kFree) {}

  bool contains(std::uint64_t row) const { return slots_[find(row)] == row; }
  // Returns whether the row was new.
  bool add(std::uint64_t row) {
    std::uint64_t& slot = slots_[find(row)];
    return std::exchange(slot, row) != row;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  std::size_t find(std::uint64_t row) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = mix(row) & mask;
    while (slots_[slot] != kFree && slots_[slot] != row) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<std::uint64_t> slots_;
};

// Draws rows one after the other. Each draw uses the probabilities of the rows that are not in the set
// `taken`, and adds its row to the set.
class Distinct {
 public:
  Distinct(const Distribution& distribution, Random& random, RowSet& taken)
      : distribution_(distribution), random_(random), taken_(taken) {}

  void draw(std::span<std::uint64_t> rows) {
    std::size_t drawn = 0;
    for (std::size_t tries = kTriesPerRow * (rows.size() + 1); tries > 0 && drawn < rows.size(); --tries) {
      const std::uint64_t row = distribution_.draw(random_);
      if (taken_.add(row)) rows[drawn++] = row;
    }
    if (drawn < rows.size()) draw_last(rows.subspan(drawn));
  }

 private:
  // Draws the remaining rows when most candidates are already in the set. Each remaining row gets a random
  // time from an exponential distribution whose rate is its probability. The rows with the earliest times are
  // distributed as if they were drawn one after the other (Efraimidis and Spirakis 2006).
  void draw_last(std::span<std::uint64_t> rows) {
    std::priority_queue<std::pair<double, std::uint64_t>> earliest;  // the latest time is on top
    for (std::uint64_t row = 0; row < distribution_.rows(); ++row) {
      const double probability = distribution_.probability(row);
      if (probability == 0.0 || taken_.contains(row)) continue;
      const double time = random_.exponential(1.0 / probability);
      if (earliest.size() == rows.size()) {
        if (time >= earliest.top().first) continue;
        earliest.pop();
      }
      earliest.emplace(time, row);
    }
    for (std::size_t i = rows.size(); i-- > 0; earliest.pop()) {
      rows[i] = earliest.top().second;
      taken_.add(rows[i]);
    }
  }

  const Distribution& distribution_;
  Random& random_;
  RowSet& taken_;
};

// Draws a sample when it is taken, and signals no intent.
class Naive : public Sampler {
 public:
  using Sampler::Sampler;

  std::size_t take(const Sample& sample, std::span<Key> keys, float*) override {
    draw(random(Stream::kSamples, sample.number), keys);
    return 0;
  }

 private:
  void prepare(Sample&, Clock, Clock, std::vector<Announcement>&) override {}
};

// Draws the same samples as `naive`, but when a sample is prepared, and signals intent for its rows.
class Preloc : public Sampler {
 public:
  using Sampler::Sampler;

 private:
  void prepare(Sample& sample, Clock start, Clock end, std::vector<Announcement>& announcements) override {
    sample.keys.resize(sample.size);
    draw(random(Stream::kSamples, sample.number), sample.keys);
    announcements.push_back({sample.keys, start, end});
  }
};

// Has a pool of rows and returns each of them repeatedly, in random order. A row that was used `reuse` times
// is replaced by a newly drawn row.
class Pool : public Sampler {
 public:
  Pool(NodeContext& node, int worker, const Table& table, const SamplingSpec& spec)
      : Sampler(node, worker, table, spec),
        random_(random(Stream::kPools, 0)),
        strata_(*spec.distribution, random_.next()) {}

 private:
  struct Row {
    Key key = 0;
    std::uint64_t uses_left = 0;
  };

  std::uint64_t largest() const override {
    return spec().replacement ? Sampler::largest() : std::min(Sampler::largest(), spec().pool_size);
  }

  void prepare(Sample& sample, Clock start, Clock end, std::vector<Announcement>& announcements) override {
    const bool distinct = !spec().replacement;
    RowSet taken(distinct ? sample.size : 0);
    sample.keys.reserve(sample.size);
    while (sample.keys.size() < sample.size) {
      if (next_ == decisions().handed_out(pool_.size())) {
        std::vector<Key> drawn = renew();
        if (!drawn.empty())
          announcements.push_back(
              {std::move(drawn), start, std::min(end, kMaxClock) + clocks_of_row(sample.size)});
        begin_pass();
        // Rows that are already in the sample are returned later in this pass.
        if (distinct)
          std::stable_partition(pool_.begin(), pool_.end(), [&](const Row& row) {
            return !decisions().is_left_out(taken.contains(row.key));
          });
      }
      sample.keys.push_back(pool_[next_++].key);
      if (distinct) taken.add(sample.keys.back());
    }
    announcements.push_back({sample.keys, start, end});
  }

  // Replaces the rows that were used `reuse` times by newly drawn rows.
  std::vector<Key> renew() {
    const bool first = pool_.empty();
    if (first) pool_.resize(spec().replacement ? spec().pool_size : largest());
    std::vector<Row*> used_up;
    for (Row& row : pool_) {
      if (row.uses_left == 0) used_up.push_back(&row);
    }
    std::vector<Key> drawn(used_up.size());
    if (spec().replacement) {
      for (Key& key : drawn) key = table().first_key() + strata_.draw();
    } else if (!drawn.empty()) {  // all rows are new, so they are drawn together
      draw(Random(random_.next()), drawn);
    }
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      // The rows of the first pool start with different numbers of remaining uses, so that each pass replaces
      // an equal part of the pool.
      used_up[i]->uses_left = first && spec().replacement ? 1 + i % spec().reuse : spec().reuse;
      used_up[i]->key = drawn[i];
    }
    return drawn;
  }

  void begin_pass() {
    for (std::size_t i = pool_.size(); i > 1; --i) {
      std::uint64_t rest = 0;
      std::swap(pool_[i - 1], pool_[pick(random_.next(), i, rest)]);
    }
    for (Row& row : pool_) --row.uses_left;
    next_ = 0;
  }

  // Number of clocks after which a row is used up, if each clock uses one sample.
  Clock clocks_of_row(std::size_t size) const {
    return static_cast<Clock>(pool_.size() * spec().reuse / size);
  }

  std::vector<Row> pool_;
  std::size_t next_ = 0;
  Random random_;
  StratifiedDraws strata_;
};

// Uses local rows. If there are too few of them, draws the remaining rows from all rows of the table.
class Local : public Sampler {
 public:
  using Sampler::Sampler;

  std::size_t take(const Sample& sample, std::span<Key> keys, float* values) override {
    const Distribution& distribution = *spec().distribution;
    Random random = Sampler::random(Stream::kSamples, sample.number);
    const bool distinct = !spec().replacement;
    RowSet taken(distinct ? keys.size() : 0);
    const Key first = table().first_key();
    std::size_t here = 0;
    // Continues while at least one in kTriesPerLocalRow candidates is local. If no candidate is local, the
    // loop ends after this number of candidates.
    for (std::size_t tried = 0; here < keys.size() && tried < kTriesPerLocalRow * (here + 1);) {
      Key candidates[kBlock];
      for (Key& candidate : candidates) {
        candidate = first + distribution.draw(random);
        node_.store.prefetch_word(candidate);
      }
      for (std::size_t i = 0; i < kBlock && here < keys.size(); ++i, ++tried) {
        const Key key = candidates[i];
        if (distinct && decisions().is_left_out(taken.contains(key - first))) continue;
        float* value = values == nullptr ? nullptr : values + here * table().length();
        if (!pull_if_here(node_, worker_, table(), key, value)) continue;
        keys[here++] = key;
        if (distinct) taken.add(key - first);
      }
    }
    const std::span<Key> rest = keys.subspan(here);
    if (distinct) {
      Distinct(distribution, random, taken).draw(rest);
    } else {
      for (Key& key : rest) key = distribution.draw(random);
    }
    for (Key& key : rest) key += first;
    node_.workers[static_cast<std::size_t>(worker_)]
        ->accesses[node_.tables.number_of(table())]
        .sampled_fallback.add(rest.size());
    return here;
  }

 private:
  void prepare(Sample&, Clock, Clock, std::vector<Announcement>&) override {}
};

}  // namespace

Sampler::Sampler(NodeContext& node, int worker, const Table& table, const SamplingSpec& spec)
    : node_(node), worker_(worker), table_(table), spec_(spec) {}

std::unique_ptr<Sampler> Sampler::make(NodeContext& node, int worker, const Table& table) {
  const std::optional<SamplingSpec>& spec = table.spec().sampling;
  if (!spec)
    throw std::invalid_argument("table '" + table.spec().name +
                                "' has no sampling; create it with a Sampling");
  switch (spec->scheme) {
    case SamplingScheme::kNaive:
      return std::make_unique<Naive>(node, worker, table, *spec);
    case SamplingScheme::kPreloc:
      return std::make_unique<Preloc>(node, worker, table, *spec);
    case SamplingScheme::kPool:
      return std::make_unique<Pool>(node, worker, table, *spec);
    case SamplingScheme::kLocal:
      break;
  }
  return std::make_unique<Local>(node, worker, table, *spec);
}

Sample Sampler::prepare(std::size_t size, Clock start, Clock end, std::vector<Announcement>& announcements) {
  const std::string what =
      "a sample of " + std::to_string(size) + " rows of table '" + table_.spec().name + "'";
  if (size == 0) throw std::invalid_argument(what + "; it needs at least 1");
  if (size > largest())
    throw std::invalid_argument(what + "; at most " + std::to_string(largest()) +
                                " are possible without replacement");
  Sample sample{prepared_++, size, {}};
  prepare(sample, start, end, announcements);
  for (Announcement& announced : announcements)
    announced.keys.resize(decisions().announced(announced.keys.size()));
  return sample;
}

std::size_t Sampler::take(const Sample& sample, std::span<Key> keys, float*) {
  std::copy(sample.keys.begin(), sample.keys.end(), keys.begin());
  return 0;
}

std::uint64_t Sampler::largest() const {
  return spec().replacement ? kMaxKeys : spec().distribution->possible();
}

Random Sampler::random(Stream stream, std::uint64_t number) const {
  std::uint64_t hash = static_cast<std::uint64_t>(stream);
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(node_.settings.rank), static_cast<std::uint64_t>(worker_),
        static_cast<std::uint64_t>(node_.tables.number_of(table_)), number}) {
    hash = mix(hash ^ mix(part));
  }
  return Random(spec().seed, hash);
}

void Sampler::draw(Random random, std::span<Key> keys) const {
  const Distribution& distribution = *spec().distribution;
  if (spec().replacement) {
    for (Key& key : keys) key = distribution.draw(random);
  } else {
    RowSet taken(keys.size());
    Distinct(distribution, random, taken).draw(keys);
  }
  for (Key& key : keys) key += table_.first_key();
}

}  // namespace adaps
