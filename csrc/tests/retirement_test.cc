// Rows of ids that are retired and given to other ids.
#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "memory_cluster.h"
#include "store/row_ids.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

std::vector<TableSpec> tables(std::uint64_t rows, Evict evict = Evict::kLru, Clock ttl = 0) {
  return {{.name = "t", .rows = rows, .length = 1, .has_ids = true, .evict = evict, .ttl = ttl}};
}

// A worker that calls with ids of the first table.
struct Caller {
  Caller(MemoryCluster& cluster, std::size_t rank, std::size_t index)
      : table(cluster.node(rank).tables[0]), worker(cluster.worker(rank, index)) {}

  std::vector<Key> keys_of(std::span<const std::int64_t> ids) {
    std::vector<std::int64_t> rows(ids.size());
    worker.rows_of(table, ids, rows, false);
    return {rows.begin(), rows.end()};
  }
  std::vector<float> pull(std::span<const Key> keys) {
    std::vector<float> values(keys.size());
    worker.pull(keys, values.data(), values.size(), false);
    return values;
  }
  void push(std::span<const Key> keys, float value) {
    const std::vector<float> values(keys.size(), value);
    worker.push(keys, values.data(), values.size(), false);
  }

  const Table& table;
  Worker& worker;
};

std::vector<std::int64_t> range(std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = first; id < end; ++id) ids.push_back(id);
  return ids;
}

}  // namespace

TEST(ids_are_found_exactly_until_they_are_removed) {
  for (const std::size_t rows : {1U, 12U, 13U, 300U, 5000U}) {
    RowIds known(rows);
    std::unordered_map<std::int64_t, std::uint64_t> model;
    std::vector<std::uint64_t> free;
    for (std::uint64_t row = 0; row < rows; ++row) free.push_back(row);
    Random random(rows);
    for (std::size_t i = 0; i < 20 * rows; ++i) {
      const auto id = static_cast<std::int64_t>(random.below(3 * rows));
      const auto found = model.find(id);
      CHECK_EQ(known.find(id),
               found == model.end() ? RowIds::kUnknown : static_cast<std::int64_t>(found->second));
      if (found != model.end()) {
        RowIds::Adding(known).remove(found->second);
        CHECK(!known.knows(found->second));
        free.push_back(found->second);
        model.erase(found);
      } else if (!free.empty()) {
        RowIds::Adding(known).add(id, free.back());
        CHECK(known.has(free.back(), id));
        model[id] = free.back();
        free.pop_back();
      }
    }
    for (std::int64_t id = 0; id < static_cast<std::int64_t>(3 * rows); ++id)
      CHECK_EQ(known.find(id) != RowIds::kUnknown, model.contains(id));
  }
}

TEST(readers_find_the_ids_that_stay_while_others_come_and_go) {
  constexpr std::int64_t kStay = 500;
  RowIds known(1000);
  for (std::int64_t id = 0; id < kStay; ++id) RowIds::Adding(known).add(id, static_cast<std::uint64_t>(id));
  std::atomic<bool> is_done{false};
  std::atomic<bool> is_wrong{false};
  std::thread reader([&] {
    Random random(1);
    while (!is_done.load()) {
      const auto id = static_cast<std::int64_t>(random.below(kStay));
      if (known.find(id) != id) is_wrong.store(true);
    }
  });
  for (std::int64_t id = kStay; id < 100 * kStay; ++id) {
    const auto row = static_cast<std::uint64_t>(kStay + id % kStay);
    if (known.knows(row)) RowIds::Adding(known).remove(row);
    RowIds::Adding(known).add(id, row);
  }
  is_done.store(true);
  reader.join();
  CHECK(!is_wrong.load());
}

// A use lasts until its worker's clock advances, however many ticks of other workers come before or after.
TEST(a_use_lasts_exactly_until_the_clock_of_its_worker_advances) {
  constexpr std::uint64_t kFewTicks = 300;
  constexpr std::uint64_t kManyTicks = std::uint64_t{1} << 14;
  constexpr std::uint64_t kRows = 100'000;
  RowUses uses(kRows);
  std::uint64_t tick = 1;
  std::array<std::uint64_t, 2> began{1, 1};  // tick at which the clock of each worker began
  const auto is_over = [&](RowUse use) {
    const bool is_several = use.worker == RowUse::kSeveral;
    return use.last < (is_several ? std::min(began[0], began[1]) : began[use.worker]);
  };
  const auto is_used = [&](std::uint64_t row) { return !is_over(uses.last_use(row, tick)); };
  const auto advance = [&](std::uint32_t worker) {
    began[worker] = ++tick;
    uses.renew(tick, is_over);
  };
  for (const std::uint64_t row : {std::uint64_t{0}, kRows - 1}) {
    uses.use(row, tick, 0, is_over);
    uses.use(row, tick, 0, is_over);
    uses.use(row - row / 2, tick, 0, is_over);
    uses.use(row - row / 2, tick, 1, is_over);
  }
  CHECK_EQ(uses.last_use(0, tick).worker, RowUse::kSeveral);
  CHECK_EQ(uses.last_use(kRows - 1, tick).worker, 0U);
  for (std::uint64_t i = 0; i < kManyTicks; ++i) {
    advance(1);
    CHECK(is_used(0) && is_used(kRows - 1) && is_used(kRows / 2) && !is_used(1));
  }
  advance(0);
  CHECK(!is_used(kRows - 1));
  for (std::uint64_t i = 0; i < kFewTicks; ++i) advance(1);
  advance(0);
  for (std::uint64_t i = 0; i < kManyTicks; ++i) {
    advance(1);
    CHECK(!is_used(0) && !is_used(kRows - 1) && !is_used(kRows / 2));
  }
}

// Pins and the last use share a word.
TEST(pins_and_uses_of_a_row_do_not_affect_each_other) {
  RowUses uses(3);
  const auto is_over = [](RowUse) { return true; };
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      for (int up = 0; up < 300; ++up) uses.pin(1);
      for (int down = 0; down < 300; ++down) uses.unpin(1);
    }
    for (int i = 0; i < 260; ++i) uses.pin(1);
  });
  for (std::uint64_t tick = 1; tick <= 20'000; ++tick) {
    uses.use(1, tick, static_cast<std::uint32_t>(tick % 2), is_over);
    CHECK_EQ(uses.last_use(1, tick).last, tick);
    CHECK_EQ(uses.last_use(1, tick).worker, static_cast<std::uint32_t>(tick % 2));
  }
  other.join();
  CHECK_EQ(uses.pins(1), 260U);
  for (std::uint64_t tick = 20'000; tick < 21'000; ++tick) uses.renew(tick, is_over);
  CHECK_EQ(uses.last_use(1, 21'000).last, std::uint64_t{0});
  CHECK_EQ(uses.pins(1), 260U);
  CHECK_EQ(uses.pins(0) + uses.pins(2), 0U);
}

TEST(a_use_of_several_workers_lasts_until_each_has_advanced_once) {
  constexpr std::uint64_t kRows = 10;
  RowUses uses(kRows);
  std::uint64_t tick = 1;
  std::array<std::uint64_t, 2> began{1, 1};  // tick at which the clock of each worker began
  const auto is_over = [&](RowUse use) { return use.last < std::min(began[0], began[1]); };
  const auto is_used = [&](std::uint64_t row) { return !is_over(uses.last_use(row, tick)); };
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (const std::uint32_t worker : {0U, 1U}) uses.use(row, tick, worker, [](RowUse) { return false; });
  }
  for (const std::size_t worker : {0U, 1U}) {
    for (std::uint64_t row = 0; row < kRows; ++row) CHECK(is_used(row));
    began[worker] = ++tick;
    uses.renew(tick, is_over);
  }
  for (std::uint64_t row = 0; row < kRows; ++row) CHECK(!is_used(row));
}

// An evaluation between two steps must not change what the training keeps.
TEST(a_call_that_only_finds_rows_does_not_affect_which_rows_are_retired) {
  for (const Evict evict : {Evict::kIntent, Evict::kLru, Evict::kLfu}) {
    std::set<std::vector<std::int64_t>> kept;
    for (const bool is_evaluated : {false, true}) {
      // The number of rows that several channels retire depends on their speed.
      MemoryCluster cluster(tables(100, evict), {.channels = 1});
      Caller caller(cluster, 0, 0);
      for (std::int64_t step = 0; step < 10; ++step) {
        caller.keys_of(range(10 * step, 10 * step + 10));
        caller.worker.advance_clock();
      }
      std::vector<std::int64_t> found(200);
      for (int call = 0; is_evaluated && call < 5; ++call) {
        caller.worker.rows_of(caller.table, range(-150, 50), found, false, false);
        caller.worker.end_uses();
      }
      CHECK_EQ(caller.table.ids()->retired(), std::uint64_t{0});
      caller.keys_of(range(1000, 1030));
      std::vector<std::int64_t> left;
      for (std::int64_t id = 0; id < 100; ++id) {
        if (caller.table.ids()->find(id) != RowIds::kUnknown) left.push_back(id);
      }
      kept.insert(left);
    }
    CHECK_EQ(kept.size(), std::size_t{1});
  }
}

TEST(rows_that_are_in_use_are_not_retired) {
  MemoryCluster cluster(tables(10), {.workers = 2});
  Caller caller(cluster, 0, 0);
  Caller other(cluster, 0, 1);
  const std::vector<std::int64_t> first = range(0, 10);
  const std::vector<std::int64_t> more = range(10, 11);
  caller.keys_of(first);
  CHECK_THROWS(caller.keys_of(more), TableFull, "node 0 assigns 10 of its 10 rows");
  other.worker.advance_clock();
  CHECK_THROWS(caller.keys_of(more), TableFull, "present clocks");
  caller.worker.advance_clock();
  CHECK_EQ(caller.keys_of(more).size(), std::size_t{1});
  CHECK_EQ(caller.table.ids()->retired(), std::uint64_t{1});
}

TEST(few_more_rows_are_retired_than_are_needed) {
  MemoryCluster cluster(tables(100), {.channels = 2});
  Caller caller(cluster, 0, 0);
  caller.keys_of(range(0, 100));
  for (std::int64_t id = 100; id < 150; id += 10) {
    caller.worker.advance_clock();
    caller.keys_of(range(id, id + 10));
  }
  CHECK(caller.table.ids()->retired() >= 50);
  CHECK(caller.table.ids()->retired() <= 60);
}

TEST(an_intent_keeps_its_rows) {
  MemoryCluster cluster(tables(4), {});
  Caller caller(cluster, 0, 0);
  const std::vector<std::int64_t> kept = range(0, 2);
  const std::vector<Key> keys = caller.keys_of(kept);
  caller.push(keys, 1.0F);
  caller.worker.intent(keys, 20, 21);
  for (std::int64_t id = 2; id < 40; id += 2) {
    caller.worker.advance_clock();
    caller.keys_of(range(id, id + 2));
  }
  CHECK_THROWS(caller.keys_of(range(100, 103)), TableFull, "is full");
  caller.worker.advance_clock();
  CHECK(caller.pull(keys) == std::vector<float>(2, 1.0F));
  CHECK(caller.keys_of(kept) == keys);
  caller.worker.advance_clock();
  CHECK_EQ(caller.keys_of(range(100, 104)).size(), std::size_t{4});
}

TEST(a_call_keeps_a_row_that_only_the_intent_of_another_worker_needed) {
  MemoryCluster cluster(tables(4), {.workers = 2});
  Caller paused(cluster, 0, 0);
  Caller other(cluster, 0, 1);
  const std::vector<Key> keys = other.keys_of(range(0, 1));
  other.push(keys, 1.0F);
  other.worker.intent(keys, 0, 1);
  CHECK_EQ(paused.pull(keys)[0], 1.0F);
  for (std::int64_t id = 2; id < 40; ++id) {
    other.worker.advance_clock();
    other.keys_of(range(id, id + 1));
  }
  CHECK_EQ(paused.pull(keys)[0], 1.0F);
}

TEST(rows_are_retired_by_age_only_after_their_ttl) {
  MemoryCluster cluster(tables(2, Evict::kTtl, 3), {});
  Caller caller(cluster, 0, 0);
  caller.keys_of(range(0, 2));
  for (int clock = 0; clock < 3; ++clock) {
    caller.worker.advance_clock();
    CHECK_THROWS(caller.keys_of(range(2, 3)), TableFull, "ttl");
  }
  caller.worker.advance_clock();
  CHECK_EQ(caller.keys_of(range(2, 3)).size(), std::size_t{1});
}

TEST(a_ttl_needs_its_order_and_ids_need_to_exist) {
  CHECK_THROWS(Tables(tables(4, Evict::kLru, 3)), std::invalid_argument, "ttl of 3 clocks");
  CHECK_THROWS(Tables(tables(4, Evict::kTtl)), std::invalid_argument, "ttl of 0 clocks");
  TableSpec without_ids = tables(4)[0];
  without_ids.has_ids = false;
  CHECK_THROWS(Tables({without_ids}), std::invalid_argument, "no ids as keys");
  TableSpec too_often = tables(4)[0];
  too_often.admit_seen = 9;
  CHECK_THROWS(Tables({too_often}), std::invalid_argument, "request 9");
}

// Each worker sets the rows of its ids to the ids, so that a row with the value of another id is noticed.
TEST(workers_of_several_nodes_never_see_the_row_of_another_id) {
  constexpr std::int64_t kIds = 400;
  MemoryCluster cluster(tables(160), {.nodes = 2, .workers = 2, .channels = 2});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Caller caller(cluster, i / 2, i % 2);
      Random random(i);
      for (int step = 0; step < 400; ++step) {
        std::set<std::int64_t> batch;
        while (batch.size() < 10) batch.insert(1 + static_cast<std::int64_t>(random.below(kIds)));
        const std::vector<std::int64_t> ids(batch.begin(), batch.end());
        const std::vector<Key> keys = caller.keys_of(ids);
        if (step % 3 == 0) caller.worker.intent(keys, step, step + 1);
        const std::vector<float> values = caller.pull(keys);
        std::vector<float> own(ids.begin(), ids.end());
        for (std::size_t k = 0; k < ids.size(); ++k)
          wrong += values[k] != 0.0F && values[k] != own[k] ? 1 : 0;
        caller.worker.set(keys, own.data(), own.size(), false);
        caller.worker.advance_clock();
      }
      caller.worker.finalize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const RowIds& known = *cluster.node(rank).tables[0].ids();
    CHECK(known.retired() > 0);
    CHECK(known.assigned() <= 80);
  }
}
