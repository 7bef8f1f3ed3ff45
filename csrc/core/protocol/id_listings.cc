#include "protocol/id_listings.h"

#include <algorithm>
#include <string>
#include <vector>

#include "protocol/decisions.h"
#include "protocol/message_numbers.h"
#include "protocol/row_assignment.h"

namespace adaps {

namespace {

// Maximum number of rows that are searched for one message, so that a channel is not busy for long.
constexpr std::uint64_t kMaxRowsOfSearch = 1 << 20;

// Returns the next row in [row, end) whose id this node assigned, or `end`.
std::uint64_t next_known(const RowIds& ids, std::uint64_t row, std::uint64_t end) {
  while (row < end && !ids.knows(row)) ++row;
  return row;
}

// Appends the ids of this node's used rows from row `first` on, as many as one message can have. A node may
// have forgotten the ids of retired rows that it used. So in a table whose rows are retired, appends the ids
// to which this node has assigned a row. Returns the first row that was not searched, or the table's number
// of rows.
std::uint64_t append_used_ids(const NodeContext& node, const Table& table, std::uint64_t first,
                              std::vector<std::int64_t>& ids) {
  const RowIds& known = *table.ids();
  const bool is_retiring = table.uses() != nullptr;
  const RowRange listed = is_retiring ? own_share(node, table) : RowRange{0, table.spec().rows};
  std::uint64_t row = std::max(first, listed.first);
  if (row >= listed.end) return table.spec().rows;
  const std::uint64_t end = row + std::min(listed.end - row, kMaxRowsOfSearch);
  const std::size_t full = ids.size() + kMaxIdsOfMessage;
  const auto next = [&] {
    return is_retiring ? next_known(known, row, end) : decisions().next_listed(known, row, end);
  };
  while ((row = next()) < end && ids.size() < full) ids.push_back(known.id(row++));
  return row == listed.end ? table.spec().rows : row;
}

}  // namespace

void start_used_ids(const NodeContext& node, Operation& operation) {
  IdListing& listing = *operation.id_listing;
  for (std::uint64_t row = 0; row < listing.table->spec().rows;)
    row = append_used_ids(node, *listing.table, row, listing.ids);
  operation.left.store(node.settings.nodes - 1U, std::memory_order_relaxed);
  if (node.settings.nodes == 1) operation.done.store(true, std::memory_order_release);
}

void IdListings::begin(Operation& operation) {
  for (NodeId peer = 0; peer < channel_.node.settings.nodes; ++peer) {
    if (peer == channel_.rank) continue;
    open_.emplace(next_request_, Open{&operation, peer, 0});
    send(next_request_++);
  }
}

void IdListings::send(std::uint32_t request) {
  const Open& open = open_.at(request);
  ListIdsMessage message;
  message.request = request;
  message.table =
      static_cast<std::uint32_t>(channel_.node.tables.number_of(*open.operation->id_listing->table));
  message.first = static_cast<std::uint32_t>(open.first);
  channel_.outbox.append(open.to, message);
}

void IdListings::on_list_ids(NodeId from, const ListIdsMessage& message) {
  const Tables& tables = channel_.node.tables;
  if (message.table >= tables.size() || tables[message.table].ids() == nullptr)
    throw ProtocolError(from,
                        "requests the ids of table " + std::to_string(message.table) + ", which has no ids");
  const Table& table = tables[message.table];
  if (message.first >= table.spec().rows)
    throw ProtocolError(from, "requests the ids of table '" + table.spec().name + "' from row " +
                                  std::to_string(message.first) + ", which does not exist");
  std::vector<std::int64_t> ids;
  IdsMessage answer;
  answer.request = message.request;
  answer.next = static_cast<std::uint32_t>(append_used_ids(channel_.node, table, message.first, ids));
  answer.count = static_cast<std::uint32_t>(ids.size());
  channel_.outbox.append(from, answer, {as_words(ids)});
}

void IdListings::on_ids(NodeId from, const IdsMessage& message, Reader& reader) {
  const auto found = open_.find(message.request);
  if (found == open_.end() || found->second.to != from)
    throw ProtocolError(from, "answers the request for ids " + std::to_string(message.request) +
                                  ", which it did not receive");
  auto& [operation, to, first] = found->second;
  IdListing& listing = *operation->id_listing;
  const std::uint64_t rows = listing.table->spec().rows;
  if (message.next <= first || message.next > rows)
    throw ProtocolError(from, "answers a request for ids from row " + std::to_string(first) + " up to row " +
                                  std::to_string(message.next) + " of " + std::to_string(rows));
  if (message.count > std::min<std::uint64_t>(kMaxIdsOfMessage, message.next - first))
    throw ProtocolError(from, "answers " + std::to_string(message.count) + " ids of " +
                                  std::to_string(message.next - first) + " rows");
  std::vector<std::int64_t> ids;
  read_numbers(reader, message.count, ids);
  listing.ids.insert(listing.ids.end(), ids.begin(), ids.end());
  first = message.next;
  if (first < rows) {
    send(message.request);
    return;
  }
  Operation& complete = *operation;
  open_.erase(found);
  complete.finish();
}

}  // namespace adaps
