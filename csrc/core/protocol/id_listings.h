// Lists the ids of the rows that any node has used, by LIST_IDS and IDS (docs/concepts/protocol.md, section
// 20).
#pragma once

#include <cstdint>
#include <map>

#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/operation.h"

namespace adaps {

// Starts a call for the ids of used rows: adds the ids of this node. The call then needs the first channel,
// if there are other nodes.
void start_used_ids(const NodeContext& node, Operation& operation);

class IdListings {
 public:
  explicit IdListings(ChannelContext& channel) : channel_(channel) {}

  // Requests the first ids of all other nodes for a worker's call.
  void begin(Operation& operation);
  void on_list_ids(NodeId from, const ListIdsMessage& message);
  void on_ids(NodeId from, const IdsMessage& message, Reader& reader);

 private:
  // A request whose answer has not arrived.
  struct Open {
    Operation* operation;
    NodeId to;
    std::uint64_t first;  // first row of the request
  };
  void send(std::uint32_t request);

  ChannelContext& channel_;
  std::map<std::uint32_t, Open> open_;  // by the number of the request in messages
  std::uint32_t next_request_ = 0;
};

}  // namespace adaps
