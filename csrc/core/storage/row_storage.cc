#include "storage/row_storage.h"

#ifdef __linux__
#include <pthread.h>
#endif

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace adaps {

namespace {
// Solid-state disks serve several requests at a time faster than one after the other.
constexpr std::size_t kThreads = 16;
// A thread reports its transfers together, so more of them would delay the first.
constexpr std::size_t kMostAtOnce = 16;
}  // namespace

void RowTransfer::execute() {
  try {
    if (reads) {
      RowFile::Record record = file->read(row, entry, words);
      state = record.state;
      problem = std::move(record.problem);
    } else {
      entry = file->write(row, state, words);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
}

RowTransfers RowStorage::take(int channel) {
  const std::lock_guard guard(mutex_);
  return std::exchange(complete_[static_cast<std::size_t>(channel)], {});
}

void RowStorage::complete(RowTransfers transfers) {
  std::vector<bool> woken(complete_.size());
  {
    const std::lock_guard guard(mutex_);
    for (std::unique_ptr<RowTransfer>& transfer : transfers) {
      const auto channel = static_cast<std::size_t>(transfer->channel);
      woken[channel] = true;
      complete_[channel].push_back(std::move(transfer));
    }
  }
  for (std::size_t channel = 0; channel < woken.size() && waker_; ++channel) {
    if (woken[channel]) waker_(static_cast<int>(channel));
  }
}

ThreadedRowStorage::ThreadedRowStorage(std::vector<std::unique_ptr<RowFile>> files, int channels)
    : RowStorage(std::move(files), channels) {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

void ThreadedRowStorage::submit(RowTransfers transfers) {
  const bool is_one = transfers.size() == 1;
  {
    const std::lock_guard guard(mutex_);
    for (std::unique_ptr<RowTransfer>& transfer : transfers)
      (transfer->reads ? reads_ : writes_).push_back(std::move(transfer));
  }
  if (is_one) {
    submitted_.notify_one();
  } else {
    submitted_.notify_all();
  }
}

void ThreadedRowStorage::stop() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// Takes so many transfers that the other threads also get some. The caller holds the lock.
RowTransfers ThreadedRowStorage::take_waiting(Queue& queue) {
  const std::size_t count = std::min(kMostAtOnce, (queue.size() + kThreads - 1) / kThreads);
  RowTransfers taken;
  for (std::size_t i = 0; i < count; ++i) {
    taken.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  std::ranges::sort(taken, {}, [](const auto& transfer) { return std::pair(transfer->file, transfer->row); });
  return taken;
}

void ThreadedRowStorage::run() {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "adaps disk");  // shown by profilers and top
#endif
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return stopping_ || !reads_.empty() || !writes_.empty(); });
    if (stopping_) return;
    RowTransfers taken = take_waiting(reads_.empty() ? writes_ : reads_);
    lock.unlock();
    for (const std::unique_ptr<RowTransfer>& transfer : taken) transfer->execute();
    complete(std::move(taken));
    lock.lock();
  }
}

RowFile::Record read_row(const Table& table, const RowFile& file, std::uint64_t row, RowFile::Entry expected,
                         std::span<float> words) {
  if (expected.has_record()) return file.read(row, expected, words);
  std::vector<float> initial(table.width());
  table.init(table.first_key() + row, initial.data());
  if (table.is_packed()) {
    table.pack(initial.data(), 0, words.data());  // does not round, as the initial value is already rounded
  } else {
    std::ranges::copy(initial, words.begin());
  }
  return {{expected.version, expected.rc, 0}};
}

std::unique_ptr<RowStorage> open_row_storage(const Tables& tables, const Settings& settings) {
  std::vector<std::unique_ptr<RowFile>> files(tables.size());
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Table& table = tables[i];
    if (!table.is_limited()) continue;
    std::unique_ptr<Disk> disk;
    try {
      disk = create_file(table.spec().path);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("table '" + table.spec().name + "': " + error.what());
    }
    files[i] = std::make_unique<RowFile>(std::move(disk), table.spec().name, table.spec().rows,
                                         table.stored_words(table.width()), i);
  }
  return std::make_unique<ThreadedRowStorage>(std::move(files), settings.channels);
}

}  // namespace adaps
