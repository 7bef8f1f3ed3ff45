#include "node/snapshot.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/prefetch.h"
#include "protocol/decisions.h"
#include "protocol/row_assignment.h"
#include "protocol/wire_encoding.h"

namespace adaps {

namespace {

// Number of keys between the prefetch of a slot and its use.
constexpr std::size_t kScanPrefetchDistance = 16;

void mark_changed(NodeContext& node, LockedKey& key) {
  key.header().advance_version();
  decisions().keep(key);
  if (key.header().has_holders()) node.partition_of(key.key()).mark_dirty(key);
}

bool owns(const NodeContext& node, Key key) {
  const std::uint32_t seen = node.store.peek(key);
  return is_owned(seen) || (node.store.is_stored(seen) && decisions().is_owned_by_node(State::kStored));
}

// Copies a row that this node owns, in its stored format, from memory or from its file. Returns its version,
// or nothing if this node does not own it. The row may be moved between memory and the file meanwhile.
std::optional<Version> copy_row(NodeContext& node, const Table& table, Key number, std::span<float> words) {
  const std::uint64_t row = number - table.first_key();
  RowFile& file = node.storage->file(node.tables.number_of(table));
  words = words.first(file.words());
  for (;;) {
    RowFile::Entry entry;
    {
      LockedKey key(node.store, number);
      if (key.state() == State::kOwner) {
        std::ranges::copy(key.stored(key.width()), words.begin());
        return key.header().version();
      }
      if (key.state() != State::kStored || !decisions().is_owned_by_node(State::kStored)) return std::nullopt;
      entry = file.entry(row);
    }
    const RowFile::Record record = read_row(table, file, row, entry, words);
    if (record.problem.empty()) return entry.version;
    const LockedKey key(node.store, number);
    if (key.state() == State::kStored && file.entry(row) == entry) throw StorageError(record.problem);
  }
}

// Overwrites a row that this node owns, or creates it. A row of a limited table that is not in memory is
// written to its file.
void overwrite(NodeContext& node, const Table& table, Key number, const float* row) {
  LockedKey key(node.store, number);
  if (!table.is_limited()) key.materialize();
  if (key.state() == State::kOwner) {
    std::memcpy(key.value(), row, table.width() * sizeof(float));
    mark_changed(node, key);
    return;
  }
  RowFile& file = node.storage->file(node.tables.number_of(table));
  const std::uint64_t index = number - table.first_key();
  const RowFile::Entry last = key.state() == State::kStored ? file.entry(index) : RowFile::Entry{};
  const StoredState state{next_version(last.version), last.rc, 0};
  std::vector<float> words(row, row + table.width());
  if (table.is_packed()) {
    std::vector<float> packed(file.words());
    table.pack(words.data(), mix(number ^ state.version), packed.data());
    words = std::move(packed);
  }
  file.set_entry(index, file.write(index, state, words));
  key.mark_stored();
}

}  // namespace

void freeze(NodeContext& node) {
  node.frozen.store(true);
  leave_no_rests(node);
}

void thaw(NodeContext& node) {
  node.frozen.store(false);
  node.exact.store(false);
  for (const auto& partition : node.partitions) partition->request_round();
}

std::uint64_t count_owned(const NodeContext& node, const Table& table) {
  std::uint64_t owned = 0;
  for (Key key = table.first_key(); key < table.end_key(); ++key)
    owned += owns(node, key) && table.is_usable(key) ? 1 : 0;
  return owned;
}

namespace {

// take_owned for a table whose memory is limited.
Taken take_limited(NodeContext& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                   float* values, float* states) {
  std::vector<float> words(table.stored_words(table.width()));
  std::size_t taken = 0;
  Key key = table.first_key() + first;
  for (; key < table.end_key() && taken < rows.size(); ++key) {
    if (!owns(node, key) || !table.is_usable(key) || !copy_row(node, table, key, words)) continue;
    rows[taken] = static_cast<std::int64_t>(table.identity(key));
    table.read_value(words.data(), values + taken * table.length());
    std::copy(words.begin() + static_cast<std::ptrdiff_t>(table.value_words()), words.end(),
              states + taken * table.state_length());
    ++taken;
  }
  return {taken, key - table.first_key()};
}

}  // namespace

Taken take_owned(NodeContext& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                 float* values, float* states) {
  if (table.is_limited()) return take_limited(node, table, first, rows, values, states);
  Store& store = node.store;
  const std::size_t length = table.length();
  const std::size_t state_length = table.width() - length;
  std::vector<Key> found;
  found.reserve(rows.size());
  Key key = table.first_key() + first;
  for (; key < table.end_key() && found.size() < rows.size(); ++key) {
    if (is_owned(store.peek(key)) && table.is_usable(key)) found.push_back(key);
  }
  std::size_t taken = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i + kScanPrefetchDistance < found.size()) {
      const std::uint32_t ahead = store.peek(found[i + kScanPrefetchDistance]);
      if (is_owned(ahead)) Store::prefetch_value(store.arena(table), ahead, store.arena(table).width());
    }
    const std::uint32_t word = store.lock_if(found[i], word::kSlot | word::kSet);
    if (word == 0) continue;
    const float* slot = store.arena(table).value(word & word::kIndexMask);
    rows[taken] = static_cast<std::int64_t>(table.identity(found[i]));
    table.read_value(slot, values + taken * length);
    if (state_length > 0)
      std::memcpy(states + taken * state_length, slot + table.value_words(), state_length * sizeof(float));
    store.unlock(found[i], word);
    ++taken;
  }
  return {taken, key - table.first_key()};
}

ChangedRows::ChangedRows(NodeContext& node, const Table& table)
    : node_(node), table_(table), length_(table.length()), told_(table.spec().rows) {
  if (table.ids() != nullptr) has_told_id_.resize(table.spec().rows);
}

bool ChangedRows::is_wanted(Key number, bool all) const {
  Store& store = node_.store;
  const std::uint64_t row = number - table_.first_key();
  const bool is_needed = all || (table_.ids() != nullptr && !has_told_id_[row]);
  if (!table_.is_usable(number)) return false;
  if (!table_.is_limited()) {
    const std::uint32_t seen = store.peek(number);
    if (!is_owned(seen)) return is_needed && store.untouched_here(number, seen);
    return is_needed || is_uncounted(seen) ||
           !decisions().is_reported(told_[row],
                                    store.arena(table_).header(seen & word::kIndexMask).version());
  }
  // The channel may move the row between memory and the file, so its version is read under the lock.
  LockedKey key(store, number);
  if (!decisions().is_owned_by_node(key.state())) return is_needed && key.untouched_here();
  const Version version = key.has_slot()
                              ? key.header().version()
                              : node_.storage->file(node_.tables.number_of(table_)).entry(row).version;
  return is_needed || !decisions().is_reported(told_[row], version);
}

std::size_t ChangedRows::take(bool all) {
  settle(false);
  Store& store = node_.store;
  Arena& arena = store.arena(table_);
  for (Key key = table_.first_key(); key < table_.end_key(); ++key) {
    if (key + kScanPrefetchDistance < table_.end_key()) {
      const std::uint32_t ahead = store.peek(key + kScanPrefetchDistance);
      if (is_owned(ahead)) prefetch_line(&arena.header(ahead & word::kIndexMask));
    }
    if (is_wanted(key, all)) rows_.push_back(static_cast<std::int64_t>(key - table_.first_key()));
  }
  versions_.resize(rows_.size());
  // make_unique would also clear the array, which would take time while all workers wait.
  values_ = std::make_unique_for_overwrite<float[]>(std::max<std::size_t>(rows_.size() * length_, 1));
  std::vector<float> row(table_.width());
  std::size_t taken = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (i + kScanPrefetchDistance < rows_.size()) {
      const std::uint32_t ahead =
          store.peek(table_.first_key() + static_cast<Key>(rows_[i + kScanPrefetchDistance]));
      if (is_owned(ahead)) Store::prefetch_value(arena, ahead, table_.value_words());
    }
    const Key key = table_.first_key() + static_cast<Key>(rows_[i]);
    float* const copy = values_.get() + taken * length_;
    if (const auto version = table_.is_limited() ? copy_row(node_, table_, key, row) : std::nullopt;
        version) {
      table_.read_value(row.data(), copy);
      versions_[taken] = *version;
    } else if (const std::uint32_t word = store.lock_if(key, word::kSlot | word::kSet); word != 0) {
      LockedKey owned(store, key, word);
      table_.read_value(owned.stored(length_).data(), copy);
      versions_[taken] = owned.header().version();
    } else if (store.untouched_here(key, store.peek(key))) {
      table_.init(key, row.data());
      std::memcpy(copy, row.data(), length_ * sizeof(float));
      versions_[taken] = 0;
    } else {
      continue;
    }
    rows_[taken++] = rows_[i];
  }
  rows_.resize(taken);
  for (std::size_t i = 0; table_.ids() != nullptr && i < taken; ++i)
    ids_.push_back(table_.ids()->id(static_cast<std::uint64_t>(rows_[i])));
  if (table_.uses() != nullptr) find_deleted();
  return taken;
}

void ChangedRows::find_deleted() {
  const RowIds& known = *table_.ids();
  const RowRange share = own_share(node_, table_);
  for (std::uint64_t row = share.first; row < share.end; ++row) {
    if (known.knows(row)) now_ids_.push_back(known.id(row));
  }
  std::ranges::copy_if(told_ids_, std::back_inserter(deleted_),
                       [&](std::int64_t id) { return known.find(id) == RowIds::kUnknown; });
}

void ChangedRows::read(std::size_t first, std::span<std::int64_t> rows, float* values) const {
  if (rows.empty()) return;
  const std::vector<std::int64_t>& names = ids_.empty() ? rows_ : ids_;
  std::memcpy(rows.data(), names.data() + first, rows.size_bytes());
  std::memcpy(values, values_.get() + first * length_, rows.size() * length_ * sizeof(float));
}

void ChangedRows::settle(bool told) {
  for (std::size_t i = 0; told && i < rows_.size(); ++i) {
    const auto row = static_cast<std::size_t>(rows_[i]);
    told_[row] = versions_[i];
    if (!has_told_id_.empty()) has_told_id_[row] = true;
  }
  if (told) told_ids_ = std::move(now_ids_);
  now_ids_ = {};
  deleted_ = {};
  rows_ = {};
  ids_ = {};
  versions_ = {};
  values_.reset();
}

TableRestore::TableRestore(NodeContext& node, const Table& table)
    : node_(node), table_(table), seen_(table.spec().rows) {}

bool TableRestore::owns(std::uint64_t row) {
  const LockedKey key(node_.store, table_.first_key() + row);
  return decisions().is_owned_by_node(key.state()) || key.untouched_here();
}

bool TableRestore::takes_row(std::int64_t index) {
  const auto row = static_cast<std::uint64_t>(index);
  if (row >= seen_.size()) {
    throw std::out_of_range("row " + std::to_string(index) + " does not exist in table '" +
                            table_.spec().name + "': rows are 0 to " + std::to_string(seen_.size() - 1));
  }
  if (seen_[row]) {
    throw std::invalid_argument("row " + std::to_string(row) + " of table '" + table_.spec().name +
                                "' occurs twice");
  }
  seen_[row] = true;
  return owns(row);
}

// One node takes each id: the owner of its row or, for a new id, the node that assigns the row.
bool TableRestore::takes_id(std::int64_t id) {
  const std::int64_t row = table_.ids()->find(id);
  const bool is_new = row == RowIds::kUnknown;
  const Directory& directory = node_.directory;
  if (is_new ? decisions().assigning_node(directory, id, node_.settings.rank) != node_.settings.rank
             : !owns(static_cast<std::uint64_t>(row)))
    return false;
  if (!seen_ids_.insert(id).second)
    throw std::invalid_argument("id " + std::to_string(id) + " of table '" + table_.spec().name +
                                "' occurs twice");
  new_ids_ += is_new ? 1 : 0;
  if (!has_room_for(node_, table_, new_ids_))
    throw std::invalid_argument(full_table(node_, table_, node_.settings.rank));
  return true;
}

std::size_t TableRestore::put(std::span<const std::int64_t> rows, const float* values, const float* states) {
  const std::size_t length = table_.length();
  const std::size_t state_length = table_.width() - length;
  std::vector<std::size_t> taken;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (table_.ids() != nullptr) {
      if (takes_id(rows[i])) taken.push_back(i);
      continue;
    }
    if (i + kScanPrefetchDistance < rows.size() &&
        static_cast<std::uint64_t>(rows[i + kScanPrefetchDistance]) < seen_.size())
      node_.store.prefetch_word(table_.first_key() + static_cast<Key>(rows[i + kScanPrefetchDistance]));
    if (takes_row(rows[i])) taken.push_back(i);
  }
  Kept kept;
  kept.names.reserve(taken.size());
  kept.rows.reserve(taken.size() * table_.width());
  for (const std::size_t i : taken) {
    kept.names.push_back(rows[i]);
    kept.rows.insert(kept.rows.end(), values + i * length, values + (i + 1) * length);
    if (state_length > 0)
      kept.rows.insert(kept.rows.end(), states + i * state_length, states + (i + 1) * state_length);
  }
  kept_.push_back(std::move(kept));
  return taken.size();
}

void TableRestore::mark_used(const Kept& kept) {
  if (table_.ids() == nullptr) return;
  std::vector<float> initial(table_.width());
  const float* row = kept.rows.data();
  for (const std::int64_t number : kept.names) {
    table_.init(table_.first_key() + static_cast<Key>(number), initial.data());
    if (std::memcmp(row, initial.data(), table_.length() * sizeof(float)) != 0)
      table_.ids()->used().add(static_cast<std::uint64_t>(number));
    row += table_.width();
  }
}

void TableRestore::finish() {
  if (table_.ids() != nullptr) table_.ids()->used().clear();
  for (Kept& kept : kept_) {
    if (table_.ids() != nullptr) {
      // put() has checked that there is room.
      [[maybe_unused]] const std::uint64_t needed =
          assign_rows(node_, table_, kept.names, kept.names.data(), std::nullopt);
      ADAPS_ASSERT(needed == 0);
      for (const std::int64_t row : kept.names) seen_[static_cast<std::size_t>(row)] = true;
    }
    mark_used(kept);
    const float* row = kept.rows.data();
    for (std::size_t i = 0; i < kept.names.size(); ++i, row += table_.width()) {
      const Key first = table_.first_key();
      if (i + kScanPrefetchDistance < kept.names.size())
        node_.store.prefetch_word(first + static_cast<Key>(kept.names[i + kScanPrefetchDistance]));
      overwrite(node_, table_, first + static_cast<Key>(kept.names[i]), row);
    }
    kept = {};
  }
  std::vector<float> initial(table_.width());
  for (std::uint64_t row = 0; row < seen_.size(); ++row) {
    const Key name = table_.first_key() + row;
    if (seen_[row] || !adaps::owns(node_, name) || !table_.is_usable(name)) continue;
    table_.init(name, initial.data());
    overwrite(node_, table_, name, initial.data());
  }
}

}  // namespace adaps
