#include "protocol/row_assignment.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/deduplicate.h"
#include "protocol/decisions.h"
#include "protocol/invariant.h"

namespace adaps {

namespace {

std::vector<std::int64_t> distinct(std::span<const std::int64_t> ids) {
  std::vector<std::int64_t> inverse(ids.size());
  return deduplicate(ids, inverse.data());
}

std::vector<std::int64_t> unknown_of(const RowIds& known, std::span<const std::int64_t> ids) {
  std::vector<std::int64_t> rows(ids.size());
  known.find(ids, rows.data());
  std::vector<std::int64_t> unknown;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] == RowIds::kUnknown) unknown.push_back(ids[i]);
  }
  return distinct(unknown);
}

// Returns 0, or how many free rows this node's share needs for those of the ids that have no row, if it has
// fewer. The caller holds the lock. The ids without a row are counted only if there may be too many of them.
std::uint64_t rows_missing_for(const NodeContext& node, const Table& table,
                               std::span<const std::int64_t> ids) {
  if (has_room_for(node, table, ids.size())) return 0;
  const std::uint64_t needed = unknown_of(*table.ids(), ids).size();
  return has_room_for(node, table, needed) ? 0 : needed;
}

// Prepares a free row for an id. A row that another id had gets the new id's content before anyone can find
// it.
void begin_use(NodeContext& node, const Table& table, std::int64_t id, std::uint64_t row) {
  LockedKey key(node.store, table.first_key() + row);
  if (key.state() == State::kOwner) decisions().restart(key, id);
  if (key.state() == State::kStored)
    decisions().restart_stored(node.storage->file(node.tables.number_of(table)), row);
  table.uses()->order().created(row - own_share(node, table).first, id, static_cast<Tick>(node.tick.load()));
}

}  // namespace

RowRange own_share(const NodeContext& node, const Table& table) {
  return decisions().share(table.spec().rows, node.settings.nodes, node.settings.rank);
}

std::uint64_t free_rows(const NodeContext& node, const Table& table) {
  return share_of(table.spec().rows, node.settings.nodes, node.settings.rank).size() -
         table.ids()->assigned();
}

bool has_room_for(const NodeContext& node, const Table& table, std::uint64_t new_ids) {
  return decisions().has_room(new_ids, free_rows(node, table));
}

std::string full_table(const NodeContext& node, const Table& table, NodeId full) {
  const std::uint64_t rows = table.spec().rows;
  const std::uint64_t share = share_of(rows, node.settings.nodes, full).size();
  const std::string of = "table '" + table.spec().name + "' is full: node " + std::to_string(full) +
                         " assigns " + std::to_string(share) + " of its " + std::to_string(rows) + " rows, ";
  if (table.uses() == nullptr) return of + "and there are more ids; create the table with a larger capacity";
  return of +
         "and too few of them can be retired, because workers use them in their present clocks, intents need "
         "them, or their ttl is not over; create the table with a larger capacity, or signal intent later";
}

std::uint64_t assign_rows(NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                          std::int64_t* rows, std::optional<int> worker) {
  RowIds& known = *table.ids();
  RowUses* const uses = table.uses();
  RowIds::Adding adding(known);
  const RowRange share = own_share(node, table);
  if (const std::uint64_t needed = rows_missing_for(node, table, ids); needed > 0) return needed;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Another thread may have assigned a row since the caller looked, and an id may occur twice.
    const std::int64_t id = ids[i];
    rows[i] = decisions().row_before_assignment(known, id);
    if (rows[i] == RowIds::kUnknown) {
      const std::uint64_t row = adding.take(share, id);
      rows[i] = static_cast<std::int64_t>(row);
      if (uses != nullptr) begin_use(node, table, id, row);
      adding.add(id, row);
    }
    if (uses == nullptr) continue;
    const auto row = static_cast<std::uint64_t>(rows[i]);
    uses->keep(row);
    if (worker) node.use(*uses, row, *worker);
    uses->order().used(row - share.first, static_cast<Tick>(node.tick.load()));
  }
  return 0;
}

void find_own_rows(const Table& table, std::span<const std::int64_t> ids, std::int64_t* rows) {
  const RowIds::Adding adding(*table.ids());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    rows[i] = decisions().row_before_assignment(*table.ids(), ids[i]);
    if (rows[i] != RowIds::kUnknown && table.uses() != nullptr)
      table.uses()->keep(static_cast<std::uint64_t>(rows[i]));
  }
}

void learn_rows(const NodeContext& node, const IdRequest& request, const std::uint32_t* rows) {
  const Table& table = *request.operation->id_call->table;
  const std::vector<std::int64_t>& ids = request.ids;
  RowIds& known = *table.ids();
  RowIds::Adding adding(known);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (table.uses() != nullptr) table.uses()->end_await(ids[i]);
    if (rows == nullptr) continue;
    if (rows[i] == kNoRow) {
      Operation& operation = *request.operation;
      const std::lock_guard guard(operation.arrays);
      operation.id_call->without_row.push_back(ids[i]);
      continue;
    }
    // Two workers may have requested the same id at the same time.
    const std::int64_t before = known.find(ids[i]);
    if (before == RowIds::kUnknown && !known.knows(rows[i])) {
      decisions().learn(adding, ids[i], rows[i]);
    } else if (before != rows[i]) {
      throw ProtocolError("id " + std::to_string(ids[i]) + " of table '" + table.spec().name +
                          "' was answered with row " + std::to_string(rows[i]) + ", which is another id's");
    }
    if (table.uses() != nullptr) node.use(*table.uses(), rows[i], request.operation->worker);
  }
}

std::size_t find_rows(const NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                      std::int64_t* rows, int worker, bool creates) {
  const RowIds& known = *table.ids();
  std::size_t unknown = known.find(ids, rows);
  RowUses* const uses = table.uses();
  if (uses == nullptr) return unknown;
  const RowRange share = own_share(node, table);
  const auto tick = static_cast<Tick>(node.tick.load());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] == RowIds::kUnknown) continue;
    const auto row = static_cast<std::uint64_t>(rows[i]);
    node.use(*uses, row, worker);
    if (creates && share.contains(row)) uses->order().used(row - share.first, tick);
  }
  KeyWords::fence(std::memory_order_seq_cst);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] == RowIds::kUnknown || known.has(static_cast<std::uint64_t>(rows[i]), ids[i])) continue;
    rows[i] = RowIds::kUnknown;
    ++unknown;
  }
  return unknown;
}

namespace {

// Counts a request of each id, and removes and returns the ids that are not admitted.
std::vector<std::int64_t> admit(const Table& table, std::vector<std::int64_t>& ids) {
  if (table.spec().admit_seen == 1) return {};
  RowIds::Adding adding(*table.ids());
  const auto refused = std::stable_partition(ids.begin(), ids.end(),
                                             [&](std::int64_t id) { return decisions().admits(adding, id); });
  std::vector<std::int64_t> not_admitted(refused, ids.end());
  ids.erase(refused, ids.end());
  return not_admitted;
}

// Assigns rows to new ids of this node. Looks for the ids of each part again while it does not hold the lock,
// so that the channels, which also need the lock, do not wait for the whole call. Returns false if a part has
// no room; earlier parts may then have rows.
bool assign_in_parts(NodeContext& node, const Table& table, std::span<const std::int64_t> ids, int worker) {
  {
    const RowIds::Adding adding(*table.ids());
    if (rows_missing_for(node, table, ids) > 0) return false;
  }
  for (std::size_t at = 0; at < ids.size(); at += kMaxIdsOfMessage) {
    std::vector<std::int64_t> part =
        unknown_of(*table.ids(), ids.subspan(at, std::min(kMaxIdsOfMessage, ids.size() - at)));
    if (assign_rows(node, table, part, part.data(), worker) > 0) return false;
  }
  return true;
}

}  // namespace

void start_rows_of(NodeContext& node, Operation& operation) {
  IdCall& call = *operation.id_call;
  const Table& table = *call.table;
  const auto channel_of = [&](std::int64_t id) { return node.directory.channel(static_cast<Key>(id)); };
  std::vector<std::int64_t> own;
  std::map<std::pair<int, NodeId>, std::vector<std::int64_t>> requested;  // by channel and node
  for (const std::int64_t id : unknown_of(*table.ids(), call.ids)) {
    const NodeId to = decisions().assigning_node(node.directory, id, node.settings.rank);
    if (to == node.settings.rank) {
      own.push_back(id);
    } else {
      requested[{channel_of(id), to}].push_back(id);
    }
  }
  call.without_row = call.creates ? admit(table, own) : std::exchange(own, {});
  if (!assign_in_parts(node, table, own, operation.worker)) {
    if (table.uses() == nullptr) {
      call.full.store(node.settings.rank);
      requested.clear();
    } else {
      requested[{channel_of(own.front()), node.settings.rank}] = own;
    }
  }
  for (const auto& [to, ids] : requested) {
    for (std::size_t at = 0; at < ids.size(); at += kMaxIdsOfMessage) {
      const auto some = std::span(ids).subspan(at, std::min(kMaxIdsOfMessage, ids.size() - at));
      call.requests.push_back({&operation, to.first, to.second, {some.begin(), some.end()}});
      operation.bytes += some.size() * (sizeof(std::int64_t) + sizeof(std::uint32_t));
    }
  }
  operation.left.store(static_cast<std::uint32_t>(call.requests.size()), std::memory_order_relaxed);
  if (call.requests.empty()) operation.done.store(true, std::memory_order_release);
}

void submit_id_requests(NodeContext& node, Operation& operation) {
  operation.completion.queued_bytes.fetch_add(operation.bytes);
  std::vector<std::vector<IdRequest*>> by_channel(node.partitions.size());
  TableAccesses& accesses = node.workers[static_cast<std::size_t>(operation.worker)]
                                ->accesses[node.tables.number_of(*operation.id_call->table)];
  const Table& table = *operation.id_call->table;
  for (IdRequest& request : operation.id_call->requests) {
    by_channel[static_cast<std::size_t>(request.channel)].push_back(&request);
    if (request.to == node.settings.rank) continue;
    accesses.ids_resolved.add(request.ids.size());
    if (table.uses() == nullptr) continue;
    const RowIds::Adding adding(*table.ids());
    for (const std::int64_t id : request.ids) table.uses()->await(id);
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) node.partitions[i]->submit(by_channel[i]);
  }
}

bool finish_rows_of(const NodeContext& node, const Operation& operation) {
  const IdCall& call = *operation.id_call;
  if (const int full = call.full.load(); full != IdCall::kNone)
    throw TableFull(full_table(node, *call.table, static_cast<NodeId>(full)));
  std::vector<std::int64_t> rows(call.ids.size());
  const std::size_t unknown =
      find_rows(node, *call.table, call.ids, rows.data(), operation.worker, call.creates);
  std::vector<std::int64_t> without_row = call.without_row;
  std::ranges::sort(without_row);
  const auto is_missing = [&](std::size_t i) {
    return rows[i] == RowIds::kUnknown && !std::ranges::binary_search(without_row, call.ids[i]);
  };
  bool is_complete = true;
  for (std::size_t i = 0; unknown > 0 && i < rows.size(); ++i) is_complete = is_complete && !is_missing(i);
  ADAPS_INVARIANT(is_complete || call.table->uses() != nullptr,
                  "a call for rows is complete, and an id has no row");
  if (is_complete) std::ranges::copy(rows, call.rows);
  return is_complete;
}

}  // namespace adaps
