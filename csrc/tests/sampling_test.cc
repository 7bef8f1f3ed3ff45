// The rows that the sampling schemes draw, how often, and from which node.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "memory_cluster.h"
#include "store/stratified_draws.h"

using namespace adaps;
using adaps::testing::MemoryCluster;

namespace {

constexpr std::uint64_t kRows = 1000;
constexpr std::size_t kDraws = ADAPS_DRAWS;
constexpr std::size_t kSize = 1000;
constexpr SamplingScheme kSchemes[] = {SamplingScheme::kNaive, SamplingScheme::kPreloc, SamplingScheme::kPool,
                                       SamplingScheme::kLocal};
constexpr std::uint64_t kSeeds[] = {1, 2, 3, 4, 5};

using Shared = std::shared_ptr<const Distribution>;

Shared shared(Distribution distribution) {
  return std::make_shared<const Distribution>(std::move(distribution));
}

// Weights like word frequencies to the power of 0.75, in descending order. Some are 0.
Shared weighted(std::uint64_t rows) {
  std::vector<double> weights(rows);
  for (std::uint64_t row = 0; row < rows; ++row)
    weights[row] = row % 10 == 9 ? 0.0 : std::pow(1e6 / static_cast<double>(row + 1), 0.75);
  return shared(Distribution::weighted(weights));
}

std::vector<std::pair<std::string, Shared>> distributions(std::uint64_t rows) {
  return {{"uniform", shared(Distribution::uniform(rows))},
          {"log-uniform", shared(Distribution::log_uniform(rows))},
          {"weighted", weighted(rows)}};
}

std::vector<TableSpec> one_table(SamplingSpec sampling) {
  return {TableSpec{
      .name = "t", .rows = sampling.distribution->rows(), .length = 1, .sampling = std::move(sampling)}};
}

SamplingSpec sampling(Shared distribution, SamplingScheme scheme, std::uint64_t seed,
                      bool replacement = true) {
  return {.distribution = std::move(distribution),
          .scheme = scheme,
          .replacement = replacement,
          .seed = seed,
          .pool_size = 5000,
          .reuse = 4};
}

Settings alone() { return {}; }

std::vector<std::int64_t> sample(MemoryCluster& cluster, std::size_t rank, std::size_t size) {
  Worker& worker = cluster.worker(rank, 0);
  std::vector<std::int64_t> rows(size);
  const Clock now = worker.current_clock();
  worker.pull_sample(worker.prepare_sample(cluster.node(rank).tables[0], size, now, now + 1), rows, nullptr,
                     0, false);
  return rows;
}

std::vector<std::uint64_t> counts_of_draws(MemoryCluster& cluster, std::size_t rank, std::uint64_t rows) {
  std::vector<std::uint64_t> counts(rows);
  for (std::size_t drawn = 0; drawn < kDraws; drawn += kSize) {
    for (const std::int64_t row : sample(cluster, rank, kSize)) ++counts[static_cast<std::size_t>(row)];
  }
  return counts;
}

// p-value of Pearson's statistic, by the normal approximation of its cube root (Wilson and Hilferty 1931).
double p_value(const std::vector<double>& counts, const std::vector<double>& expected) {
  double statistic = 0.0;
  double freedom = -1.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0.0) {
      if (counts[i] != 0.0) return 0.0;
      continue;
    }
    statistic += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
    freedom += 1.0;
  }
  const double spread = 2.0 / (9.0 * freedom);
  const double deviation = (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(deviation / std::sqrt(2.0));
}

// `uses`: number of times that each drawn row is used.
double p_value(const std::vector<std::uint64_t>& counts, std::uint64_t uses,
               const std::function<double(std::uint64_t)>& probability) {
  double sum = 0.0;
  for (const std::uint64_t count : counts) sum += static_cast<double>(count / uses);
  std::vector<double> observed;
  std::vector<double> expected;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    observed.push_back(static_cast<double>(counts[i] / uses));
    expected.push_back(sum * probability(i));
  }
  return p_value(observed, expected);
}

void check_p(double p, const std::string& what) {
  if (!(p > 0.001)) check::fail(__FILE__, __LINE__, what + ": p = " + std::to_string(p));
}

std::string name(const std::string& distribution, SamplingScheme scheme, std::uint64_t seed) {
  return distribution + ", scheme " + std::to_string(static_cast<int>(scheme)) + ", seed " +
         std::to_string(seed);
}

// Two nodes. The second node permanently owns the rows from `first` on.
MemoryCluster two_nodes(SamplingSpec spec, std::uint64_t first) {
  std::vector<TableSpec> tables = one_table(std::move(spec));
  if (first > 0) tables[0].homes.push_back({first, 0});
  tables[0].homes.push_back({tables[0].rows, 1});
  Settings settings{.nodes = 2, .technique = Technique::kStatic};
  return {tables, settings};
}

std::uint64_t counted(const Counter& counter) { return counter.get(); }

TableAccesses& accesses(MemoryCluster& cluster, std::size_t rank) {
  return cluster.node(rank).workers[0]->accesses[0];
}

}  // namespace

TEST(every_scheme_draws_rows_with_their_probability) {
  for (const auto& [called, distribution] : distributions(kRows)) {
    for (const SamplingScheme scheme : kSchemes) {
      for (const std::uint64_t seed : kSeeds) {
        const SamplingSpec spec = sampling(distribution, scheme, seed);
        MemoryCluster cluster(one_table(spec), alone());
        const std::uint64_t uses = scheme == SamplingScheme::kPool ? spec.reuse : 1;
        check_p(p_value(counts_of_draws(cluster, 0, kRows), uses,
                        [&of = *distribution](std::uint64_t row) { return of.probability(row); }),
                name(called, scheme, seed));
      }
    }
  }
}

TEST(draws_without_replacement_equal_successive_draws) {
  constexpr std::uint64_t kFew = 12;
  for (const auto& [called, distribution] : distributions(kFew)) {
    const auto in_turn = [&of = *distribution](std::uint64_t a, std::uint64_t b) {
      const double first = of.probability(a);
      return a == b ? 0.0 : first * of.probability(b) / (1.0 - first);
    };
    for (const SamplingScheme scheme : kSchemes) {
      for (const std::uint64_t seed : kSeeds) {
        SamplingSpec spec = sampling(distribution, scheme, seed, false);
        spec.pool_size = 2;
        spec.reuse = 1;
        MemoryCluster cluster(one_table(spec), alone());
        std::vector<std::uint64_t> counts(kFew * kFew);
        for (std::size_t drawn = 0; drawn < kDraws; drawn += 2) {
          const std::vector<std::int64_t> rows = sample(cluster, 0, 2);
          ++counts[static_cast<std::size_t>(rows[0]) * kFew + static_cast<std::size_t>(rows[1])];
        }
        const bool shuffled = scheme == SamplingScheme::kPool;
        check_p(p_value(counts, 1,
                        [&](std::uint64_t i) {
                          const std::uint64_t a = i / kFew;
                          const std::uint64_t b = i % kFew;
                          return shuffled ? (in_turn(a, b) + in_turn(b, a)) / 2 : in_turn(a, b);
                        }),
                name(called + " without replacement", scheme, seed));
      }
    }
  }
}

TEST(rarely_found_rows_are_drawn_like_successive_draws) {
  const double weights[] = {1.0, 1.0, 0.02, 0.02};
  const Shared distribution = shared(Distribution::weighted(weights));
  const auto p = [&](std::uint64_t row) { return distribution->probability(row); };
  for (const std::uint64_t seed : kSeeds) {
    MemoryCluster cluster(one_table(sampling(distribution, SamplingScheme::kNaive, seed, false)), alone());
    std::vector<std::uint64_t> counts(64);
    for (int i = 0; i < 200'000; ++i) {
      const std::vector<std::int64_t> rows = sample(cluster, 0, 3);
      ++counts[static_cast<std::size_t>(rows[0] * 16 + rows[1] * 4 + rows[2])];
    }
    check_p(p_value(counts, 1,
                    [&](std::uint64_t i) {
                      const std::uint64_t a = i / 16;
                      const std::uint64_t b = i / 4 % 4;
                      const std::uint64_t c = i % 4;
                      if (a == b || a == c || b == c) return 0.0;
                      return p(a) * p(b) / (1.0 - p(a)) * p(c) / (1.0 - p(a) - p(b));
                    }),
            "three of four, seed " + std::to_string(seed));
  }
}

TEST(a_sample_of_everything_has_every_row_once) {
  for (const SamplingScheme scheme : kSchemes) {
    MemoryCluster cluster(one_table(sampling(weighted(kRows), scheme, 1, false)), alone());
    const std::vector<std::int64_t> rows = sample(cluster, 0, 900);
    CHECK_EQ(std::set<std::int64_t>(rows.begin(), rows.end()).size(), 900U);
    CHECK(std::none_of(rows.begin(), rows.end(), [](std::int64_t row) { return row % 10 == 9; }));
    CHECK_THROWS(sample(cluster, 0, 901), std::invalid_argument, "at most 900 are possible");
  }
}

// Tests the bound of the deviation. The largest difference of any set's probability is half of the sum of all
// differences between the rows' probabilities. It is at most the share of remote rows, and equal to this
// share if no row moves.
TEST(local_draws_what_is_here_by_its_share_of_that) {
  constexpr std::uint64_t kHere = 300;
  for (const auto& [called, distribution] : distributions(kRows)) {
    double share = 0.0;
    for (std::uint64_t row = 0; row < kHere; ++row) share += distribution->probability(row);
    for (const std::uint64_t seed : kSeeds) {
      MemoryCluster cluster = two_nodes(sampling(distribution, SamplingScheme::kLocal, seed), kHere);
      const std::vector<std::uint64_t> counts = counts_of_draws(cluster, 0, kRows);
      check_p(p_value(counts, 1,
                      [&of = *distribution, share](std::uint64_t row) {
                        return row < kHere ? of.probability(row) / share : 0.0;
                      }),
              name(called + " of what is here", SamplingScheme::kLocal, seed));
      CHECK_EQ(counted(accesses(cluster, 0).sampled_fallback), 0U);
      double deviation = 0.0;
      for (std::size_t row = 0; row < kRows; ++row)
        deviation += std::abs(static_cast<double>(counts[row]) / kDraws - distribution->probability(row)) / 2;
      constexpr double kNoise = 0.01;
      CHECK(std::abs(deviation - (1.0 - share)) < kNoise);
      if (seed == 1)
        std::cout << "  " << called << ": " << share << " of it is here, deviation " << deviation << "\n";
    }
  }
}

TEST(local_draws_from_all_rows_if_no_row_is_local) {
  for (const bool replacement : {true, false}) {
    MemoryCluster cluster = two_nodes(sampling(weighted(kRows), SamplingScheme::kLocal, 1, replacement), 0);
    Worker& worker = cluster.worker(0, 0);
    std::vector<std::int64_t> rows(kSize / 2);
    std::vector<float> values(rows.size(), 1.0F);
    worker.pull_sample(worker.prepare_sample(cluster.node(0).tables[0], rows.size(), 0, 1), rows,
                       values.data(), values.size(), false);
    CHECK(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0F; }));
    const TableAccesses& counters = accesses(cluster, 0);
    CHECK_EQ(counted(counters.sampled_fallback), rows.size());
    CHECK_EQ(counted(counters.sampled.remote), rows.size());
    CHECK_EQ(counted(counters.sampled.local), 0U);
    const std::set<std::int64_t> distinct(rows.begin(), rows.end());
    CHECK(replacement || distinct.size() == rows.size());
  }
}

TEST(local_finds_the_few_local_rows) {
  MemoryCluster cluster = two_nodes(sampling(weighted(kRows), SamplingScheme::kLocal, 1, false), 2);
  std::vector<std::int64_t> rows = sample(cluster, 0, 5);
  CHECK((std::set<std::int64_t>(rows.begin(), rows.begin() + 2) == std::set<std::int64_t>{0, 1}));
  CHECK_EQ(counted(accesses(cluster, 0).sampled_fallback), 3U);
}

TEST(naive_and_preloc_draw_equal_rows_that_differ_between_workers) {
  const auto drawn = [](SamplingScheme scheme, std::uint64_t seed, std::size_t worker) {
    Settings settings;
    settings.workers = 2;
    MemoryCluster cluster(one_table(sampling(weighted(kRows), scheme, seed)), settings);
    Worker& of = cluster.worker(0, worker);
    const Table& table = cluster.node(0).tables[0];
    const Ticket first = of.prepare_sample(table, 50, 0, 1);
    const Ticket second = of.prepare_sample(table, 50, 1, 2);
    std::vector<std::int64_t> rows(100);
    // The samples are pulled in reverse order, because the rows of a sample depend only on its number.
    of.pull_sample(second, std::span(rows).last(50), nullptr, 0, false);
    of.pull_sample(first, std::span(rows).first(50), nullptr, 0, false);
    CHECK(!std::equal(rows.begin(), rows.begin() + 50, rows.begin() + 50));
    return rows;
  };
  const std::vector<std::int64_t> naive = drawn(SamplingScheme::kNaive, 1, 0);
  CHECK(naive == drawn(SamplingScheme::kPreloc, 1, 0));
  CHECK(drawn(SamplingScheme::kPool, 1, 0) == drawn(SamplingScheme::kPool, 1, 0));
  CHECK(naive != drawn(SamplingScheme::kNaive, 1, 1));
  CHECK(naive != drawn(SamplingScheme::kNaive, 2, 0));
}

// Without replacement, each pass renews the whole pool. With replacement, each pass renews a part of it. In
// both cases, each row is used equally often.
TEST(rows_of_a_pool_are_used_up_before_they_are_replaced) {
  for (const bool replacement : {true, false}) {
    SamplingSpec spec = sampling(shared(Distribution::uniform(kRows)), SamplingScheme::kPool, 1, replacement);
    spec.pool_size = 90;
    spec.reuse = 3;
    MemoryCluster cluster(one_table(spec), alone());
    std::vector<std::set<std::int64_t>> passes;
    for (int i = 0; i < 30; ++i) {
      const std::vector<std::int64_t> rows = sample(cluster, 0, 45);
      CHECK(replacement || std::set<std::int64_t>(rows.begin(), rows.end()).size() == rows.size());
      if (i % 2 == 0) passes.emplace_back();
      passes.back().insert(rows.begin(), rows.end());
    }
    for (std::size_t pass = 1; pass < passes.size(); ++pass) {
      CHECK_EQ(passes[pass].size(), 90U);
      std::size_t stay = 0;
      for (const std::int64_t row : passes[pass]) stay += passes[pass - 1].count(row);
      CHECK_EQ(stay, replacement ? 60U : pass % 3 == 0 ? stay : 90U);
    }
    std::size_t fresh = 0;
    for (const std::int64_t row : passes[3]) {
      if (passes[2].count(row) > 0) continue;
      ++fresh;
      CHECK(passes[4].count(row) == 1 && passes[5].count(row) == 1);
      CHECK(!replacement || passes[6].count(row) == 0);
    }
    CHECK(replacement ? fresh == 30 : fresh > 30);
  }
}

TEST(a_pool_draws_every_part_of_the_distribution_in_turn) {
  for (const std::uint64_t rows : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{7}, kRows}) {
    for (const auto& [called, distribution] : distributions(rows)) {
      for (const std::uint64_t seed : kSeeds) {
        StratifiedDraws strata(*distribution, seed);
        std::vector<double> counts(rows);
        for (int round = 1; round <= 8; ++round) {
          for (std::uint64_t i = 0; i < rows; ++i) counts[strata.draw()] += 1.0;
          for (std::uint64_t row = 0; row < rows; ++row) {
            const double expected = round * static_cast<double>(rows) * distribution->probability(row);
            if (distribution->kind() == DistributionKind::kUniform) CHECK(counts[row] == round);
            // If several rows share a stratum, one of them may have been drawn once more than the others. A
            // row with a large weight shares many strata.
            CHECK(std::abs(counts[row] - expected) <= 2.0 + 2.0 * std::sqrt(expected));
            CHECK(distribution->probability(row) > 0.0 || counts[row] == 0.0);
          }
        }
      }
    }
  }
}

TEST(a_random_order_has_every_number_once) {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::set<std::vector<std::uint64_t>> orders;
    for (std::uint64_t key = 0; key < 20; ++key) {
      const RandomOrder order(size, key);
      std::vector<std::uint64_t> numbers(size);
      for (std::uint64_t i = 0; i < size; ++i) numbers[i] = order.at(i);
      orders.insert(numbers);
      std::sort(numbers.begin(), numbers.end());
      for (std::uint64_t i = 0; i < size; ++i) CHECK_EQ(numbers[i], i);
    }
    CHECK(orders.size() == (size >= 15 ? 20 : orders.size()));
    CHECK(size == 1 || orders.size() > 1);
  }
}

TEST(announced_samples_are_read_without_a_message) {
  for (const SamplingScheme scheme : {SamplingScheme::kPreloc, SamplingScheme::kPool}) {
    std::vector<TableSpec> tables = one_table(sampling(weighted(kRows), scheme, 1));
    tables[0].homes.push_back({kRows, 1});
    Settings settings;
    settings.nodes = 2;
    MemoryCluster cluster(tables, settings);
    Worker& worker = cluster.worker(0, 0);
    std::vector<std::int64_t> rows(100);
    std::vector<float> values(rows.size());
    const Ticket first = worker.prepare_sample(cluster.node(0).tables[0], rows.size(), 0, 1);
    // Another cluster, whose draws can be computed in advance, draws the same rows.
    MemoryCluster twin(one_table(sampling(weighted(kRows), scheme, 1)), alone());
    std::vector<Key> keys;
    for (const std::int64_t row : sample(twin, 0, rows.size())) keys.push_back(static_cast<Key>(row));
    worker.wait_intent(keys);
    worker.pull_sample(first, rows, values.data(), values.size(), false);
    CHECK(std::equal(keys.begin(), keys.end(), rows.begin(), rows.end(),
                     [](Key key, std::int64_t row) { return key == static_cast<Key>(row); }));
    CHECK_EQ(counted(accesses(cluster, 0).sampled.remote), 0U);
    CHECK_EQ(counted(accesses(cluster, 0).sampled.local), rows.size());
  }
}

TEST(invalid_weights_are_refused) {
  CHECK_THROWS(Distribution::weighted(std::vector<double>{1.0, -1.0}), std::invalid_argument, "row 1 is -1");
  CHECK_THROWS(Distribution::weighted(std::vector<double>{NAN}), std::invalid_argument, "row 0 is nan");
  CHECK_THROWS(Distribution::weighted(std::vector<double>{0.0, 0.0}), std::invalid_argument, "no row");
  std::vector<TableSpec> tables = one_table(sampling(weighted(3), SamplingScheme::kLocal, 1));
  tables[0].rows = 4;
  CHECK_THROWS(Tables(tables), std::invalid_argument, "4 rows and 3 weights");
}

TEST(tables_with_different_sampling_are_different) {
  const auto fingerprint = [](const SamplingSpec& spec) { return Tables(one_table(spec)).fingerprint(); };
  const SamplingSpec spec = sampling(weighted(kRows), SamplingScheme::kPool, 1);
  CHECK_EQ(fingerprint(spec), fingerprint(sampling(weighted(kRows), SamplingScheme::kPool, 1)));
  CHECK(fingerprint(spec) != fingerprint(sampling(weighted(kRows), SamplingScheme::kPool, 2)));
  CHECK(fingerprint(spec) != fingerprint(sampling(weighted(kRows), SamplingScheme::kLocal, 1)));
  CHECK(fingerprint(spec) !=
        fingerprint(sampling(shared(Distribution::uniform(kRows)), SamplingScheme::kPool, 1)));
}
