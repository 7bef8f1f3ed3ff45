#include "protocol/stored_rows.h"

#include <algorithm>
#include <string>

#include "protocol/invariant.h"

namespace adaps {

namespace {

// Maximum number of rows that a channel writes at a time. Until a row is written, it has its slot and a copy.
constexpr std::size_t kMostWrites = 256;
// A sixteenth of the slots is kept free, and at most this number.
constexpr std::uint64_t kMostFree = 4096;
// Time until a channel looks again for rows to write out, if it found none.
constexpr Micros kPause = 5'000;
// Time without any free slot after which a call that needs one fails. Rows that other nodes use become free
// when the intents of these nodes end, which takes much less time. A channel that waits looks every kPause.
// If it has not looked for kLongestPause, the process was stopped, and the rest of the time does not count.
constexpr Micros kLongestWait = 20'000'000;
constexpr Micros kLongestPause = 100'000;

std::uint64_t usual_low_water(std::uint64_t most) {
  return most == 1 ? 0 : std::clamp<std::uint64_t>(most / 16, 1, kMostFree);
}

}  // namespace

StoredRows::StoredRows(ChannelContext& channel) : channel_(channel), storage_(channel.node.storage.get()) {
  const NodeContext& node = channel.node;
  tiers_.resize(node.tables.size());
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const Table& table = node.tables[i];
    if (!table.is_limited()) continue;
    Arena& arena = node.store.arena(table);
    const std::uint64_t most = arena.most_of_channel();
    const std::uint64_t usual = usual_low_water(most);
    tiers_[i] =
        std::make_unique<Tier>(Tier{.table = &table,
                                    .arena = &arena,
                                    .file = &storage_->file(i),
                                    .low_water = std::min(node.settings.free_rows.value_or(usual), most),
                                    .reserve = usual / 2,
                                    .now = {},
                                    .ahead = {}});
  }
}

// --- bringing rows into memory ---

bool StoredRows::must_be_created(Key key) const {
  const NodeContext& node = channel_.node;
  return storage_ != nullptr && node.store.untouched_here(key, node.store.peek(key)) &&
         node.tables.find(key).is_limited();
}

bool StoredRows::bring(LockedKey& key, Need need) {
  if (!key.table().is_limited()) return true;
  const bool is_new = key.untouched_here();
  if (!is_new && !decisions().must_be_read(key.state())) return true;
  Tier& tier = *tier_of(key.table());
  if (const auto found = coming_.find(key.key()); found != coming_.end()) {
    Coming& coming = found->second;
    if (need == Need::kNow && coming.need == Need::kAhead) {
      coming.need = Need::kNow;
      if (!coming.is_read) tier.now.push_back(key.key());
    }
    return false;
  }
  const bool is_first = tier.now.empty() && (need == Need::kNow || tier.ahead.empty());
  if (is_first && has_slot_for(tier, need)) {
    if (start(tier, key, need)) return true;
    coming_.emplace(key.key(), Coming{need, true});
  } else {
    coming_.emplace(key.key(), Coming{need, false});
    (need == Need::kNow ? tier.now : tier.ahead).push_back(key.key());
  }
  return false;
}

// A copy never takes the last free slot. Otherwise two nodes could each wait for a row of the other one, and
// neither would have a slot to read the row that the other one waits for.
bool StoredRows::reserve_for_copy(const LockedKey& key) {
  if (!key.table().is_limited()) return true;
  const Tier& tier = *tier_of(key.table());
  const bool has_two_slots = tier.arena->free_of(channel_.index) > 1;
  if (!tier.now.empty() || !has_two_slots || !has_slot_for(tier, Need::kAhead)) return false;
  tier.arena->reserve(channel_.index);
  return true;
}

// Reserves a slot, which must exist. Returns true if the row is in memory then, because it has its initial
// content. Otherwise starts to read the row.
bool StoredRows::start(Tier& tier, LockedKey& key, Need need) {
  tier.arena->reserve(channel_.index);
  tier.waited = 0;
  if (key.untouched_here()) {
    channel_.materialize(key);
    return true;
  }
  const std::uint64_t row = key.key() - tier.table->first_key();
  const RowFile::Entry entry = tier.file->entry(row);
  if (!entry.has_record()) {
    std::vector<float> words(tier.file->words());
    const RowFile::Record record = read_row(*tier.table, *tier.file, row, entry, words);
    decisions().load(key, record.state, words);
    return true;
  }
  read(tier, key.key(), need, entry);
  return false;
}

void StoredRows::read(Tier& tier, Key key, Need need, RowFile::Entry entry) {
  auto transfer = std::make_unique<RowTransfer>();
  transfer->key = key;
  transfer->channel = channel_.index;
  transfer->reads = true;
  transfer->is_urgent = need == Need::kNow;
  transfer->file = tier.file;
  transfer->row = key - tier.table->first_key();
  transfer->entry = entry;
  transfer->words.resize(tier.file->words());
  transfer->submitted = channel_.now;
  (transfer->is_urgent ? channel_.counters.rows_read_on_demand : channel_.counters.rows_read_ahead).add();
  submitted_.push_back(std::move(transfer));
}

void StoredRows::finish_read(std::unique_ptr<RowTransfer> transfer) {
  LockedKey key = channel_.lock(transfer->key);
  ADAPS_INVARIANT(key.state() == State::kStored, "a row is read that is not stored");
  Tier& tier = *tier_of(key.table());
  const RowFile::Entry entry = tier.file->entry(transfer->row);
  if (decisions().is_outdated(transfer->entry, entry)) {  // a restore has overwritten the row in between
    read(tier, key.key(), coming_.at(key.key()).need, entry);
    return;
  }
  if (!decisions().is_intact(transfer->problem)) throw StorageError(transfer->problem);
  decisions().load(key, transfer->state, transfer->words);
  if (!transfer->is_urgent) channel_.partition.intents.note_lead(channel_.now - transfer->submitted);
  coming_.erase(key.key());
  arrived_.push_back(key.key());
}

// Starts reads for keys that waited for a slot. An intent that has ended in between is forgotten.
void StoredRows::start_waiting(Tier& tier, Need need) {
  std::deque<Key>& keys = need == Need::kNow ? tier.now : tier.ahead;
  while (!keys.empty() && has_slot_for(tier, need)) {
    const Key number = keys.front();
    keys.pop_front();
    const auto found = coming_.find(number);
    if (found == coming_.end() || found->second.is_read || found->second.need != need) continue;
    if (need == Need::kAhead && channel_.node.store.intents(number) == 0) {
      coming_.erase(found);
      continue;
    }
    LockedKey key = channel_.lock(number);
    if (start(tier, key, need)) {
      coming_.erase(found);
      arrived_.push_back(number);
    } else {
      found->second.is_read = true;
    }
  }
}

std::vector<StoredRows::Waiting> StoredRows::take_waiting(Key key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return {};
  std::vector<Waiting> taken = std::move(found->second);
  waiting_.erase(found);
  return taken;
}

std::vector<Key> StoredRows::work() {
  if (storage_ == nullptr) return {};
  for (std::unique_ptr<RowTransfer>& transfer : storage_->take(channel_.index)) {
    if (transfer->reads) {
      finish_read(std::move(transfer));
    } else {
      finish_write(*transfer);
    }
  }
  for (const auto& tier : tiers_) {
    if (tier == nullptr) continue;
    start_waiting(*tier, Need::kNow);
    if (tier->now.empty()) start_waiting(*tier, Need::kAhead);
    check_progress(*tier);
  }
  return std::exchange(arrived_, {});
}

// Fails if no slot became free for a long time. Every row that can be written out was written out then, even
// rows with intent. No intent ends while the node is frozen, so this time does not count.
void StoredRows::check_progress(Tier& tier) {
  const Micros elapsed = channel_.now - std::exchange(tier.looked, channel_.now);
  if (tier.now.empty() || channel_.node.frozen.load()) {
    tier.waited = 0;
    return;
  }
  tier.waited += std::min(elapsed, kLongestPause);
  if (tier.waited > kLongestWait) {
    const std::uint64_t most = tier.arena->most_of_channel();
    throw StorageError("table '" + tier.table->spec().name + "': a channel has memory for " +
                       std::to_string(most) + " rows, and all of them are copies or are copied by other " +
                       "nodes, while calls need " + std::to_string(tier.now.size()) +
                       " more; increase its memory, or signal intent for fewer clocks ahead");
  }
}

Micros StoredRows::next() const {
  Micros next = kNever;
  for (const auto& tier : tiers_) {
    if (tier == nullptr || tier->now.empty()) continue;
    const bool goes_on = has_slot_for(*tier, Need::kNow) || tier->sweep_goes_on;
    next = std::min(next, goes_on ? channel_.now : channel_.now + kPause);
  }
  return next;
}

// --- rows that are retired ---

bool StoredRows::is_moving(Key key) const {
  if (written_.contains(key)) return true;
  const auto found = coming_.find(key);
  return found != coming_.end() && (found->second.is_read || found->second.need == Need::kNow);
}

RowFile::Record StoredRows::read_now(const LockedKey& key, std::vector<float>& words) const {
  const Tier& tier = *tier_of(key.table());
  const std::uint64_t row = key.key() - tier.table->first_key();
  words.resize(tier.file->words());
  RowFile::Record record = read_row(*tier.table, *tier.file, row, tier.file->entry(row), words);
  if (!decisions().is_intact(record.problem)) throw StorageError(record.problem);
  return record;
}

bool StoredRows::reserve_for_return(const LockedKey& key) {
  if (!key.table().is_limited()) return true;
  const Tier& tier = *tier_of(key.table());
  if (!tier.now.empty() || !has_slot_for(tier, Need::kAhead)) return false;
  tier.arena->reserve(channel_.index);
  return true;
}

void StoredRows::put(LockedKey& key, const StoredState& state, std::span<const float> words) {
  const Tier& tier = *tier_of(key.table());
  const std::uint64_t row = key.key() - tier.table->first_key();
  tier.file->set_entry(
      row, words.empty() ? RowFile::Entry{state.version, 0, state.rc} : tier.file->write(row, state, words));
  key.mark_stored();
}

// --- writing rows out ---

void StoredRows::write_out() {
  for (const auto& tier : tiers_) {
    if (tier != nullptr) write_out(*tier);
  }
  if (!submitted_.empty()) storage_->submit(std::exchange(submitted_, {}));
}

// Second chance: looks at the slots in turn. A row that was used since the last look stays. After two rounds
// without success, no row without intent can be written out. If calls wait, rows with intent follow in a
// third round, which goes on as long as it frees slots and calls wait.
void StoredRows::write_out(Tier& tier) {
  Arena& arena = *tier.arena;
  tier.sweep_goes_on = false;
  if (channel_.now < tier.pause_until) return;
  const std::uint64_t waiting = tier.now.size() + tier.ahead.size();
  const std::uint64_t wanted = std::max(tier.low_water, waiting + tier.reserve);
  const std::uint64_t slots = arena.high_water();
  const std::uint64_t longest = (tier.now.empty() ? 2 : 3) * slots;
  if (tier.fruitless > longest) tier.fruitless = 0;  // no call waits any longer
  while (arena.free_of(channel_.index) + tier.writing < wanted && tier.writing < kMostWrites) {
    if (channel_.slice.is_used_up()) {
      tier.sweep_goes_on = true;
      return;
    }
    if (tier.fruitless >= longest) {
      tier.fruitless = 0;
      tier.pause_until = channel_.now + kPause;
      return;
    }
    channel_.slice.spend(0);
    const bool despite_intent = ++tier.fruitless > 2 * slots;
    if (tier.hand >= slots) tier.hand = 0;
    const std::uint32_t index = tier.hand++;
    const Key key = arena.key_of(index);
    if (key == Arena::kNoKey || channel_.node.directory.channel(key) != channel_.index) continue;
    if (arena.take_use(index) && !despite_intent) continue;
    if (try_put_away(tier, key, despite_intent)) tier.fruitless = despite_intent ? 2 * slots : 0;
  }
}

// A row on the dirty list stays in memory. Its flag would be lost, and the list could then contain it twice.
bool StoredRows::may_put_away(LockedKey& key, bool despite_intent) const {
  return key.state() == State::kOwner && key.header().flags == 0 && decisions().may_be_stored(key.header()) &&
         (despite_intent || !decisions().is_kept_in_memory(channel_.intents(key)));
}

// Frees a row's slot, or starts to write the row. Returns false if neither is possible.
bool StoredRows::try_put_away(Tier& tier, Key number, bool despite_intent) {
  if (written_.contains(number)) return false;
  if (!despite_intent && decisions().is_kept_in_memory(channel_.node.store.intents(number))) return false;
  LockedKey key = channel_.lock(number);
  if (!may_put_away(key, despite_intent)) return false;
  const SlotHeader& header = key.header();
  const StoredState state = decisions().state_to_store(header);
  if (!tier.table->is_usable(number)) {  // a free row needs no content
    put(key, state, {});
    return true;
  }
  const bool at_home = channel_.node.directory.home(number) == channel_.rank;
  if (decisions().may_be_forgotten(header, at_home, channel_.node.frozen.load())) {
    key.forget();
    return true;
  }
  const std::uint64_t row = number - tier.table->first_key();
  const std::span<const float> words = key.stored(key.width());
  if (decisions().is_in_file(tier.file->entry(row), tier.file->entry_of(row, state, words))) {
    key.mark_stored();
    return true;
  }
  auto transfer = std::make_unique<RowTransfer>();
  transfer->key = number;
  transfer->channel = channel_.index;
  transfer->file = tier.file;
  transfer->row = row;
  transfer->state = state;
  transfer->words.assign(words.begin(), words.end());
  transfer->is_urgent = despite_intent;
  written_.insert(number);
  ++tier.writing;
  channel_.counters.rows_written.add();
  submitted_.push_back(std::move(transfer));
  return true;
}

// Frees the slot if the row has not changed since it was copied, and if it may still be stored.
void StoredRows::finish_write(const RowTransfer& transfer) {
  if (!decisions().is_intact(transfer.problem)) throw StorageError(transfer.problem);
  written_.erase(transfer.key);
  LockedKey key = channel_.lock(transfer.key);
  Tier& tier = *tier_of(key.table());
  --tier.writing;
  tier.file->set_entry(transfer.row, transfer.entry);
  if (!may_put_away(key, transfer.is_urgent)) return;
  if (decisions().is_unchanged(transfer.state, key.header())) key.mark_stored();
}

}  // namespace adaps
