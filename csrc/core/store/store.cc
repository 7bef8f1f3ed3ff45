#include "store/store.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

namespace adaps {

namespace {

constexpr std::uint64_t kMaxSlots = word::kIndexMask;
static_assert(kLimitedSlotBytes == sizeof(SlotHeader) + sizeof(Key) + 1);
// Number of free slots whose headers are fetched before they are allocated.
constexpr std::size_t kPrefetched = 8;

}  // namespace

Arena::Arena(std::size_t width, std::uint64_t rows, int channels)
    : width_(width),
      capacity_(std::min(rows, kMaxSlots)),
      header_memory_(capacity_ * sizeof(SlotHeader)),
      value_memory_(capacity_ * width_ * sizeof(float)),
      headers_(static_cast<SlotHeader*>(header_memory_.get())),
      values_(static_cast<float*>(value_memory_.get())),
      most_(channels == 0 ? capacity_ : capacity_ / static_cast<std::uint64_t>(channels)),
      reserved_(channels == 0 ? nullptr : new std::atomic<std::uint64_t>[static_cast<std::size_t>(channels)]),
      owners_(channels == 0 ? nullptr : new std::atomic<Key>[capacity_]),
      marks_(channels == 0 ? nullptr : new std::atomic<std::uint8_t>[capacity_]) {
  for (int i = 0; i < channels; ++i) reserved_of(i).store(0, kRelaxed);
  for (std::uint64_t i = 0; channels != 0 && i < capacity_; ++i) {
    owners_[i].store(kNoKey, kRelaxed);
    marks_[i].store(0, kRelaxed);
  }
}

std::uint32_t Arena::allocate() {
  const std::lock_guard guard(lock_);
  if (!free_.empty()) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    // The caller writes this slot's header next, so the header of a slot that is allocated soon is fetched
    // now.
    if (free_.size() >= kPrefetched) prefetch_line(&headers_[free_[free_.size() - kPrefetched]]);
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
    : tables_(tables),
      directory_(directory),
      rank_(rank),
      lines_(bytes_of_words()),
      words_(lines_.get()),
      intents_(tables.num_keys()) {
  for (const Tables::Arena& arena : tables_.arenas())
    arenas_.push_back(
        std::make_unique<Arena>(arena.width, arena.rows, arena.is_limited ? directory_.channels() : 0));
}

constinit thread_local std::uint64_t KeyWords::next_stamp_ = 0;

// A thread reserves 2^32 - 1 stamps at a time, so that locking a key accesses no memory that other threads
// write.
std::uint64_t KeyWords::first_of_new_stamps() {
  static std::atomic<std::uint64_t> taken{0};
  return (taken.fetch_add(1, std::memory_order_relaxed) << 32) + 1;
}

std::uint64_t Store::resident_bytes() const {
  // A cluster of one node counts no intents.
  std::uint64_t bytes = bytes_of_words() + (directory_.nodes() > 1 ? tables_.num_keys() : 0);
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].ids() != nullptr) bytes += tables_[i].ids()->resident_bytes();
    if (tables_[i].uses() != nullptr) bytes += tables_[i].uses()->bytes();
    if (tables_[i].is_limited()) bytes += tables_[i].spec().rows * kRecordEntryBytes;
  }
  for (const auto& arena : arenas_)
    bytes += arena->high_water() * (sizeof(SlotHeader) + arena->width() * sizeof(float));
  return bytes;
}

std::uint64_t Store::slots_in_use() const {
  std::uint64_t slots = 0;
  for (const auto& arena : arenas_) slots += arena->in_use();
  return slots;
}

std::uint64_t Store::rows_stored() const {
  std::uint64_t rows = 0;
  for (const auto& arena : arenas_) rows += arena->stored();
  return rows;
}

LockedKey::LockedKey(Store& store, Key key, const Table& table, std::uint32_t word)
    : store_(store), key_(key), table_(table), word_(word) {
  if ((word_ & word::kSlot) != 0) attach(word_ & word::kIndexMask);
  if (is_uncounted(word_)) header_->advance_version();
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
  Arena& arena = store_.arena(table_);
  if (store_.is_stored(word_)) arena.add_stored(-std::uint64_t{1});
  attach(arena.allocate());
  if (table_.is_limited()) arena.set_key(index_, key_);
  // This fence orders the following writes after all accesses to the previous key of the slot, as a lock
  // would.
  KeyWords::fence(std::memory_order_release);
  *header_ = SlotHeader{};
  header_->location = owner;
  header_->rc = rc;
  header_->state = state;
}

void LockedKey::materialize() {
  if (!untouched_here()) return;
  allocate(State::kOwner);
  header_->location = 0;
  table_.init(key_, value());
  if (is_unpacked()) keep(0);  // does not round, as the initial value is already rounded
}

void LockedKey::restart(std::uint64_t identity) {
  header_->advance_version();
  header_->note_several();
  table_.init_as(identity, value());
  if (is_unpacked()) keep(0);  // does not round, as the initial value is already rounded
}

void LockedKey::free_slot() {
  if (header_ == nullptr) return;
  Arena& arena = store_.arena(table_);
  if (table_.is_limited()) {
    arena.set_key(index_, Arena::kNoKey);
    arena.cancel(store_.directory().channel(key_));
  }
  arena.release(index_);
  header_ = nullptr;
  slot_ = value_ = nullptr;
}

void LockedKey::release(NodeId owner, RelocationCount rc) {
  if (state() == State::kStored) store_.arena(table_).add_stored(-std::uint64_t{1});
  free_slot();
  set_location(owner, rc);
}

void LockedKey::mark_stored() {
  if (state() != State::kStored) store_.arena(table_).add_stored(1);
  free_slot();
  word_ = store_.stored_word();
}

void LockedKey::forget() {
  ADAPS_ASSERT(store_.directory().home(key_) == store_.rank());
  free_slot();
  word_ = 0;
}

std::uint32_t LockedKey::final_word() const {
  if (header_ == nullptr) return word_;
  const std::uint32_t word = word::kSlot | index_;
  switch (state()) {
    case State::kOwner:
      return word | word::kReadable | word::kSet | (header_->has_holders() ? word::kPush : word::kAlone);
    case State::kReplica:
      return word | word::kReadable | word::kPush;
    case State::kDropping:
      return word | ((header_->flags & kUnreadable) != 0 ? 0 : word::kReadable);
    case State::kPending:
    case State::kNone:
    case State::kStored:  // has no slot
      return word;
  }
  return word;
}

}  // namespace adaps
