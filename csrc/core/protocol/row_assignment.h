// Assigns rows to ids, and finds the rows of a call's ids (docs/concepts/protocol.md, section 20).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "protocol/context.h"
#include "protocol/operation.h"
#include "store/table.h"

namespace adaps {

// Maximum number of ids in a message.
inline constexpr std::size_t kMaxIdsOfMessage = 4096;

// The rows of a table that this node assigns.
RowRange own_share(const NodeContext& node, const Table& table);
// Number of these rows that no id has.
std::uint64_t free_rows(const NodeContext& node, const Table& table);
// Whether this node's share has free rows for a number of new ids.
bool has_room_for(const NodeContext& node, const Table& table, std::uint64_t new_ids);
// Returns the error text for a node that has no row left for a new id.
std::string full_table(const NodeContext& node, const Table& table, NodeId full);
// Assigns a row of this node's share to each id that has none, and writes the rows of all ids, which may
// replace the ids. Returns 0 or, if the share does not have enough free rows, changes nothing and returns the
// number of rows that are needed. `worker` is the worker of this node that is going to use the rows, if any.
std::uint64_t assign_rows(NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                          std::int64_t* rows, std::optional<int> worker);
// Writes the row of each id of this node's share, or RowIds::kUnknown, and keeps these rows from being
// retired by an exchange that has begun.
void find_own_rows(const Table& table, std::span<const std::int64_t> ids, std::int64_t* rows);
// Stores the rows that another node assigned to the ids of a request. With null, that node has no rows for
// them.
void learn_rows(const NodeContext& node, const IdRequest& request, const std::uint32_t* rows);
// Writes the row of each id, or RowIds::kUnknown, and records that a worker uses the rows. Returns how many
// are unknown. A call that `creates` no rows does not affect the order in which rows are retired.
std::size_t find_rows(const NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                      std::int64_t* rows, int worker, bool creates);

// Starts a call for the rows of ids. Assigns rows to the new ids of this node if the call creates rows, and
// makes the requests for ids of other nodes that this node does not know, and for new ids of this node that
// must wait until other rows are retired.
void start_rows_of(NodeContext& node, Operation& operation);
// Submits the requests of a call for rows to the channels.
void submit_id_requests(NodeContext& node, Operation& operation);
// Writes the rows of a completed call to the caller's array. Throws TableFull if a node had no row left for a
// new id. Returns false if a row was retired since it was assigned, so that the call must be made again.
bool finish_rows_of(const NodeContext& node, const Operation& operation);

}  // namespace adaps
