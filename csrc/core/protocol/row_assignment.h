// Assigns rows to ids, and finds the rows of a call's ids (docs/concepts/protocol.md, section 20).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "protocol/context.h"
#include "protocol/operation.h"
#include "store/table.h"

namespace adaps {

// Maximum number of ids in a message.
inline constexpr std::size_t kMaxIdsOfMessage = 4096;

// Whether this node's share has free rows for a number of new ids.
bool has_room_for(const NodeContext& node, const Table& table, std::uint64_t new_ids);
// Returns the error text for a node that has no row left for a new id.
std::string full_table(const NodeContext& node, const Table& table, NodeId full);
// Assigns a row of this node's share to each id that has none, and writes the rows of all ids, which may
// replace the ids. Returns false, and changes nothing, if the share does not have enough free rows.
bool assign_rows(const NodeContext& node, const Table& table, std::span<const std::int64_t> ids,
                 std::int64_t* rows);
// Stores the rows that another node assigned to ids.
void learn_rows(const Table& table, std::span<const std::int64_t> ids, const std::uint32_t* rows);

// Starts a call for the rows of ids. Assigns rows to the new ids of this node, and creates the requests for
// ids of other nodes that this node does not know.
void start_rows_of(NodeContext& node, Operation& operation);
// Submits the requests of a call for rows to the channels.
void submit_id_requests(NodeContext& node, Operation& operation);
// Writes the rows of a completed call to the caller's array. Throws TableFull if a node had no row left for a
// new id.
void finish_rows_of(const NodeContext& node, const Operation& operation);

}  // namespace adaps
