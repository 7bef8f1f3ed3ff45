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

  // Sends a worker's request to the node that assigns the ids. If this is the same node, the request waits
  // until there are free rows.
  void send(IdRequest& request);
  // Serves requests that wait for free rows, as far as there are any now.
  void serve_waiting();
  void on_resolve(NodeId from, const ResolveMessage& message, Reader& reader);
  void on_resolved(NodeId from, const ResolvedMessage& message, Reader& reader);

 private:
  // A request for rows of this node's share.
  struct Waiting {
    const Table* table;
    NodeId from;
    std::uint32_t number;  // the sender's number of the request
    IdRequest* own;        // the request, if a worker of this node made it
    std::vector<std::int64_t> ids;
    std::vector<bool> is_admitted{};  // by id; empty if all have or get a row
    std::uint64_t search = 0;  // number of the search for rows that can be retired; 0 if there is none yet
  };

  // Answers a request that creates no rows.
  void find(Waiting& request);
  // Returns whether the request was answered.
  bool serve(Waiting& request);
  bool must_wait(Waiting& request, std::uint64_t needed);
  void answer(const Waiting& request, bool has_rows);

  ChannelContext& channel_;
  std::vector<Waiting> waiting_;
  std::vector<IdRequest*> awaiting_;  // by the number of the request in messages
  std::vector<std::uint32_t> free_numbers_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> rows_;
  std::vector<std::uint32_t> answer_;
};

}  // namespace adaps
