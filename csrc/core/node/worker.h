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

// The handle of one worker thread. Several threads must not use it at once, except to read its clock.
//
// A call that needs a message waits while the worker's unfinished calls have Settings::max_queued_bytes or
// more.
//
// A key outside [0, num_keys), or whose row has no id on this node although its table has ids, throws
// std::out_of_range that names the key, as does a row that may be retired and that this node does not use. A
// value array of the wrong size throws std::invalid_argument that names both sizes. Calls that throw one of
// these errors change nothing. After the loss of a peer, every call throws PeerLost.
class Worker {
 public:
  Worker(NodeContext& node, int index);
  ~Worker();

  // Reads, adds to, or sets the rows of the keys. The values of all keys are concatenated, and `floats` is
  // the size of the array. A key may occur several times; the result is as if its occurrences were given one
  // after the other. The arrays must exist until the call is complete. Returns a ticket if `asynchronous` is
  // true, and kDone otherwise.
  Ticket pull(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket push(std::span<const Key> keys, const float* deltas, std::size_t floats, bool asynchronous);
  // Applies gradients. Settings::nonfinite determines the treatment of NaN and infinity. If it refuses them,
  // the call throws std::invalid_argument that names table and row, and changes nothing.
  Ticket push_gradients(std::span<const Key> keys, const float* gradients, std::size_t floats,
                        bool asynchronous);
  Ticket set(std::span<const Key> keys, const float* values, std::size_t floats, bool asynchronous);
  // Reads or sets the optimizer states of the rows. The owners of the rows serve these calls, also if this
  // node has replicas.
  Ticket pull_state(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket set_state(std::span<const Key> keys, const float* states, std::size_t floats, bool asynchronous);
  // Any of the calls above. Of the two arrays, it uses the one that its kind reads or writes.
  Ticket run(OperationKind kind, std::span<const Key> keys, float* out, const float* in, std::size_t floats,
             bool asynchronous);
  // Writes the row of each id, and assigns rows to new ids. The table must have ids. Needs a message only for
  // ids that this node does not know and that another node assigns. Throws std::invalid_argument if the table
  // has no ids or if `rows` has another size, and TableFull if no row is left for a new id; `rows` is then
  // unchanged. An asynchronous call writes `rows` in wait() or is_done(), and throws TableFull in wait(). If
  // the table's rows are retired, a row belongs to its id until this worker's clock advances next, and as
  // long as intents of this node need it. If `creates` is false, new ids get no row, and RowIds::kUnknown is
  // written for them.
  Ticket rows_of(const Table& table, std::span<const std::int64_t> ids, std::span<std::int64_t> rows,
                 bool asynchronous, bool creates = true);
  // Returns the ids of the rows that any node has read or written, in ascending order. They include the ids
  // of all calls that were complete before this call began, and of calls of other workers before a barrier.
  // The table must have ids, or the call throws std::invalid_argument.
  std::vector<std::int64_t> used_ids(const Table& table);
  // Whether a pull of these keys could return other values now than at the previous call of this function.
  // Never blocks. `seen` has one number for each key, which the previous call wrote and which this call
  // replaces. Throws std::invalid_argument if `seen` has another size.
  bool changed(std::span<const Key> keys, std::span<std::int64_t> seen);
  // Like push_gradients, but sums the gradients of each key first, in the given order. All keys are of
  // `table`.
  void push_sums(const Table& table, std::span<const Key> keys, const float* gradients, std::size_t floats);
  // Sets rows to `values`, applies gradients to them, and writes the results to `values`, like set,
  // push_gradients and pull. This is only for the single worker of a single node. Throws std::logic_error if
  // there are other workers. Changes nothing if it throws, or if Settings::nonfinite refuses a gradient.
  void step_rows(std::span<const RowStep> parts);

  // Adds to rows the changes that the user wrote into their copies after the last pull, applies gradients
  // times `scale`, and updates the copies. This is equivalent to push, push_gradients, changed and pull, but
  // needs only one pass over local rows. If Settings::nonfinite refuses a gradient, nothing is changed.
  void step_copies(const RowCopies& copies, std::span<const RowStep> parts, float scale);

  // Signals the intent to access the keys in this worker's clocks [start, end). Returns at once.
  void intent(std::span<const Key> keys, Clock start, Clock end);
  // Blocks until the keys can be read without a message. This worker must have signalled intent for them in
  // its current clock. Does not wait for keys that no intent makes local. It is meant for the first batches
  // of a pipeline; the keys of later batches arrive while earlier batches are used.
  void wait_intent(std::span<const Key> keys);

  // Prepares a sample of `size` rows of a table, which this worker will read in its clocks [start, end). The
  // table's scheme (SamplingSpec) determines when the rows are drawn and for which rows intent is signalled.
  // Returns at once, with a number for pull_sample. Throws std::invalid_argument if no such sample is
  // possible.
  Ticket prepare_sample(const Table& table, std::size_t size, Clock start, Clock end);
  // Reads the rows of a sample, as row numbers of the table, and their values, like pull(). If `values` is
  // null, reads only the row numbers. Each sample can be read once. Throws std::invalid_argument for any
  // other number, or if an array has the wrong size.
  Ticket pull_sample(Ticket sample, std::span<std::int64_t> rows, float* values, std::size_t floats,
                     bool asynchronous);

  void advance_clock();
  // Ends the use of the rows that rows_of() returned in the present clock.
  void end_uses();
  // Sets the clock of a restored training, if it is larger than the worker's clock. The skipped clocks are
  // ignored when the worker's pace is estimated.
  void skip_to_clock(Clock clock);
  Clock current_clock() const;

  bool is_done(Ticket ticket);
  // Throws std::invalid_argument for an unknown ticket.
  void wait(Ticket ticket);
  // Has the same effect on channels as wait, and returns at once.
  void hurry(Ticket ticket);
  void waitall();
  // Completes when two conditions are true: all writes of this node are applied at their owners, and all
  // writes that any owner had applied before the call are visible on this node. An asynchronous call does not
  // hurry the other nodes: it completes with their next exchanges of changes.
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
  // Returns a copy of the keys, after checking it. A copy is necessary because other threads may change the
  // caller's array after the check. Valid until the next call. Sets `floats` to the number of floats that a
  // call of this kind has for the keys. Throws for the first invalid key.
  std::span<const Key> checked(std::span<const Key> keys, std::size_t& floats,
                               OperationKind kind = OperationKind::kPull);
  void wait_until_queue_drains();
  // Starts a call for the rows of ids, which may be complete at once.
  std::shared_ptr<Operation> request_rows(const Table& table, std::span<const std::int64_t> ids,
                                          std::int64_t* rows, bool creates);
  void block_for_rows(std::shared_ptr<Operation> operation);
  Sampler& sampler(const Table& table);
  // Pushes the changes that the user wrote into the copies of some rows.
  void push_written(const RowCopies& copies, std::span<const Key> keys);
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
  std::vector<Key> keys_;           // keys of the current call
  std::vector<std::int64_t> rows_;  // rows of the current call
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
