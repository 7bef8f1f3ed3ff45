#include "protocol/retirement.h"

#include <algorithm>
#include <span>
#include <string>

#include "protocol/message_numbers.h"
#include "protocol/row_assignment.h"

namespace adaps {

namespace {

// Longest time until a search tries rows again that were neither given up nor in use.
constexpr Micros kLongestRetryPause = 1000;
// A search frees at least this part of a share, so that few requests have to wait for one.
constexpr std::uint64_t kPartFreed = 32;
// Maximum number of stored rows that a node gives back at once, because the channel waits while it reads
// them. It gives back the others when it is asked again.
constexpr int kMostReads = 32;

}  // namespace

Retirement::Retirement(ChannelContext& channel, StoredRows& stored, Ownership& ownership)
    : channel_(channel),
      stored_(stored),
      ownership_(ownership),
      pause_(std::clamp<Micros>(channel.node.settings.round_distance(), 1, kLongestRetryPause)) {
  const Tables& tables = channel.node.tables;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].uses() != nullptr)
      searches_.push_back({.table = &tables[i], .awaited = NodeSet(channel.node.settings.nodes)});
  }
}

// --- at the node that assigns the rows ---

void Retirement::run() {
  for (Search& search : searches_) {
    if (search.awaited.empty()) step(search);
  }
}

Micros Retirement::due() const {
  Micros due = kNever;
  if (!decisions().may_retire(channel_.node.frozen.load())) return due;
  for (const Search& search : searches_) {
    if (!search.awaited.empty()) continue;
    const RowIds::Adding adding(*search.table->ids());
    if (search.number != 0 ||
        search.table->uses()->next_search(static_cast<std::size_t>(channel_.index)) != 0)
      due = std::min(due, search.number == 0 ? channel_.now : std::max(search.again, channel_.now));
  }
  return due;
}

// Chooses rows and asks all other nodes to give them up, or ends the search.
void Retirement::step(Search& search) {
  if (!decisions().may_retire(channel_.node.frozen.load())) return;
  {
    const RowIds::Adding adding(*search.table->ids());
    if (search.number == 0 && !begin(search)) return;
    if (channel_.now < search.again) return;
    if (search.table->ids()->retired() >= search.table->uses()->wanted()) {
      finish(search, true);
      return;
    }
    choose(search);
    if (search.rows.empty()) {
      if (!decisions().are_asked_again(search.any_busy)) {
        finish(search, false);
      } else {
        search.any_busy = false;
        search.asked.assign(search.asked.size(), false);
        search.again = channel_.now + search.pause;
        search.pause = std::min(2 * search.pause, kLongestRetryPause);
      }
      return;
    }
    for (const std::uint64_t row : search.rows) search.table->uses()->begin_retiring(row);
  }
  ask(search);
}

bool Retirement::begin(Search& search) {
  search.number = search.table->uses()->next_search(static_cast<std::size_t>(channel_.index));
  if (search.number == 0) return false;
  search.any_busy = false;
  search.again = 0;
  search.pause = pause_;
  search.asked.assign(own_share(channel_.node, *search.table).size(), false);
  return true;
}

// Ends the search, and lets all channels try to serve the requests that wait for rows.
void Retirement::finish(Search& search, bool found_all) {
  search.table->uses()->finish_search(static_cast<std::size_t>(channel_.index), search.number, found_all);
  search.number = 0;
  channel_.node.wake_channels();
}

// Chooses rows that this channel has not asked for, that are not in use on this node, and whose keys have no
// unfinished exchange.
void Retirement::choose(Search& search) {
  NodeContext& node = channel_.node;
  const Table& table = *search.table;
  RowUses& uses = *table.uses();
  const RowRange share = own_share(node, table);
  const std::uint64_t missing = uses.wanted() - table.ids()->retired();
  const std::uint64_t wanted = std::max(missing, share.size() / kPartFreed);
  const std::uint64_t channels = node.partitions.size();
  search.rows.resize(std::min<std::uint64_t>((wanted + channels - 1) / channels, kMaxIdsOfMessage));
  const auto may_retire = [&](std::uint64_t index) {
    const std::uint64_t row = share.first + index;
    const Key key = table.first_key() + row;
    if (search.asked[index] || node.directory.channel(key) != channel_.index) return false;
    const std::uint32_t seen = node.store.peek(key);
    const bool is_unfinished = (seen & word::kSlot) != 0 && !is_owned(seen);
    const GivenUp now = usage(uses, row);
    const bool is_moving = stored_.is_moving(key);
    // The last message of the exchange may wait for a frame, but now a call waits for its end.
    if (is_unfinished && now == GivenUp::kYes) channel_.send_request_now(channel_.lock(key));
    const bool is_busy = is_unfinished || decisions().keeps_moving(is_moving);
    search.any_busy = search.any_busy || now == GivenUp::kBusy || (is_busy && now == GivenUp::kYes);
    return now == GivenUp::kYes && !is_busy;
  };
  const auto tick = static_cast<Tick>(node.tick.load());
  search.rows.resize(uses.order().choose(tick, search.rows, may_retire));
  search.ids.clear();
  for (std::uint64_t& row : search.rows) {
    search.asked[row] = true;
    row += share.first;
    search.ids.push_back(table.ids()->id(row));
  }
  search.answers.assign(search.rows.size(), GivenUp::kYes);
}

void Retirement::ask(Search& search) {
  RetireMessage message;
  message.table = static_cast<std::uint32_t>(channel_.node.tables.number_of(*search.table));
  message.count = static_cast<std::uint32_t>(search.rows.size());
  rows_.assign(search.rows.begin(), search.rows.end());
  for (NodeId to = 0; to < channel_.node.settings.nodes; ++to) {
    if (to == channel_.rank) continue;
    search.awaited.insert(to);
    channel_.outbox.append(to, message, {as_words(search.ids), as_words(rows_)});
  }
  if (search.awaited.empty()) settle(search);
}

void Retirement::on_retired(NodeId from, const RetiredMessage& message, Reader& reader) {
  Search& search = checked_search(from, message);
  read_numbers(reader, message.count, answers_);
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    if (answers_[i] > static_cast<std::uint32_t>(GivenUp::kInUse))
      throw ProtocolError(from,
                          "answers " + std::to_string(answers_[i]) + " to the request to give up a row");
    search.answers[i] = decisions().answer_of_all(search.answers[i], static_cast<GivenUp>(answers_[i]));
  }
  search.awaited.erase(from);
  if (search.awaited.empty()) settle(search);
}

// Frees the rows that all nodes have given up.
void Retirement::settle(Search& search) {
  for (std::size_t i = 0; i < search.rows.size(); ++i) {
    const GivenUp answer = settle_row(search, i);
    search.any_busy = search.any_busy || answer == GivenUp::kBusy;
    if (answer == GivenUp::kYes) continue;
    // Intents that begin while this node waits for the answers have no effect, because the owner may be
    // giving the key back.
    LockedKey key = channel_.lock(search.table->first_key() + search.rows[i]);
    if (!decisions().asks_for_kept_row(channel_.intents(key)) ||
        !stored_.bring(key, StoredRows::Need::kAhead))
      continue;
    const bool is_elsewhere = decisions().may_ask(key.state()) && !key.untouched_here();
    if (is_elsewhere && decisions().uses_intent(channel_.node, key.key())) ownership_.ask_for(key, 0, false);
  }
  channel_.node.wake_channels();
}

GivenUp Retirement::settle_row(Search& search, std::size_t i) {
  const Table& table = *search.table;
  RowUses& uses = *table.uses();
  const std::uint64_t row = search.rows[i];
  RowIds::Adding adding(*table.ids());
  const bool was_requested = decisions().keeps_requested(uses.end_retiring(row));
  GivenUp answer = search.answers[i];
  if (was_requested) answer = GivenUp::kInUse;
  if (answer == GivenUp::kYes) answer = give_up(adding, table, search.ids[i], row, channel_.rank);
  const std::uint64_t index = row - own_share(channel_.node, table).first;
  if (answer == GivenUp::kYes) {
    adding.give_back(row);
    uses.order().retired(index, search.ids[i]);
    channel_.trace(table.first_key() + row, TraceKind::kRetired);
  } else {
    adding.count_refused();
    uses.order().refused(index, static_cast<Tick>(channel_.node.tick.load()));
  }
  return answer;
}

// --- at every node ---

void Retirement::on_retire(NodeId from, const RetireMessage& message, Reader& reader) {
  const Table& table = checked_table(from, message.table, message.count);
  read_numbers(reader, message.count, ids_);
  read_numbers(reader, message.count, rows_);
  const RowRange share = share_of(table.spec().rows, channel_.node.settings.nodes, from);
  answers_.clear();
  reads_left_ = kMostReads;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Key key = table.first_key() + rows_[i];
    RowIds::Adding adding(*table.ids());
    if (!share.contains(rows_[i]) || channel_.node.directory.channel(key) != channel_.index)
      throw ProtocolError(from, "retires row " + std::to_string(rows_[i]) + " of table '" +
                                    table.spec().name + "', which it does not assign on this channel");
    if (table.ids()->knows(rows_[i]) && table.ids()->id(rows_[i]) != ids_[i])
      throw ProtocolError(from, "retires row " + std::to_string(rows_[i]) + " of table '" +
                                    table.spec().name + "' with another id than it has");
    answers_.push_back(static_cast<std::uint32_t>(give_up(adding, table, ids_[i], rows_[i], from)));
  }
  RetiredMessage answer;
  answer.table = message.table;
  answer.count = message.count;
  channel_.outbox.append(from, answer, {as_words(answers_)});
}

// The clock is read before the pins: a worker pins a row before its clock advances.
GivenUp Retirement::usage(const RowUses& uses, std::uint64_t row) const {
  const RowUse use = uses.last_use(row, channel_.node.tick.load());
  if (decisions().is_used(use, channel_.node.used_since(use))) return GivenUp::kInUse;
  if (!decisions().is_pinned(uses.pins(row))) return GivenUp::kYes;
  return channel_.partition.intents.has_overdue() ? GivenUp::kBusy : GivenUp::kInUse;
}

// A worker that finds the row records its use before it asks whether the row still has the id. This function
// removes the id before it reads the uses. So at least one of the two notices the other.
GivenUp Retirement::give_up(RowIds::Adding& adding, const Table& table, std::int64_t id, std::uint64_t row,
                            NodeId to) {
  const RowUses& uses = *table.uses();
  if (!decisions().may_retire(channel_.node.frozen.load())) return GivenUp::kBusy;
  if (decisions().keeps_awaited(uses.awaits(id))) return GivenUp::kInUse;
  if (const GivenUp before = usage(uses, row); before != GivenUp::kYes) return before;
  LockedKey key = channel_.lock(table.first_key() + row);
  if (decisions().keeps_moving(stored_.is_moving(key.key()))) return GivenUp::kBusy;
  const bool is_stored = key.state() == State::kStored;
  const bool is_owned_alone = is_stored || (key.state() == State::kOwner && !key.header().has_holders());
  const bool is_nowhere = to == channel_.rank ? key.untouched_here() : key.state() == State::kNone;
  if (!decisions().is_settled(is_owned_alone, is_nowhere)) {
    if (key.has_slot() && key.state() != State::kOwner) channel_.send_request_now(key);
    return GivenUp::kBusy;
  }
  if (is_stored && to != channel_.rank && reads_left_-- <= 0) return GivenUp::kBusy;
  if (table.ids()->has(row, id)) {
    decisions().remove_id(adding, row);
    KeyWords::fence(std::memory_order_seq_cst);
    if (const GivenUp after = usage(uses, row); after != GivenUp::kYes) {
      adding.add(id, row);
      return after;
    }
  }
  hand_over(key, to);
  return GivenUp::kYes;
}

void Retirement::hand_over(LockedKey& key, NodeId to) {
  stored_.cancel(key.key());
  if (to != channel_.rank) {
    if (key.state() == State::kOwner) ownership_.transfer(key, to);
    if (key.state() == State::kStored) ownership_.transfer_stored(key, to);
  } else if (!key.table().is_limited()) {
    key.materialize();  // A free row has a version, so that an export notices its next id.
  } else if (key.untouched_here()) {
    stored_.put(key, {}, {});
  }
}

const Table& Retirement::checked_table(NodeId from, std::uint32_t table, std::uint32_t count) const {
  const Tables& tables = channel_.node.tables;
  if (table >= tables.size() || tables[table].uses() == nullptr)
    throw ProtocolError(from,
                        "retires rows of table " + std::to_string(table) + ", whose rows are never retired");
  if (count == 0 || count > kMaxIdsOfMessage)
    throw ProtocolError(from, "names " + std::to_string(count) + " rows to retire");
  return tables[table];
}

Retirement::Search& Retirement::checked_search(NodeId from, const RetiredMessage& message) {
  const Table& table = checked_table(from, message.table, message.count);
  Search& search = *std::ranges::find(searches_, &table, &Search::table);
  if (!search.awaited.contains(from) || message.count != search.rows.size())
    throw ProtocolError(from, "answers a request to give up " + std::to_string(message.count) +
                                  " rows, which it did not receive");
  return search;
}

}  // namespace adaps
