#include "simulation/simulated_storage.h"

#include <algorithm>
#include <cstring>

namespace adaps::simulation {

namespace {
// A torn write ends behind the version of the record. One of the first bytes of a record becomes rotten; the
// rest can be unused.
constexpr std::size_t kTornBytes = 24;
constexpr std::size_t kRottenBytes = 36;
}  // namespace

void MemoryDisk::read(std::uint64_t position, std::span<std::byte> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
  if (position >= content_.size()) return;
  const std::size_t known = std::min<std::size_t>(bytes.size(), content_.size() - position);
  std::memcpy(bytes.data(), content_.data() + position, known);
}

void MemoryDisk::write(std::uint64_t position, std::span<const std::byte> bytes) {
  const bool has_fault = fault_ != DiskFault::kNone && random_.chance(probability_);
  if (has_fault && fault_ == DiskFault::kLost) return;
  if (has_fault && fault_ == DiskFault::kMisdirected) {  // to the place of the next or the previous record
    const std::size_t record = bytes.size();
    position = position >= record && random_.chance(0.5) ? position - record : position + record;
  }
  if (has_fault && fault_ == DiskFault::kTorn) bytes = bytes.first(kTornBytes);
  if (content_.size() < position + bytes.size()) content_.resize(position + bytes.size());
  std::memcpy(content_.data() + position, bytes.data(), bytes.size());
  if (has_fault && fault_ == DiskFault::kRotten)
    content_[position + random_.below(kRottenBytes)] ^= static_cast<std::byte>(1 + random_.below(255));
}

namespace {

std::vector<std::unique_ptr<RowFile>> make_files(const Tables& tables, const DiskTraits& traits,
                                                 std::uint64_t seed) {
  std::vector<std::unique_ptr<RowFile>> files(tables.size());
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Table& table = tables[i];
    if (!table.is_limited()) continue;
    auto disk = std::make_unique<MemoryDisk>(traits.fault, traits.fault_probability, mix(seed + i));
    files[i] = std::make_unique<RowFile>(std::move(disk), table.spec().name, table.spec().rows,
                                         table.stored_words(table.width()), i);
  }
  return files;
}

}  // namespace

SimulatedStorage::SimulatedStorage(const Tables& tables, const Settings& settings, const DiskTraits& traits,
                                   SimulatedNetwork& network, std::uint32_t first_timer, std::uint64_t seed)
    : RowStorage(make_files(tables, traits, seed), settings.channels),
      traits_(traits),
      network_(network),
      first_timer_(first_timer),
      random_(seed),
      due_(static_cast<std::size_t>(settings.channels)) {}

void SimulatedStorage::submit(RowTransfers transfers) {
  for (std::unique_ptr<RowTransfer>& transfer : transfers) {
    const auto channel = static_cast<std::size_t>(transfer->channel);
    const Micros at = network_.now() + 1 + static_cast<Micros>(random_.exponential(traits_.delay));
    const bool executes = random_.chance(0.5);
    if (executes) transfer->execute();
    due_[channel].push_back({at, std::move(transfer), executes});
    network_.set_timer(first_timer_ + static_cast<std::uint32_t>(channel), at);
  }
}

void SimulatedStorage::on_timer(int channel) {
  std::vector<Due>& all = due_[static_cast<std::size_t>(channel)];
  std::vector<Due> later;
  RowTransfers complete;
  Micros next = kNever;
  for (Due& due : all) {
    if (due.at > network_.now()) {
      next = std::min(next, due.at);
      later.push_back(std::move(due));
      continue;
    }
    if (!due.is_executed) due.transfer->execute();
    complete.push_back(std::move(due.transfer));
  }
  all = std::move(later);
  if (next != kNever) network_.set_timer(first_timer_ + static_cast<std::uint32_t>(channel), next);
  RowStorage::complete(std::move(complete));
}

}  // namespace adaps::simulation
