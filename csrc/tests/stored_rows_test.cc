// Tables that are larger than their memory, with real files and threads.
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "node/snapshot.h"
#include "node_fixtures.h"
#include "storage/row_storage.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::uint64_t kRows = 400;
constexpr std::size_t kLength = 6;
constexpr std::uint64_t kResident = 40;

class Folder {
 public:
  Folder() : path_("/tmp/adaps-test-XXXXXX") { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Folder() { ::rmdir(path_.c_str()); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::size_t files() const {
    DIR* folder = ::opendir(path_.c_str());
    std::size_t count = 0;
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count - 2;  // without the folder and its parent
  }

 private:
  std::string path_;
};

// Rows of kLength floats and as many of optimizer state.
TableSpec table(const Folder& folder, std::uint64_t resident = kResident) {
  return {.name = "t",
          .rows = kRows,
          .length = kLength,
          .rule = {.kind = RuleKind::kAdagrad, .lr = 1.0F},
          .init = {.kind = InitKind::kUniform, .a = -1.0F, .b = 1.0F, .seed = 3},
          .memory = resident * (2 * kLength * sizeof(float) + kLimitedSlotBytes),
          .path = folder.path()};
}

// Adds `number` to the first float of each row, in random order and several calls.
void push_to_all(Worker& worker, float number) {
  std::vector<Key> keys = keys_below(kRows);
  for (std::size_t i = 0; i < keys.size(); ++i) std::swap(keys[i], keys[(i * 7919 + 13) % keys.size()]);
  std::vector<float> changes(100 * kLength, 0.0F);
  for (std::size_t i = 0; i < changes.size(); i += kLength) changes[i] = number;
  for (std::size_t i = 0; i < keys.size(); i += 100)
    worker.push(std::span(keys).subspan(i, 100), changes.data(), changes.size(), false);
}

// The content of all rows after push_to_all with a sum of `sum`.
std::vector<float> expected(const Table& table, float sum) {
  std::vector<float> all, row(table.width());
  for (Key key = 0; key < kRows; ++key) {
    table.init(key, row.data());
    row[0] += sum;
    all.insert(all.end(), row.begin(), row.begin() + kLength);
  }
  return all;
}

void check_close(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK_EQ(a.size(), b.size());
  float largest = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  CHECK(largest < 1e-5F);
}

}  // namespace

TEST(a_table_larger_than_its_memory_keeps_all_rows) {
  const Folder folder;
  Node node({table(folder)}, {.channels = 2});
  for (int i = 1; i <= 3; ++i) push_to_all(node.worker(0), static_cast<float>(i));
  check_close(pulled(node.worker(0), keys_below(kRows), kLength), expected(node.tables()[0], 6.0F));
  auto stats = node.stats();
  CHECK(stats["slots"] <= kResident);
  CHECK(stats["rows_written"] > 0);
  CHECK(stats["rows_read_on_demand"] > 0);
  CHECK(stats["rows_stored"] >= static_cast<double>(kRows - kResident));
  CHECK_EQ(count_owned(node.context(), node.tables()[0]), kRows);
  CHECK_EQ(folder.files(), std::size_t{0});
  node.close([] {});
}

TEST(one_row_of_memory_suffices) {
  const Folder folder;
  Node node({table(folder, 1)}, {});
  push_to_all(node.worker(0), 2.0F);
  check_close(pulled(node.worker(0), keys_below(kRows), kLength), expected(node.tables()[0], 2.0F));
  CHECK_EQ(node.stats()["slots"], 1.0);
  node.close([] {});
}

TEST(memory_for_all_rows_needs_no_file) {
  const Folder folder;
  Node node({table(folder, kRows)}, {});
  push_to_all(node.worker(0), 2.0F);
  CHECK(!node.tables()[0].is_limited());
  CHECK(node.context().storage == nullptr);
  node.close([] {});
}

TEST(announced_rows_are_in_memory_when_they_are_used) {
  const Folder folder;
  Node node({table(folder)}, {});
  Worker& worker = node.worker(0);
  push_to_all(worker, 1.0F);
  const double before = node.stats()["rows_read_on_demand"];
  std::vector<float> values(10 * kLength);
  for (Key first = 0; first + 10 <= kRows; first += 10) {
    std::vector<Key> keys(10);
    std::iota(keys.begin(), keys.end(), first);
    worker.intent(keys, worker.current_clock(), worker.current_clock() + 1);
    worker.wait_intent(keys);
    const double waits = node.stats()["disk_waits"];
    worker.pull(keys, values.data(), values.size(), false);
    CHECK_EQ(node.stats()["disk_waits"], waits);
    worker.advance_clock();
  }
  CHECK(node.stats()["rows_read_ahead"] + node.stats()["rows_read_on_demand"] - before > 300.0);
  node.close([] {});
}

TEST(nodes_use_rows_of_other_nodes_files) {
  const Folder folder;
  TableSpec spec = table(folder, 100);
  for (const Technique technique : {Technique::kAdaptive, Technique::kStatic, Technique::kReplication}) {
    const Nodes nodes = connected({spec}, {.nodes = 2, .technique = technique});
    on_all(nodes, [](Node& node) {
      Worker& worker = node.worker(0);
      for (int i = 0; i < 2; ++i) {
        std::vector<Key> some(20);
        std::iota(some.begin(), some.end(), Key{200} * static_cast<Key>(node.settings().rank));
        worker.intent(some, worker.current_clock(), worker.current_clock() + 1);
        push_to_all(worker, 1.0F);
        worker.advance_clock();
      }
      worker.wait_sync();
      worker.barrier();
      worker.wait_sync();
    });
    const auto content = expected(nodes[0]->tables()[0], 4.0F);
    on_all(nodes, [&](Node& node) {
      check_close(pulled(node.worker(0), keys_below(kRows), kLength), content);
      node.worker(0).barrier();
    });
    std::uint64_t owned = 0;
    for (const auto& node : nodes) {
      CHECK(node->stats()["slots"] <= 100);
      CHECK(node->stats()["rows_written"] > 0);
      owned += count_owned(node->context(), node->tables()[0]);
    }
    CHECK_EQ(owned, kRows);
    close_all(nodes);
  }
}

TEST(wrong_memory_is_refused_with_a_remedy) {
  const Folder folder;
  TableSpec spec = table(folder);
  spec.path.clear();
  CHECK_THROWS(Node({spec}, {}), std::invalid_argument, "and no path; set it to a folder");
  spec.path = folder.path() + "/missing";
  CHECK_THROWS(Node({spec}, {}), std::invalid_argument, "table 't': cannot create a file for rows in");
  spec = table(folder);
  spec.memory = 50;
  CHECK_THROWS(Node({spec}, {}), std::invalid_argument, "one of its rows takes 69 bytes");
  CHECK_THROWS(Node({table(folder, 2)}, {.channels = 3}), std::invalid_argument, "suffice for 2 rows");
}

TEST(rows_of_a_limited_table_are_not_stepped_in_place) {
  const Folder folder;
  Node node({table(folder)}, {});
  std::vector<float> row(kLength);
  const RowStep step{.first = 0, .values = row.data(), .gradients = row.data(), .floats = row.size()};
  CHECK_THROWS(node.worker(0).step_rows({&step, 1}), std::invalid_argument, "because its memory is limited");
  node.close([] {});
}
