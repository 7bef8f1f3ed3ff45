// A worker: the interface of one worker thread to its node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "node/sampling.h"
#include "protocol/operation.h"

namespace adaps {

struct NodeContext;

// Identifies an asynchronous call. kDone identifies a call that was complete when it returned.
using Ticket = std::int64_t;
inline constexpr Ticket kDone = -1;

// Values and gradients of consecutive rows, starting with row `first`. The last row may be incomplete: its
// remaining floats have no gradient.
struct RowStep {
  Key first;
  float* values;
  const float* gradients;
  std::size_t floats;
};

// A worker's copies of all rows of a table, outside the server: their current values, their values when they
// were last pulled, and the state that changed() uses.
struct RowCopies {
  const Table& table;
  float* values;
  float* pulled;
  std::int64_t* seen;
};

// Gradients of one read of a table: one row for each key. Keys may occur several times. Gradients of the key
// `ignored` count as zeros.
struct GivenGradients {
  std::span<const Key> keys;
  const float* gradients;
  std::size_t floats;
  std::optional<Key> ignored;
};

// The handle of one worker thread. Several threads must not use it at once, except to read its clock.
//
// If Settings::max_queued_bytes of its calls are on the network, a call that needs a message waits.
//
// A key outside [0, num_keys) throws std::out_of_range that names the key. A value array of the wrong size
// throws std::invalid_argument that names both sizes. Such calls change nothing. After the loss of a peer,
// every call throws PeerLost.
class Worker {
 public:
  Worker(NodeContext& node, int index);
  ~Worker();

  // Reads, adds to, or sets the rows of the keys. The values are concatenated, and `floats` is the size of
  // the array. Duplicates are allowed and behave as if given one after the other. The arrays must exist until
  // the call is complete. Returns a ticket if `asynchronous` is true, and kDone otherwise.
  Ticket pull(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket push(std::span<const Key> keys, const float* deltas, std::size_t floats, bool asynchronous);
  // Applies gradients. Settings::nonfinite determines the treatment of NaN and infinity. If it refuses them,
  // the call throws std::invalid_argument that names table and row, and changes nothing.
  Ticket push_gradients(std::span<const Key> keys, const float* gradients, std::size_t floats,
                        bool asynchronous);
  Ticket set(std::span<const Key> keys, const float* values, std::size_t floats, bool asynchronous);
  // The same for the optimizer states of rows. Their owners serve these calls, also where there are replicas.
  Ticket pull_state(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket set_state(std::span<const Key> keys, const float* states, std::size_t floats, bool asynchronous);
  // Whether a pull of the keys may give other values than one did after the last look at them; never blocks.
  // `seen` is what that look wrote, a number for each key, and gets what this one sees. Throws
  // std::invalid_argument if it has another size.
  bool changed(std::span<const Key> keys, std::span<std::int64_t> seen);
  // Like push_gradients, but sums the gradients of each key first (sum_in_turn). All keys are in one table.
  void push_sums(std::span<const GivenGradients> reads);
  // Sets rows to `values`, applies gradients to them, and writes the results to `values`, like set,
  // push_gradients and pull. This is only for the single worker of a single node. Throws std::logic_error if
  // there are other workers. Changes nothing if it throws, or if Settings::nonfinite refuses a gradient.
  void step_rows(std::span<const RowStep> parts);

  // Adds to rows the changes that the user wrote into their copies after the last pull, applies gradients
  // times `scale`, and updates the copies. This is equivalent to push, push_gradients, changed and pull, but
  // needs only one pass over local rows. If Settings::nonfinite refuses a gradient, nothing is changed.
  void step_copies(const RowCopies& copies, std::span<const RowStep> parts, float scale);

  // Announces that this worker will access the keys in its clocks [start, end). Returns at once.
  void intent(std::span<const Key> keys, Clock start, Clock end);
  // Blocks until the keys can be read without a message. This worker must have signalled them for its current
  // clock. Does not wait for keys that no intent makes local. Its purpose is the start of a pipeline; later
  // keys arrive while earlier ones are used.
  void wait_intent(std::span<const Key> keys);

  // Announces that this worker will read a sample of `size` rows of a table in its clocks [start, end). The
  // effect depends on the table's scheme (SamplingSpec). Returns at once, with a number for pull_sample.
  // Throws std::invalid_argument if no such sample is possible.
  Ticket prepare_sample(const Table& table, std::size_t size, Clock start, Clock end);
  // Reads the rows of a sample, as indices in the table, and their values, like pull(). If `values` is null,
  // reads only the rows. Each sample can be read once. Throws std::invalid_argument for any other number, or
  // if an array has the wrong size.
  Ticket pull_sample(Ticket sample, std::span<std::int64_t> rows, float* values, std::size_t floats,
                     bool asynchronous);

  void advance_clock();
  // Sets the clock of a restored training, if it is larger than the worker's clock. The skipped clocks are
  // ignored when the worker's pace is estimated.
  void skip_to_clock(Clock clock);
  Clock current_clock() const;

  bool is_done(Ticket ticket);
  // Throws std::invalid_argument for an unknown ticket.
  void wait(Ticket ticket);
  void waitall();
  // Completes when all writes of this node are applied, and all writes that were applied anywhere before the
  // call are visible here.
  Ticket wait_sync(bool asynchronous = false);
  // Waits for all workers of all nodes.
  void barrier();
  // A barrier whose result is equal for all workers: nothing if every worker passed `well` as true, and
  // otherwise a node with a worker that passed false.
  std::optional<NodeId> agree(bool well);
  // Leaves the cluster. This worker must make no collective call afterwards. Closing the node has the same
  // effect.
  void finalize();

  // Sets a function that is called several times per second while a call blocks. If it throws, the call is
  // abandoned.
  void set_interrupt_check(std::function<void()> check);

 private:
  // The keys as they are now: other threads may write to the caller's array, and what was checked must be
  // what is used. Valid until the next call. `floats` gets how many floats a call of the kind has for them.
  // Throws for the first key that is not valid.
  std::span<const Key> checked(std::span<const Key> keys, std::size_t& floats,
                               OperationKind kind = OperationKind::kPull);
  // Of the keys that checked() gave, those for which intent has an effect.
  std::span<const Key> checked_with_effect();
  void wait_until_queue_drains();
  Sampler& sampler(const Table& table);
  // Pushes the changes that the user wrote into the copies of some rows.
  void push_written(const RowCopies& copies, std::span<const Key> keys);
  Ticket run(OperationKind kind, std::span<const Key> keys, float* out, const float* in, std::size_t floats,
             bool asynchronous);
  // Whether some gradients must be skipped because they are not finite. Throws std::invalid_argument if
  // Settings::nonfinite refuses them.
  bool must_skip(std::span<const Key> keys, const float* gradients, std::size_t floats) const;
  void block(const std::shared_ptr<Operation>& operation);
  const std::shared_ptr<Operation>* find(Ticket ticket) const;
  void check_usable() const;

  NodeContext& node_;
  const int index_;
  Ticket next_ticket_ = 0;
  bool finalized_ = false;
  bool told_late_ = false;
  std::vector<Key> keys_;  // keys of the current call
  struct PreparedSample {
    Sampler* sampler;
    Sample sample;
  };
  // by table, created when the first sample of the table is prepared
  std::vector<std::unique_ptr<Sampler>> samplers_;
  std::unordered_map<Ticket, PreparedSample> prepared_;
  Ticket next_sample_ = 0;
  std::unordered_map<Ticket, std::shared_ptr<Operation>> outstanding_;
  std::vector<std::shared_ptr<Operation>> abandoned_;
  std::function<void()> interrupt_check_;
};

}  // namespace adaps
