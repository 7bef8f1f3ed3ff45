// Faults of the disk: every record that is not the last one of its row is noticed when it is read.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "simulation/explore.h"
#include "simulation/generator.h"
#include "simulation/simulated_storage.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

constexpr const char* kNoticed = "Check the disk";
constexpr std::uint64_t kWorlds = 400;

constexpr DiskFault kFaults[] = {DiskFault::kTorn, DiskFault::kLost, DiskFault::kMisdirected,
                                 DiskFault::kRotten};

bool names_the_disk(const std::string& failure) { return failure.find(kNoticed) != std::string::npos; }

// Returns the failures of those random worlds that have files.
std::vector<std::string> failures(DiskFault fault, Mutant mutant) {
  std::vector<std::string> all;
  for (std::uint64_t number = 0; number < kWorlds; ++number) {
    WorldSpec spec = random_world(21, number);
    spec.disk.fault = fault;
    spec.disk.fault_probability = 0.3;
    if (const std::optional<std::string> failure = failure_of(spec, mutant)) all.push_back(*failure);
  }
  return all;
}

}  // namespace

TEST(a_record_is_read_as_it_was_written) {
  for (const std::size_t words : {1, 2, 7, 500, 1015, 1016, 1017, 5000}) {
    RowFile file(std::make_unique<MemoryDisk>(DiskFault::kNone, 0.0, 1), "t", 40, words, 3);
    std::vector<std::vector<float>> rows(40, std::vector<float>(words));
    for (std::uint64_t row = 0; row < rows.size(); ++row) {
      for (std::size_t i = 0; i < words; ++i) rows[row][i] = static_cast<float>(row * 7919 + i);
      const StoredState state{static_cast<Version>(row + 1), 5, 6};
      const RowFile::Entry expected = file.entry_of(row, state, rows[row]);
      CHECK(file.write(row, state, rows[row]) == expected);
      file.set_entry(row, expected);
    }
    std::vector<float> read(words);
    for (std::uint64_t row = 0; row < rows.size(); ++row) {
      const RowFile::Record record = file.read(row, file.entry(row), read);
      CHECK_EQ(record.problem, "");
      CHECK_EQ(record.state.version, row + 1);
      CHECK_EQ(record.state.rc, 5U);
      CHECK_EQ(record.state.alone, NodeId{6});
      CHECK(read == rows[row]);
    }
  }
}

TEST(each_fault_of_a_write_is_named) {
  const struct {
    DiskFault fault;
    const char* part;
  } cases[] = {{DiskFault::kTorn, "its checksum is wrong"},
               {DiskFault::kRotten, "its checksum is wrong"},
               {DiskFault::kLost, "has version 1 instead of 2: a write was lost"},
               {DiskFault::kMisdirected, "has the content of row 3 of the same file"}};
  for (const auto& [fault, part] : cases) {
    const std::vector<float> words(6, 1.5F);
    auto owned = std::make_unique<MemoryDisk>(fault, 0.0, 1);
    MemoryDisk& disk = *owned;
    RowFile file(std::move(owned), "t", 10, words.size(), 0);
    for (std::uint64_t row = 0; row < 10; ++row) file.set_entry(row, file.write(row, {1, 0, 0}, words));
    disk.set_probability(1.0);
    const RowFile::Entry entry = file.write(3, {2, 0, 0}, std::vector<float>(6, 2.5F));
    std::string problems;
    std::vector<float> read(words.size());
    for (const std::uint64_t row : {2, 3, 4}) {
      const RowFile::Record record = file.read(row, row == 3 ? entry : file.entry(row), read);
      if (!record.problem.empty()) problems += record.problem + "\n";
    }
    CHECK(problems.find(part) != std::string::npos);
    CHECK(problems.find("of table 't' in a file in memory") != std::string::npos);
  }
}

TEST(worlds_with_a_faulty_disk_end_with_an_error_that_names_it) {
  for (const DiskFault fault : kFaults) {
    const std::vector<std::string> all = failures(fault, Mutant::none);
    CHECK(!all.empty());
    for (const std::string& failure : all) {
      if (!names_the_disk(failure)) check::fail(__FILE__, __LINE__, failure);
    }
  }
}

TEST(damage_that_is_not_noticed_breaks_a_promise) {
  for (const DiskFault fault : kFaults) {
    std::size_t wrong = 0;
    for (const std::string& failure : failures(fault, Mutant::damage_unnoticed))
      wrong += names_the_disk(failure) ? 0 : 1;
    CHECK(wrong > 0);
  }
}
