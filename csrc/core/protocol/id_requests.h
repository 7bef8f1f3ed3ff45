// Messages for the rows of ids: RESOLVE and RESOLVED (docs/concepts/protocol.md, section 20).
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/operation.h"

namespace adaps {

class IdRequests {
 public:
  explicit IdRequests(ChannelContext& channel) : channel_(channel) {}

  // Sends a worker's request to the node that assigns the ids.
  void send(IdRequest& request);
  void on_resolve(NodeId from, const ResolveMessage& message, Reader& reader);
  void on_resolved(NodeId from, const ResolvedMessage& message, Reader& reader);

 private:
  ChannelContext& channel_;
  std::vector<IdRequest*> awaiting_;  // by the number of the request in messages
  std::vector<std::uint32_t> free_numbers_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> rows_;
  std::vector<std::uint32_t> answer_;
};

}  // namespace adaps
