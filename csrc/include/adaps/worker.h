// A worker: the calls of one worker thread on its node's parameter server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "adaps/operation.h"
#include "adaps/stats.h"
#include "adaps/types.h"

namespace adaps {

struct NodeState;

// Identifies an asynchronous call; kDone for one that was complete when the call returned.
using Ticket = std::int64_t;
inline constexpr Ticket kDone = -1;

// One worker thread's handle; not for use by several threads at once (its clock may be read by any).
//
// Where Settings::max_queued_bytes of its calls are on the way, one that needs a message waits for room.
//
// Keys outside [0, num_keys) throw std::out_of_range naming the key; a value array of the wrong size throws
// std::invalid_argument naming both sizes. Nothing is done then. After the loss of a peer every call throws
// PeerLost.
class Worker {
 public:
  Worker(NodeState& node, int index);
  ~Worker();

  // Values of the keys one after the other; `floats` is the size of the array. Duplicates are allowed and
  // behave as if given one after the other. The arrays must live until the call is complete. If
  // `asynchronous`, returns a ticket, else kDone.
  Ticket pull(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket push(std::span<const Key> keys, const float* deltas, std::size_t floats, bool asynchronous);
  // Settings::nonfinite says what becomes of gradients with NaN or infinity in them; if they are refused,
  // with std::invalid_argument naming table and row, nothing is done.
  Ticket push_gradients(std::span<const Key> keys, const float* gradients, std::size_t floats,
                        bool asynchronous);
  Ticket set(std::span<const Key> keys, const float* values, std::size_t floats, bool asynchronous);

  // Announces access in this worker's clocks [start, end). Returns at once.
  void intent(std::span<const Key> keys, Clock start, Clock end);
  // Blocks until the keys, which this worker signalled for its current clock, can be read without a message;
  // keys that no intent brings here are not waited for. For the start of a pipeline: later keys come while
  // others are in use.
  void wait_intent(std::span<const Key> keys);
  void advance_clock();
  // Goes on from `clock`, if that is ahead: a restored training. The time in between counts as not lived
  // through.
  void skip_to_clock(Clock clock);
  Clock current_clock() const;

  bool is_done(Ticket ticket);
  // Throws std::invalid_argument for a ticket never issued.
  void wait(Ticket ticket);
  void waitall();
  // Everything this node wrote is applied, and everything applied anywhere before the call is visible here.
  Ticket wait_sync(bool asynchronous = false);
  // Of all workers of all nodes.
  void barrier();
  // A barrier that tells every worker whether all of them are well; if not, gives a node where one is not.
  std::optional<NodeId> agree(bool well);
  // Takes part in no further collective call; implied by closing the node.
  void finalize();

  // Asked several times per second while a call blocks; may throw, which abandons the call.
  void set_interrupt_check(std::function<void()> check);

 private:
  // The keys as they are now: other threads may write to the caller's array, and what was checked must be
  // what is used. Valid until the next call. `floats` gets how many their values have in all. Throws for the
  // first key that is not valid.
  std::span<const Key> checked(std::span<const Key> keys, std::size_t& floats);
  void wait_for_room();
  Ticket run(OperationKind kind, std::span<const Key> keys, float* out, const float* in, std::size_t floats,
             bool asynchronous);
  void block(const std::shared_ptr<Operation>& operation);
  const std::shared_ptr<Operation>* find(Ticket ticket) const;
  void check_usable() const;

  NodeState& node_;
  const int index_;
  Ticket next_ticket_ = 0;
  bool finalized_ = false;
  bool told_late_ = false;
  std::vector<Key> keys_;  // of the call that runs
  std::unordered_map<Ticket, std::shared_ptr<Operation>> outstanding_;
  std::vector<std::shared_ptr<Operation>> abandoned_;
  std::function<void()> interrupt_check_;
};

}  // namespace adaps
