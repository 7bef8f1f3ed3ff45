// The ids of a table's rows, and the rows that two nodes assign.
#include "store/row_ids.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "memory_cluster.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

std::vector<std::int64_t> random_ids(std::size_t count) {
  SplitMix64 random(1);
  std::vector<std::int64_t> ids{0, -1, std::numeric_limits<std::int64_t>::min(),
                                std::numeric_limits<std::int64_t>::max()};
  while (ids.size() < count) ids.push_back(static_cast<std::int64_t>(random.next()));
  ids.resize(count);
  return ids;
}

void add(RowIds& known, std::int64_t id, std::uint64_t row) { RowIds::Adding(known).add(id, row); }

std::vector<TableSpec> tables(std::uint64_t rows) {
  return {{.name = "t", .rows = rows, .length = 1, .has_ids = true}};
}

std::vector<std::int64_t> rows_of(MemoryCluster& cluster, std::size_t rank, std::span<const std::int64_t> ids,
                                  std::size_t worker = 0) {
  std::vector<std::int64_t> rows(ids.size(), -1);
  cluster.worker(rank, worker).rows_of(cluster.node(rank).tables[0], ids, rows, false);
  return rows;
}

}  // namespace

TEST(every_id_is_found_at_every_load_up_to_the_last_row) {
  for (const std::size_t count : {1U, 2U, 11U, 12U, 13U, 100U, 5000U}) {
    RowIds known(count);
    const std::vector<std::int64_t> ids = random_ids(count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK_EQ(known.find(ids[i]), RowIds::kUnknown);
      CHECK(!known.knows(count - 1 - i));
      add(known, ids[i], count - 1 - i);
      CHECK_EQ(known.find(ids[i]), static_cast<std::int64_t>(count - 1 - i));
      CHECK(known.knows(count - 1 - i));
      CHECK_EQ(known.id(count - 1 - i), ids[i]);
    }
    std::vector<std::int64_t> rows(count);
    CHECK_EQ(known.find(ids, rows.data()), std::size_t{0});
    for (std::size_t i = 0; i < count; ++i) CHECK_EQ(rows[i], static_cast<std::int64_t>(count - 1 - i));
    CHECK_EQ(known.find(4711), RowIds::kUnknown);
  }
}

// Ids with equal low bits, as with ids that one node assigns, use all buckets.
TEST(regular_ids_are_found) {
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{4096}, std::int64_t{1} << 40}) {
    RowIds known(1000);
    for (std::int64_t i = 0; i < 1000; ++i) add(known, i * step, static_cast<std::uint64_t>(i));
    for (std::int64_t i = 0; i < 1000; ++i) CHECK_EQ(known.find(i * step), i);
    CHECK_EQ(known.find(-step), RowIds::kUnknown);
  }
}

TEST(a_removed_id_is_not_found_whatever_other_ids_there_are) {
  constexpr std::uint64_t kRows = 10;
  constexpr std::size_t kRemoved = 300'000;
  RowIds known(kRows);
  const std::vector<std::int64_t> ids = random_ids(kRows + kRemoved);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t row = i % kRows;
    if (i >= kRows) {
      RowIds::Adding(known).remove(row);
      CHECK_EQ(known.find(ids[i - kRows]), RowIds::kUnknown);
    }
    add(known, ids[i], row);
  }
}

TEST(readers_find_each_id_that_was_added_before) {
  constexpr std::size_t kIds = 20'000;
  RowIds known(kIds);
  const std::vector<std::int64_t> ids = random_ids(kIds);
  std::atomic<std::size_t> added{0};
  std::atomic<bool> is_wrong{false};
  std::vector<std::thread> readers;
  for (std::uint64_t reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&, reader] {
      Random random(reader);
      for (std::size_t before = 0; before < kIds;) {
        before = added.load(std::memory_order_acquire);
        const std::size_t i = random.below(kIds);
        const std::int64_t row = known.find(ids[i]);
        const bool has_row = row == static_cast<std::int64_t>(i);
        if (!has_row && (i < before || row != RowIds::kUnknown)) is_wrong.store(true);
      }
    });
  }
  for (std::size_t i = 0; i < kIds; ++i) {
    add(known, ids[i], i);
    added.store(i + 1, std::memory_order_release);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(!is_wrong.load());
}

TEST(shares_have_every_row_once) {
  for (const std::uint64_t rows : {3U, 4U, 5U, 1000U}) {
    std::uint64_t end = 0;
    for (NodeId node = 0; node < 3; ++node) {
      const RowRange share = share_of(rows, 3, node);
      CHECK_EQ(share.first, end);
      CHECK(share.size() >= rows / 3 && share.size() <= rows / 3 + 1);
      end = share.end;
    }
    CHECK_EQ(end, rows);
  }
}

TEST(nodes_that_request_the_same_ids_at_once_get_the_same_rows) {
  constexpr std::uint64_t kRows = 20'000;
  MemoryCluster cluster(tables(kRows), {.nodes = 3, .workers = 2, .channels = 2});
  const std::vector<std::int64_t> ids = random_ids(kRows / 2);
  std::vector<std::vector<std::int64_t>> rows(6);
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < rows.size(); ++i)
    workers.emplace_back([&, i] { rows[i] = rows_of(cluster, i / 2, ids, i % 2); });
  for (std::thread& worker : workers) worker.join();
  for (const std::vector<std::int64_t>& of_worker : rows) CHECK(of_worker == rows[0]);
  CHECK_EQ(std::set<std::int64_t>(rows[0].begin(), rows[0].end()).size(), ids.size());
  std::uint64_t assigned = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) assigned += cluster.node(rank).tables[0].ids()->assigned();
  CHECK_EQ(assigned, ids.size());
}

TEST(a_call_that_only_finds_rows_creates_none) {
  MemoryCluster cluster(tables(1000), {.nodes = 3, .channels = 2});
  const std::vector<std::int64_t> ids = random_ids(200);
  const std::vector<std::int64_t> rows = rows_of(cluster, 0, std::span(ids).first(100));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (int call = 0; call < 2; ++call) {
      std::vector<std::int64_t> found(ids.size());
      cluster.worker(rank, 0).rows_of(cluster.node(rank).tables[0], ids, found, false, false);
      CHECK(std::equal(rows.begin(), rows.end(), found.begin()));
      CHECK(std::all_of(found.begin() + 100, found.end(),
                        [](std::int64_t row) { return row == RowIds::kUnknown; }));
    }
  }
  std::uint64_t assigned = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) assigned += cluster.node(rank).tables[0].ids()->assigned();
  CHECK_EQ(assigned, std::uint64_t{100});
  // The ids that were not found can be created afterwards.
  CHECK(std::ranges::count(rows_of(cluster, 1, ids), RowIds::kUnknown) == 0);
}

TEST(used_rows_are_found_in_order) {
  UsedRows used(200);
  CHECK_EQ(used.next(0, 200), std::uint64_t{200});
  for (const std::uint64_t row : {0U, 63U, 64U, 130U, 199U}) used.add(row);
  std::vector<std::uint64_t> found;
  for (std::uint64_t row = 0; (row = used.next(row, 200)) < 200; ++row) found.push_back(row);
  CHECK(found == std::vector<std::uint64_t>({0, 63, 64, 130, 199}));
  CHECK_EQ(used.next(65, 100), std::uint64_t{100});
  CHECK(used.contains(130) && !used.contains(129));
  used.clear();
  CHECK_EQ(used.next(0, 200), std::uint64_t{200});
}

// More ids than one message has. Some are used by several nodes, and some were only requested.
TEST(the_ids_of_used_rows_of_all_nodes_are_listed_once) {
  constexpr std::size_t kIds = 15'000;
  MemoryCluster cluster(tables(2 * kIds), {.nodes = 3, .workers = 1, .channels = 2});
  std::vector<std::int64_t> ids = random_ids(kIds);
  const std::span<const std::int64_t> all(ids);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto own = all.subspan(rank * kIds / 5, 2 * kIds / 5);
    const std::vector<std::int64_t> rows = rows_of(cluster, rank, own);
    const std::vector<Key> keys(rows.begin(), rows.end());
    std::vector<float> values(keys.size());
    if (rank == 0) {
      cluster.worker(rank, 0).push(keys, values.data(), values.size(), false);
    } else {
      cluster.worker(rank, 0).pull(keys, values.data(), values.size(), false);
    }
  }
  rows_of(cluster, 0, all);
  ids.resize(4 * kIds / 5);
  std::ranges::sort(ids);
  for (std::size_t rank = 0; rank < 3; ++rank)
    CHECK(cluster.worker(rank, 0).used_ids(cluster.node(rank).tables[0]) == ids);
}

TEST(all_workers_of_a_node_fill_a_table_to_its_last_row) {
  constexpr std::uint64_t kRows = 3000;
  MemoryCluster cluster(tables(kRows), {.nodes = 1, .workers = 3});
  const std::vector<std::int64_t> ids = random_ids(kRows);
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < 3; ++i) {
    workers.emplace_back([&, i] {
      for (std::size_t at = 0; at < kRows; at += 100) rows_of(cluster, 0, std::span(ids).subspan(at, 100), i);
    });
  }
  for (std::thread& worker : workers) worker.join();
  const std::vector<std::int64_t> rows = rows_of(cluster, 0, ids);
  CHECK_EQ(std::set<std::int64_t>(rows.begin(), rows.end()).size(), kRows);
  const std::int64_t other = 4711;
  CHECK_THROWS(rows_of(cluster, 0, {&other, 1}), TableFull, "'t' is full");
}
