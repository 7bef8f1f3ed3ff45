// Operations that a worker could not complete itself, and forwarded requests for a key's owner
// (docs/concepts/protocol.md, section 5).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/operation.h"
#include "protocol/parked_requests.h"
#include "protocol/refreshes.h"
#include "protocol/replicas.h"
#include "protocol/stored_rows.h"

namespace adaps {

class Requests {
 public:
  Requests(ChannelContext& channel, StoredRows& stored, Refreshes& refreshes, Replicas& replicas,
           ParkedRequests& parked)
      : channel_(channel), stored_(stored), refreshes_(refreshes), replicas_(replicas), parked_(parked) {}

  // --- requests of this node's workers ---

  // Serves the request, sends it to the key's owner, or parks it until the key's state changes.
  void attempt(KeyRequest& request);
  // Attempts the parked requests of a key after its state has changed.
  void retry(Key key);
  // Whether some completed requests have a next part that must be sent.
  bool has_next_parts() const { return !next_parts_.empty(); }
  std::vector<KeyRequest*> take_next_parts() { return std::exchange(next_parts_, {}); }
  // Requests that wait for an answer, by their number in messages.
  const std::vector<KeyRequest*>& awaiting() const { return awaiting_; }

  // --- requests of any node ---

  void on_request(NodeId from, const RequestMessage& message, Reader& reader);
  void on_answer(NodeId from, const AnswerMessage& message, Reader& reader);

 private:
  bool defer(LockedKey& key, KeyRequest& request);
  void send(LockedKey& key, KeyRequest& request);
  // Serves the request if the key's state allows it. Drops the request if its worker has abandoned it.
  bool serve(LockedKey& key, KeyRequest& request);
  void complete(KeyRequest& request);
  std::uint32_t await(KeyRequest& request);
  // Throws ProtocolError if no request with this number is open.
  KeyRequest& open_request(std::uint32_t number);
  KeyRequest& take_awaiting(std::uint32_t number);
  void apply(LockedKey& key, const RequestMessage& message, std::span<const float> payload);

  ChannelContext& channel_;
  StoredRows& stored_;
  Refreshes& refreshes_;
  Replicas& replicas_;
  ParkedRequests& parked_;
  std::vector<KeyRequest*> awaiting_;
  std::vector<std::uint32_t> free_numbers_;
  std::vector<KeyRequest*> next_parts_;
  std::vector<float> scratch_;
};

}  // namespace adaps
