// Transfers of rows between memory and the files of a node, which take any time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/types.h"
#include "storage/row_file.h"
#include "store/table.h"

namespace adaps {

// One read or write of a row. A channel submits it and gets it back when it is complete.
struct RowTransfer {
  Key key = 0;
  int channel = 0;
  bool reads = false;
  bool is_urgent = false;  // a call waits for the row or, with a write, for its memory
  RowFile* file = nullptr;
  std::uint64_t row = 0;
  RowFile::Entry entry{};      // read: the expected entry; write: the entry of the new record
  StoredState state{};         // write: to be written; read: result
  std::vector<float> words{};  // as `state`
  std::string problem{};       // empty, or the reason why the row could not be read or written
  Micros submitted = 0;

  void execute();
};

using RowTransfers = std::vector<std::unique_ptr<RowTransfer>>;

class RowStorage {
 public:
  // `files` has a file for each table whose rows need not all be in memory, and null for the others.
  RowStorage(std::vector<std::unique_ptr<RowFile>> files, int channels)
      : files_(std::move(files)), complete_(static_cast<std::size_t>(channels)) {}
  RowStorage(const RowStorage&) = delete;
  RowStorage& operator=(const RowStorage&) = delete;
  virtual ~RowStorage() = default;

  RowFile& file(std::size_t table) const { return *files_[table]; }
  // Sets a function that is called, by any thread, when transfers of a channel are complete.
  void set_waker(std::function<void(int channel)> waker) { waker_ = std::move(waker); }

  // Starts transfers. They have no order.
  virtual void submit(RowTransfers transfers) = 0;
  // Returns the channel's complete transfers.
  RowTransfers take(int channel);
  // Ends all threads. Transfers that have not begun are discarded.
  virtual void stop() {}

 protected:
  void complete(RowTransfers transfers);

 private:
  const std::vector<std::unique_ptr<RowFile>> files_;
  std::function<void(int)> waker_;
  std::mutex mutex_;
  std::vector<RowTransfers> complete_;  // by channel
};

// Executes transfers in threads. Reads go before writes, because calls may wait for them. Each thread takes
// several waiting transfers and executes them in the order of the file.
class ThreadedRowStorage : public RowStorage {
 public:
  ThreadedRowStorage(std::vector<std::unique_ptr<RowFile>> files, int channels);
  ~ThreadedRowStorage() override { stop(); }

  void submit(RowTransfers transfers) override;
  void stop() override;

 private:
  using Queue = std::deque<std::unique_ptr<RowTransfer>>;

  void run();
  static RowTransfers take_waiting(Queue& queue);

  std::mutex mutex_;
  std::condition_variable submitted_;
  Queue reads_;
  Queue writes_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Reads an owned row that is not in memory: from its record or, without a record, its initial content.
RowFile::Record read_row(const Table& table, const RowFile& file, std::uint64_t row, RowFile::Entry expected,
                         std::span<float> words);

// Creates the files of a node's tables. Throws std::invalid_argument that names the table and the folder if a
// file cannot be created.
std::unique_ptr<RowStorage> open_row_storage(const Tables& tables, const Settings& settings);

}  // namespace adaps
