#include "store/store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

namespace adaps {

namespace {

// Zeroed memory of which only touched pages are resident. Huge pages: random rows of a large table would
// otherwise miss the TLB on every access.
void* reserve(std::size_t bytes) {
  void* memory = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("cannot reserve " + std::to_string(bytes) +
                             " bytes of address space for the tables: " + std::strerror(errno));
  }
  if (bytes >= (std::size_t{1} << 22)) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

constexpr std::uint64_t kMaxSlots = word::kIndexMask;
// How many slots ahead of its use the header of a free one is fetched.
constexpr std::size_t kPrefetched = 8;

}  // namespace

Arena::Arena(std::size_t width, std::uint64_t rows) : width_(width), capacity_(std::min(rows, kMaxSlots)) {
  headers_ = static_cast<SlotHeader*>(reserve(capacity_ * sizeof(SlotHeader)));
  values_ = static_cast<float*>(reserve(capacity_ * width_ * sizeof(float)));
}

Arena::~Arena() {
  munmap(headers_, std::max<std::size_t>(capacity_ * sizeof(SlotHeader), 1));
  munmap(values_, std::max<std::size_t>(capacity_ * width_ * sizeof(float), 1));
}

std::uint32_t Arena::allocate() {
  const std::lock_guard guard(lock_);
  if (!free_.empty()) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    // Its header is written next; so is that of the one which comes after some others.
    if (free_.size() >= kPrefetched) __builtin_prefetch(&headers_[free_[free_.size() - kPrefetched]], 1);
    return index;
  }
  if (used_ == capacity_) {
    throw std::length_error("a node can hold at most " + std::to_string(capacity_) + " rows of " +
                            std::to_string(width_) + " floats");
  }
  return used_++;
}

void Arena::release(std::uint32_t index) {
  headers_[index] = SlotHeader{};
  const std::lock_guard guard(lock_);
  free_.push_back(index);
}

std::uint64_t Arena::in_use() const {
  const std::lock_guard guard(lock_);
  return used_ - free_.size();
}

std::uint64_t Arena::high_water() const {
  const std::lock_guard guard(lock_);
  return used_;
}

Store::Store(Tables& tables, const Directory& directory, NodeId rank)
    : tables_(tables), directory_(directory), rank_(rank) {
  for (const Tables::Arena& arena : tables.arenas())
    arenas_.push_back(std::make_unique<Arena>(arena.width, arena.rows));
  words_ = static_cast<std::atomic<std::uint32_t>*>(reserve(bytes_of_words()));
  intents_ = static_cast<std::atomic<std::uint32_t>*>(reserve(bytes_of_words()));
}

Store::~Store() {
  munmap(words_, std::max<std::size_t>(bytes_of_words(), 1));
  munmap(intents_, std::max<std::size_t>(bytes_of_words(), 1));
}

std::uint64_t Store::resident_bytes() const {
  // Alone, a node counts no intents.
  std::uint64_t bytes = (directory_.nodes() > 1 ? 2 : 1) * bytes_of_words();
  for (const auto& arena : arenas_)
    bytes += arena->high_water() * (sizeof(SlotHeader) + arena->width() * sizeof(float));
  return bytes;
}

std::uint64_t Store::slots_in_use() const {
  std::uint64_t slots = 0;
  for (const auto& arena : arenas_) slots += arena->in_use();
  return slots;
}

LockedKey::LockedKey(Store& store, Key key, const Table& table, std::uint32_t word)
    : store_(store), key_(key), table_(table), word_(word) {
  if ((word_ & word::kSlot) != 0) attach(word_ & word::kIndexMask);
}

void LockedKey::attach(std::uint32_t index) {
  index_ = index;
  Arena& arena = store_.arena(table_);
  header_ = &arena.header(index);
  slot_ = arena.value(index);
  value_ = table_.is_packed() ? nullptr : slot_;
}

float* LockedKey::unpack() {
  ADAPS_ASSERT(slot_ != nullptr);
  thread_local std::vector<float> row;
  if (row.size() < width()) row.resize(width());
  table_.unpack(slot_, row.data());
  return value_ = row.data();
}

void LockedKey::take(std::span<const float> stored) {
  ADAPS_ASSERT(stored.size() == table_.stored_words(width()));
  std::memcpy(slot_, stored.data(), stored.size_bytes());
  discard();
}

NodeId LockedKey::location() const {
  if (header_ != nullptr) return header_->location;
  return word_ == 0 ? store_.directory().home(key_) : static_cast<NodeId>(word_ >> word::kOwnerShift);
}

RelocationCount LockedKey::location_count() const {
  return header_ != nullptr ? header_->rc : word_ & kEntryMask;
}

void LockedKey::set_location(NodeId owner, RelocationCount rc) {
  if (header_ != nullptr) {
    header_->location = owner;
    header_->rc = rc;
  } else {
    word_ = (static_cast<std::uint32_t>(owner) << word::kOwnerShift) | (rc & kEntryMask);
  }
}

bool LockedKey::untouched_here() const { return header_ == nullptr && store_.untouched_here(key_, word_); }

void LockedKey::allocate(State state) {
  const NodeId owner = location();
  const RelocationCount rc = location_count();
  attach(store_.arena(table_).allocate());
  *header_ = SlotHeader{};
  header_->location = owner;
  header_->rc = rc;
  header_->state = state;
}

void LockedKey::materialize() {
  if (!untouched_here()) return;
  allocate(State::kOwner);
  table_.init(key_, value());
  if (is_unpacked()) keep(0);  // which rounds nothing: it is rounded already
}

void LockedKey::release(NodeId owner, RelocationCount rc) {
  store_.arena(table_).release(index_);
  header_ = nullptr;
  slot_ = value_ = nullptr;
  set_location(owner, rc);
}

std::uint32_t LockedKey::final_word() const {
  if (header_ == nullptr) return word_;
  const std::uint32_t word = word::kSlot | index_;
  switch (header_->state) {
    case State::kOwner:
      return word | word::kReadable | word::kPush | word::kSet |
             (header_->has_holders() ? word::kTracked : 0);
    case State::kReplica:
      return word | word::kReadable | word::kPush | word::kTracked;
    case State::kDropping:
      return word | word::kTracked | ((header_->flags & kUnreadable) != 0 ? 0 : word::kReadable);
    case State::kPending:
    case State::kNone:
      return word;
  }
  return word;
}

}  // namespace adaps
