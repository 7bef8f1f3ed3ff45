// A file with the rows of one table that are not in memory.
//
// Fault model: a disk can lose a write that it has reported as complete, write only a part of it (torn), read
// or write another place (misdirected), and change bits later (rot). The file is therefore never trusted.
// Memory holds the version and the checksum of the last record of each row, and a record that differs from
// them in any way is reported. The file needs no recovery: it belongs to one process, and checkpoints survive
// the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "common/types.h"
#include "storage/disk.h"
#include "store/reserved.h"

namespace adaps {

// A row cannot be read from its file or written to it, or no memory is left for it.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The part of an owned row's state that is written with its words.
struct StoredState {
  Version version = 0;
  RelocationCount rc = 0;
  NodeId alone = 0;  // see SlotHeader::note_alone
};

class RowFile {
 public:
  // Version, checksum and relocation count of a record. All records of a row with the same entry have the
  // same content. No record has the checksum 0: an entry with this checksum has the initial content of its
  // row.
  struct Entry {
    Version version = 0;
    std::uint32_t checksum = 0;
    RelocationCount rc = 0;
    bool has_record() const { return checksum != 0; }
    bool operator==(const Entry&) const = default;
  };
  struct Record {
    StoredState state;
    std::string problem{};  // empty, or the difference between the record and the expected one
  };

  // The rows of a table take `words` words each. `number` distinguishes the files of a job.
  RowFile(std::unique_ptr<Disk> disk, std::string table, std::uint64_t rows, std::size_t words,
          std::uint64_t number);

  // The entry of the last record of a row that was written completely. Both functions need the key's lock.
  Entry entry(std::uint64_t row) const { return entries()[row]; }
  void set_entry(std::uint64_t row, Entry entry) { entries()[row] = entry; }

  // The entry that write() would return.
  Entry entry_of(std::uint64_t row, const StoredState& state, std::span<const float> words) const;
  // Writes a record and returns its entry. These functions take any time and throw std::runtime_error if the
  // system reports an error. A row must not be written twice at once.
  Entry write(std::uint64_t row, const StoredState& state, std::span<const float> words);
  Record read(std::uint64_t row, Entry expected, std::span<float> words) const;

  std::size_t words() const { return words_; }
  // Bytes that a row takes in the file.
  std::size_t bytes_of_record() const { return bytes_; }

 private:
  Entry* entries() const { return static_cast<Entry*>(index_.get()); }
  // Position of a record. A record of at most a page does not cross a page boundary, so that it is read and
  // written with one page.
  std::uint64_t position(std::uint64_t row) const;

  const std::unique_ptr<Disk> disk_;
  const std::string table_;
  const std::size_t words_;
  const std::uint64_t number_;
  const std::size_t bytes_;
  const std::uint64_t per_page_;  // 0 if a record is longer than a page
  const Reserved index_;
};

}  // namespace adaps
