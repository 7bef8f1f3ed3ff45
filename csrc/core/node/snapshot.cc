#include "node/snapshot.h"

#include <algorithm>
#include <cstring>
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
    owned += is_owned(node.store.peek(key)) ? 1 : 0;
  return owned;
}

Taken take_owned(NodeContext& node, const Table& table, std::uint64_t first, std::span<std::int64_t> rows,
                 float* values, float* states) {
  Store& store = node.store;
  const std::size_t length = table.length();
  const std::size_t state_length = table.width() - length;
  std::vector<Key> found;
  found.reserve(rows.size());
  Key key = table.first_key() + first;
  for (; key < table.end_key() && found.size() < rows.size(); ++key) {
    if (is_owned(store.peek(key))) found.push_back(key);
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

std::size_t ChangedRows::take(bool all) {
  settle(false);
  Store& store = node_.store;
  Arena& arena = store.arena(table_);
  for (Key key = table_.first_key(); key < table_.end_key(); ++key) {
    if (key + kScanPrefetchDistance < table_.end_key()) {
      const std::uint32_t ahead = store.peek(key + kScanPrefetchDistance);
      if (is_owned(ahead)) prefetch_line(&arena.header(ahead & word::kIndexMask));
    }
    const std::uint32_t seen = store.peek(key);
    const std::uint64_t row = key - table_.first_key();
    const bool is_needed = all || (table_.ids() != nullptr && !has_told_id_[row]);
    const bool is_wanted =
        is_owned(seen)
            ? is_needed || is_uncounted(seen) ||
                  !decisions().is_reported(told_[row], arena.header(seen & word::kIndexMask).version())
            : is_needed && store.untouched_here(key, seen) && table_.is_usable(key);
    if (is_wanted) rows_.push_back(static_cast<std::int64_t>(row));
  }
  versions_.resize(rows_.size());
  // make_unique would also clear the array, which would take time while all workers wait.
  values_ = std::make_unique_for_overwrite<float[]>(std::max<std::size_t>(rows_.size() * length_, 1));
  std::vector<float> initial(table_.width());
  std::size_t taken = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (i + kScanPrefetchDistance < rows_.size()) {
      const std::uint32_t ahead =
          store.peek(table_.first_key() + static_cast<Key>(rows_[i + kScanPrefetchDistance]));
      if (is_owned(ahead)) Store::prefetch_value(arena, ahead, table_.value_words());
    }
    const Key key = table_.first_key() + static_cast<Key>(rows_[i]);
    float* const copy = values_.get() + taken * length_;
    if (const std::uint32_t word = store.lock_if(key, word::kSlot | word::kSet); word != 0) {
      LockedKey owned(store, key, word);
      table_.read_value(owned.stored(length_).data(), copy);
      versions_[taken] = owned.header().version();
    } else if (store.untouched_here(key, store.peek(key))) {
      table_.init(key, initial.data());
      std::memcpy(copy, initial.data(), length_ * sizeof(float));
      versions_[taken] = 0;
    } else {
      continue;
    }
    rows_[taken++] = rows_[i];
  }
  rows_.resize(taken);
  for (std::size_t i = 0; table_.ids() != nullptr && i < taken; ++i)
    ids_.push_back(table_.ids()->id(static_cast<std::uint64_t>(rows_[i])));
  return taken;
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
  rows_ = {};
  ids_ = {};
  versions_ = {};
  values_.reset();
}

TableRestore::TableRestore(NodeContext& node, const Table& table)
    : node_(node), table_(table), seen_(table.spec().rows) {}

bool TableRestore::owns(std::uint64_t row) {
  const LockedKey key(node_.store, table_.first_key() + row);
  return key.state() == State::kOwner || key.untouched_here();
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
      [[maybe_unused]] const bool has_room = assign_rows(node_, table_, kept.names, kept.names.data());
      ADAPS_ASSERT(has_room);
      for (const std::int64_t row : kept.names) seen_[static_cast<std::size_t>(row)] = true;
    }
    mark_used(kept);
    const float* row = kept.rows.data();
    for (std::size_t i = 0; i < kept.names.size(); ++i, row += table_.width()) {
      const Key first = table_.first_key();
      if (i + kScanPrefetchDistance < kept.names.size())
        node_.store.prefetch_word(first + static_cast<Key>(kept.names[i + kScanPrefetchDistance]));
      LockedKey key(node_.store, first + static_cast<Key>(kept.names[i]));
      key.materialize();
      std::memcpy(key.value(), row, table_.width() * sizeof(float));
      mark_changed(node_, key);
    }
    kept = {};
  }
  for (std::uint64_t row = 0; row < seen_.size(); ++row) {
    const Key name = table_.first_key() + row;
    if (seen_[row] || !is_owned(node_.store.peek(name))) continue;
    LockedKey key(node_.store, name);
    if (key.state() != State::kOwner) continue;
    table_.init(name, key.value());
    mark_changed(node_, key);
  }
}

}  // namespace adaps
