#include "protocol/row_assignment.h"

#include <algorithm>
#include <map>
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

}  // namespace

bool has_room_for(const NodeContext& node, const Table& table, std::uint64_t new_ids) {
  const RowRange share = share_of(table.spec().rows, node.settings.nodes, node.settings.rank);
  return decisions().has_room(new_ids, share.size() - table.ids()->assigned());
}

std::string full_table(const NodeContext& node, const Table& table, NodeId full) {
  const std::uint64_t rows = table.spec().rows;
  return "table '" + table.spec().name + "' is full: node " + std::to_string(full) + " assigns " +
         std::to_string(share_of(rows, node.settings.nodes, full).size()) + " of its " +
         std::to_string(rows) + " rows, and there are more ids; create the table with a larger capacity";
}

bool assign_rows(const NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                 std::int64_t* rows) {
  RowIds& known = *table.ids();
  RowIds::Adding adding(known);
  const RowRange share = decisions().share(table.spec().rows, node.settings.nodes, node.settings.rank);
  // The new ids are counted only if there may be too many of them.
  if (!has_room_for(node, table, ids.size()) && !has_room_for(node, table, unknown_of(known, ids).size()))
    return false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Another thread may have assigned a row since the caller looked, and an id may occur twice.
    const std::int64_t id = ids[i];
    rows[i] = decisions().row_before_assignment(known, id);
    if (rows[i] != RowIds::kUnknown) continue;
    const std::uint64_t row = share.first + known.assigned();
    rows[i] = static_cast<std::int64_t>(row);
    adding.add(id, row);
    adding.count_assigned();
  }
  return true;
}

void learn_rows(const Table& table, std::span<const std::int64_t> ids, const std::uint32_t* rows) {
  RowIds& known = *table.ids();
  RowIds::Adding adding(known);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Two workers may have requested the same id at the same time.
    const std::int64_t before = known.find(ids[i]);
    if (before == RowIds::kUnknown && !known.knows(rows[i])) {
      decisions().learn(adding, ids[i], rows[i]);
    } else if (before != rows[i]) {
      throw ProtocolError("id " + std::to_string(ids[i]) + " of table '" + table.spec().name +
                          "' was answered with row " + std::to_string(rows[i]) + ", which is another id's");
    }
  }
}

void start_rows_of(NodeContext& node, Operation& operation) {
  IdCall& call = *operation.id_call;
  const Table& table = *call.table;
  std::vector<std::int64_t> own;
  std::map<std::pair<int, NodeId>, std::vector<std::int64_t>> others;  // by channel and node
  for (const std::int64_t id : unknown_of(*table.ids(), call.ids)) {
    const NodeId to = decisions().assigning_node(node.directory, id, node.settings.rank);
    if (to == node.settings.rank) {
      own.push_back(id);
    } else {
      others[{node.directory.channel(static_cast<Key>(id)), to}].push_back(id);
    }
  }
  std::vector<std::int64_t> rows(own.size());
  if (!assign_rows(node, table, own, rows.data())) {
    call.full.store(node.settings.rank);
    others.clear();
  }
  for (const auto& [to, ids] : others) {
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
  for (IdRequest& request : operation.id_call->requests) {
    by_channel[static_cast<std::size_t>(request.channel)].push_back(&request);
    accesses.ids_resolved.add(request.ids.size());
  }
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    if (!by_channel[i].empty()) node.partitions[i]->submit(by_channel[i]);
  }
}

void finish_rows_of(const NodeContext& node, const Operation& operation) {
  const IdCall& call = *operation.id_call;
  if (const int full = call.full.load(); full != IdCall::kNone)
    throw TableFull(full_table(node, *call.table, static_cast<NodeId>(full)));
  const std::size_t unknown = call.table->ids()->find(call.ids, call.rows);
  ADAPS_INVARIANT(unknown == 0, "a call for rows is complete, and an id has no row");
}

}  // namespace adaps
