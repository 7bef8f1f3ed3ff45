#include "storage/row_file.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "common/random.h"
#include "store/table.h"

namespace adaps {

namespace {

constexpr std::size_t kPage = 4096;
// The page cache is not used (disk.cc), so reads and writes consist of whole sectors.
constexpr std::size_t kSector = 512;

struct Header {
  std::uint64_t row = 0;
  std::uint64_t file = 0;
  Version version = 0;
  RelocationCount rc = 0;
  std::uint32_t alone = 0;
  std::uint32_t checksum = 0;  // of the other fields and the words
};
static_assert(sizeof(Header) == 32);
static_assert(sizeof(RowFile::Entry) == kRecordEntryBytes);

// The hash of the header without its checksum, and of the words. It is never 0; see RowFile::Entry.
std::uint32_t checksum_of(Header header, std::span<const float> words) {
  header.checksum = 0;
  std::uint64_t hash = words.size();
  const auto add = [&hash](const void* from, std::size_t bytes) {
    std::uint64_t part = 0;
    std::memcpy(&part, from, bytes);
    hash = mix(hash ^ part);
  };
  for (std::size_t i = 0; i < sizeof(header); i += sizeof(hash))
    add(reinterpret_cast<const char*>(&header) + i, sizeof(hash));
  std::size_t i = 0;
  for (; i + 2 <= words.size(); i += 2) add(words.data() + i, 2 * sizeof(float));
  if (i < words.size()) add(words.data() + i, sizeof(float));
  return std::max(std::uint32_t{1}, static_cast<std::uint32_t>(hash >> 32));
}

std::size_t rounded_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

std::size_t record_bytes(std::size_t words) {
  const std::size_t bytes = rounded_up(sizeof(Header) + words * sizeof(float), kSector);
  return bytes <= kPage ? bytes : rounded_up(bytes, kPage);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Memory for one record, at an address that the system accepts. Each thread reuses it.
std::span<std::byte> scratch(std::size_t bytes) {
  thread_local std::unique_ptr<std::byte, Free> memory;
  thread_local std::size_t size = 0;
  if (size < bytes) {
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded_up(bytes, kPage))));
    size = memory == nullptr ? 0 : rounded_up(bytes, kPage);
    if (memory == nullptr) throw std::bad_alloc();
  }
  return {memory.get(), bytes};
}

}  // namespace

RowFile::RowFile(std::unique_ptr<Disk> disk, std::string table, std::uint64_t rows, std::size_t words,
                 std::uint64_t number)
    : disk_(std::move(disk)),
      table_(std::move(table)),
      words_(words),
      number_(number),
      bytes_(record_bytes(words)),
      per_page_(kPage / bytes_),
      index_(rows * sizeof(Entry)) {}

std::uint64_t RowFile::position(std::uint64_t row) const {
  if (per_page_ == 0) return row * bytes_;
  return row / per_page_ * kPage + row % per_page_ * bytes_;
}

RowFile::Entry RowFile::entry_of(std::uint64_t row, const StoredState& state,
                                 std::span<const float> words) const {
  return {state.version, checksum_of({row, number_, state.version, state.rc, state.alone}, words), state.rc};
}

RowFile::Entry RowFile::write(std::uint64_t row, const StoredState& state, std::span<const float> words) {
  Header header{row, number_, state.version, state.rc, state.alone};
  header.checksum = checksum_of(header, words);
  const std::span<std::byte> bytes = scratch(bytes_);
  const std::size_t used = sizeof(header) + words.size_bytes();
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), words.data(), words.size_bytes());
  std::memset(bytes.data() + used, 0, bytes_ - used);
  disk_->write(position(row), bytes);
  return {header.version, header.checksum, header.rc};
}

RowFile::Record RowFile::read(std::uint64_t row, Entry expected, std::span<float> words) const {
  const std::span<std::byte> bytes = scratch(bytes_);
  disk_->read(position(row), bytes);
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(words.data(), bytes.data() + sizeof(header), words.size_bytes());
  Record record{{header.version, header.rc, static_cast<NodeId>(header.alone)}};
  const bool is_whole = header.checksum == checksum_of(header, words);
  if (is_whole && header.row == row && header.file == number_ &&
      Entry{header.version, header.checksum, header.rc} == expected)
    return record;
  record.problem = "row " + std::to_string(row) + " of table '" + table_ + "' in " + disk_->name();
  if (!is_whole) {
    record.problem += " is damaged: its checksum is wrong";
  } else if (header.row != row || header.file != number_) {
    record.problem += " has the content of row " + std::to_string(header.row) + " of " +
                      (header.file == number_ ? "the same" : "another") +
                      " file: a read or write went to another place";
  } else {
    record.problem += " has version " + std::to_string(header.version) + " instead of " +
                      std::to_string(expected.version) + ": a write was lost";
  }
  record.problem += ". Check the disk, and restart from the last checkpoint.";
  return record;
}

}  // namespace adaps
