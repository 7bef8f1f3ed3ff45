// Counts of ids that have no row, and the order in which rows are retired.
#include "store/replacement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "replay/row_replay.h"

using namespace adaps;

namespace {

bool any(std::uint64_t /*row*/) { return true; }

// Returns the rows of a full share in the order of their retirement, if no row is used meanwhile.
std::vector<std::uint64_t> order_of(Replacement& rows, std::size_t count, Tick now) {
  std::vector<std::uint64_t> order(count);
  order.resize(rows.choose(now, order, any));
  return order;
}

// Requests with frequencies in proportion to 1 / rank.
std::vector<std::int64_t> skewed_ids(std::size_t requests, std::uint64_t distinct) {
  Random random(5);
  std::vector<std::int64_t> ids(requests);
  const double range = std::log(static_cast<double>(distinct));
  for (std::int64_t& id : ids)
    id = static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(std::exp(range * random.unit()))));
  return ids;
}

}  // namespace

TEST(requests_are_counted_up_to_the_largest_count) {
  SeenSketch sketch(1000);
  CHECK_EQ(sketch.seen(-5), 0);
  for (int i = 1; i <= SeenSketch::kMost + 1; ++i) CHECK_EQ(sketch.count(-5), i);
  CHECK_EQ(sketch.count(-5), SeenSketch::kMost + 1);
  CHECK_EQ(sketch.seen(-5), SeenSketch::kMost);
  sketch.set(-5, 2);
  CHECK_EQ(sketch.seen(-5), 2);
  sketch.forget(-5);
  CHECK_EQ(sketch.seen(-5), 0);
  sketch.forget(-5);
  CHECK_EQ(sketch.count(-5), 1);
}

TEST(an_id_is_forgotten_only_after_six_newer_ids_of_its_word) {
  SeenSketch sketch(8);  // one word
  CHECK_EQ(sketch.bytes(), std::uint64_t{8});
  std::set<std::int64_t> counted;
  for (std::int64_t id = 0; counted.size() < 6; ++id) {
    if (sketch.seen(id) == 0) {  // its fingerprint differs from those of the ids before
      sketch.count(id);
      counted.insert(id);
    }
  }
  for (const std::int64_t id : counted) CHECK_EQ(sketch.seen(id), 1);
  std::int64_t newer = 1000;
  while (sketch.seen(newer) != 0) ++newer;
  sketch.count(newer);
  CHECK_EQ(sketch.seen(*counted.begin()), 0);
  for (auto id = std::next(counted.begin()); id != counted.end(); ++id) CHECK_EQ(sketch.seen(*id), 1);
  // A forgotten id leaves space, so that no other id has to go.
  sketch.forget(*std::next(counted.begin()));
  while (sketch.seen(++newer) != 0) {
  }
  sketch.count(newer);
  for (auto id = std::next(counted.begin(), 2); id != counted.end(); ++id) CHECK_EQ(sketch.seen(*id), 1);
}

TEST(a_sketch_takes_at_most_a_byte_per_id_and_is_rarely_too_early) {
  constexpr std::uint64_t kIds = 100'000;
  SeenSketch sketch(kIds);
  CHECK(sketch.bytes() <= kIds);
  std::uint64_t early = 0;
  for (std::uint64_t id = 0; id < kIds / 2; ++id)
    early += sketch.count(static_cast<std::int64_t>(mix(id))) > 1 ? 1 : 0;
  CHECK(early < kIds / 2 / 20);
}

// The frequencies of rows in production-like workloads of Meta (facebookresearch/dlrm_datasets, 2022): the
// share of rows that have a number of requests.
TEST(rare_ids_of_a_workload_get_no_row_and_take_few_requests) {
  struct Uses {
    std::uint64_t least, most;
    double share;
  };
  constexpr std::array<Uses, 17> kWorkload{{{1, 1, 0.342},
                                            {2, 2, 0.144},
                                            {3, 4, 0.149},
                                            {5, 8, 0.138},
                                            {9, 16, 0.112},
                                            {17, 32, 0.068},
                                            {33, 64, 0.029},
                                            {65, 128, 0.010},
                                            {129, 256, 0.004},
                                            {257, 512, 0.002},
                                            {513, 1024, 0.00066},
                                            {1025, 2048, 0.0006},
                                            {2049, 4096, 0.00026},
                                            {4097, 8192, 0.0001},
                                            {8193, 16384, 0.00002},
                                            {16385, 32768, 0.00001},
                                            {96000, 96000, 0.00001}}};
  Random random(7);
  std::vector<std::int64_t> requests;
  std::int64_t ids = 0;
  for (const Uses& uses : kWorkload) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(uses.share * 100'000 + 0.5); ++i, ++ids)
      requests.insert(requests.end(), uses.least + random.below(uses.most - uses.least + 1), ids);
  }
  for (std::size_t i = requests.size(); i > 1; --i) std::swap(requests[i - 1], requests[random.below(i)]);

  SeenSketch sketch(static_cast<std::uint64_t>(ids));
  std::vector<bool> has_row(static_cast<std::size_t>(ids));
  for (const std::int64_t id : requests) {
    if (has_row[static_cast<std::size_t>(id)] || sketch.count(id) < 3) continue;
    sketch.forget(id);
    has_row[static_cast<std::size_t>(id)] = true;
  }
  const auto rows = static_cast<std::int64_t>(std::count(has_row.begin(), has_row.end(), true));
  std::size_t without_row = 0;
  for (const std::int64_t id : requests) without_row += has_row[static_cast<std::size_t>(id)] ? 0 : 1;
  CHECK(100 * rows <= 55 * ids);
  CHECK(100 * without_row <= 5 * requests.size());
}

TEST(the_row_that_was_not_used_for_the_longest_time_is_first_in_lru) {
  const Tick before_wrap = 0xfffffffe;
  Replacement rows(Evict::kLru, 4, 0);
  for (std::uint64_t row = 0; row < 4; ++row)
    rows.created(row, static_cast<std::int64_t>(row), before_wrap - 9);
  rows.used(2, before_wrap - 1);
  rows.used(0, before_wrap);
  rows.used(3, before_wrap + 2);
  rows.used(1, before_wrap + 3);
  const std::vector<std::uint64_t> expected{2, 0, 3, 1};
  CHECK(order_of(rows, 4, before_wrap + 4) == expected);
}

TEST(the_row_with_the_fewest_uses_is_first_in_lfu) {
  Replacement rows(Evict::kLfu, 3, 0);
  for (std::uint64_t row = 0; row < 3; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
  for (const Tick now : {2U, 3U, 4U}) rows.used(0, now);
  rows.used(1, 5);
  rows.used(1, 5);  // several uses in one tick count once
  rows.used(2, 6);
  rows.used(2, 7);
  const std::vector<std::uint64_t> expected{1, 2, 0};
  CHECK(order_of(rows, 3, 8) == expected);
}

TEST(only_rows_that_were_not_used_for_the_given_time_are_retired_with_ttl) {
  Replacement rows(Evict::kTtl, 3, 10);
  for (std::uint64_t row = 0; row < 3; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
  rows.used(1, 5);
  CHECK(order_of(rows, 3, 11).empty());
  CHECK_EQ(order_of(rows, 3, 12).size(), std::size_t{2});
  rows.refused(0, 12);
  const std::vector<std::uint64_t> expected{2, 1};
  CHECK(order_of(rows, 3, 20) == expected);
}

TEST(frequent_and_recent_rows_and_ids_that_return_stay_with_intent) {
  Replacement rows(Evict::kIntent, 5, 0);
  for (std::uint64_t row = 0; row < 5; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
  const auto replace_row_4 = [&](std::int64_t before, std::int64_t id, Tick now) {
    rows.retired(4, before);
    rows.created(4, id, now);
  };
  replace_row_4(4, 40, 2);  // a period begins
  rows.used(1, 3);
  replace_row_4(40, 41, 4);  // the next period begins
  rows.used(1, 5);
  rows.used(3, 5);
  const std::vector<std::uint64_t> expected{0, 2, 4, 3, 1};
  CHECK(order_of(rows, 5, 5) == expected);
  // The id of row 0 returns, so it is worth more than row 2, which was created at the same time.
  rows.retired(0, 0);
  CHECK_EQ(order_of(rows, 5, 6).size(), std::size_t{4});
  rows.created(0, 0, 6);
  CHECK_EQ(order_of(rows, 5, 7)[0], std::uint64_t{2});
}

// Whether the rows were created in one tick or in many, a period counts one use.
TEST(uses_in_quick_succession_count_once_with_intent) {
  for (const bool is_one_tick : {false, true}) {
    Replacement rows(Evict::kIntent, 64, 0);
    for (std::uint64_t row = 0; row < 64; ++row)
      rows.created(row, static_cast<std::int64_t>(row), is_one_tick ? 1 : 1 + static_cast<Tick>(row));
    rows.retired(63, 63);
    rows.created(63, 64, 99);  // a period begins
    for (Tick now = 100; now < 200; ++now) rows.used(0, now);
    rows.used(1, 100);
    rows.refused(1, 100);
    CHECK_EQ(order_of(rows, 64, 200)[62], std::uint64_t{0});
    CHECK_EQ(order_of(rows, 64, 200)[63], std::uint64_t{1});
    for (int i = 0; i < 2; ++i) rows.refused(0, 200);
    CHECK_EQ(order_of(rows, 64, 200)[63], std::uint64_t{0});
  }
}

TEST(a_row_that_may_not_be_retired_is_not_chosen) {
  for (const Evict evict : {Evict::kIntent, Evict::kLru, Evict::kLfu, Evict::kTtl}) {
    Replacement rows(evict, 300, 0);
    for (std::uint64_t row = 0; row < 300; row += 2) rows.created(row, static_cast<std::int64_t>(row), 1);
    std::array<std::uint64_t, 2> chosen{};
    for (int i = 0; i < 10; ++i) {
      CHECK_EQ(rows.choose(5, chosen, [](std::uint64_t row) { return row == 298; }), std::size_t{1});
      CHECK_EQ(chosen[0], std::uint64_t{298});
    }
    CHECK_EQ(rows.choose(5, chosen, [](std::uint64_t) { return false; }), std::size_t{0});
    CHECK_EQ(order_of(rows, 300, 5).size(), std::size_t{150});  // the others have no id
  }
}

TEST(a_row_that_was_refused_goes_after_others) {
  for (const Evict evict : {Evict::kIntent, Evict::kLru, Evict::kLfu}) {
    Replacement rows(evict, 8, 0);
    for (std::uint64_t row = 0; row < 8; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
    std::set<std::uint64_t> refused;
    std::array<std::uint64_t, 1> chosen{};
    for (Tick now = 2; now < 10; ++now) {
      CHECK_EQ(rows.choose(now, chosen, any), std::size_t{1});
      CHECK(refused.insert(chosen[0]).second);
      rows.refused(chosen[0], now);
    }
  }
}

TEST(the_order_takes_few_bytes_per_row) {
  CHECK(Replacement(Evict::kIntent, 100'000, 0).bytes() <= (4 * 8 + 1) * 100'000 / 8 + 64);
  CHECK(Replacement(Evict::kLru, 100'000, 0).bytes() <= 4 * 100'000 + 64);
  CHECK(Replacement(Evict::kLfu, 100'000, 0).bytes() <= 4 * 100'000 + 64);
}

// Time wraps in the row's byte while 4,000 other rows are created.
TEST(a_row_that_is_kept_for_long_is_the_first_to_go) {
  Replacement rows(Evict::kIntent, 4, 0);
  for (std::uint64_t row = 0; row < 4; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
  std::array<std::uint64_t, 1> chosen{};
  const auto is_other = [](std::uint64_t row) { return row != 2; };
  for (Tick now = 2; now < 4'000; ++now) {
    REQUIRE(rows.choose(now, chosen, is_other) == 1);
    const auto id = static_cast<std::int64_t>(now);
    rows.retired(chosen[0], id);
    rows.created(chosen[0], id + 1'000'000, now);
    CHECK(now < 10 || order_of(rows, 4, now)[0] == 2);
  }
}

TEST(rows_are_used_by_several_threads_while_others_are_chosen) {
  Replacement rows(Evict::kIntent, 64, 0);
  for (std::uint64_t row = 0; row < 64; ++row) rows.created(row, static_cast<std::int64_t>(row), 1);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&rows, t] {
      for (Tick now = 2; now < 2000; ++now) {
        rows.used((now * 7 + t) % 64, now);
        rows.refused((now * 3 + t) % 64, now);
      }
    });
  }
  for (Tick now = 2; now < 200; ++now) CHECK_EQ(order_of(rows, 8, now).size(), std::size_t{8});
  for (std::thread& thread : threads) thread.join();
}

TEST(replayed_requests_are_hits_created_not_admitted_or_without_a_free_row) {
  const std::vector<std::int64_t> ids = skewed_ids(20'000, 2'000);
  for (const Evict evict : {Evict::kNone, Evict::kIntent, Evict::kLru, Evict::kLfu, Evict::kTtl}) {
    for (const int seen : {1, 3}) {
      const RowReplayResult found =
          replay_rows(ids, {.rows = 100, .evict = evict, .ttl = 2000, .admit_seen = seen});
      CHECK_EQ(found.hits + found.created + found.not_admitted + found.full, ids.size());
      CHECK_EQ(found.not_admitted > 0, seen > 1);
      CHECK_EQ(found.full > 0, evict == Evict::kNone || evict == Evict::kTtl);
    }
  }
}

TEST(the_replay_is_optimal_if_all_requests_are_announced) {
  const std::vector<std::int64_t> ids = skewed_ids(10'000, 2'000);
  const auto next_request = [&](std::int64_t id, std::size_t after) {
    return std::find(ids.begin() + static_cast<std::ptrdiff_t>(after) + 1, ids.end(), id) - ids.begin();
  };
  std::map<std::int64_t, std::ptrdiff_t> next;  // by id with a row
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (next.contains(ids[i])) {
      ++hits;
    } else if (next.size() == 200) {
      next.erase(std::ranges::max_element(next, {}, [](const auto& entry) { return entry.second; }));
    }
    next[ids[i]] = next_request(ids[i], i);
  }
  const auto replayed = [&](std::size_t batch, std::size_t lookahead) {
    return replay_rows(ids, {.rows = 200, .evict = Evict::kIntent, .batch = batch, .lookahead = lookahead});
  };
  CHECK_EQ(replayed(1, ids.size()).hits, hits);
  CHECK_EQ(replayed(100, 100).hits, hits);
  CHECK(replayed(100, 10).hits < hits);
}

TEST(announced_requests_and_estimated_reuse_save_rows) {
  const std::vector<std::int64_t> ids = skewed_ids(50'000, 5'000);
  const auto hits = [&](Evict evict, std::size_t lookahead) {
    return replay_rows(ids, {.rows = 250, .evict = evict, .batch = 64, .lookahead = lookahead}).hits;
  };
  const std::uint64_t lru = hits(Evict::kLru, 0);
  CHECK_EQ(hits(Evict::kLru, 20), lru);
  CHECK(hits(Evict::kIntent, 0) > lru);
  CHECK(hits(Evict::kIntent, 20) > hits(Evict::kIntent, 0));
}
