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

#include "common/stats.h"
#include "common/types.h"
#include "node/sampling.h"
#include "protocol/operation.h"

namespace adaps {

struct NodeContext;

// Identifies an asynchronous call; kDone for one that was complete when the call returned.
using Ticket = std::int64_t;
inline constexpr Ticket kDone = -1;

// Values and gradients of the rows from `first` on. The last one may be given in part: the rest of it has no
// gradient.
struct RowStep {
  Key first;
  float* values;
  const float* gradients;
  std::size_t floats;
};

// What a worker keeps outside of the rows of a table, all of them: what they are there, what they were when
// they were pulled last, and what changed() saw of them.
struct RowCopies {
  const Table& table;
  float* values;
  float* pulled;
  std::int64_t* seen;
};

// Gradients of one read of a table: a row for each key, which may come several times. What is given for the
// key `ignored` counts as zeros.
struct GivenGradients {
  std::span<const Key> keys;
  const float* gradients;
  std::size_t floats;
  std::optional<Key> ignored;
};

// One worker thread's handle; not for use by several threads at once (its clock may be read by any).
//
// Where Settings::max_queued_bytes of its calls are on the way, one that needs a message waits for room.
//
// Keys outside [0, num_keys) throw std::out_of_range naming the key; a value array of the wrong size throws
// std::invalid_argument naming both sizes. Nothing is done then. After the loss of a peer every call throws
// PeerLost.
class Worker {
 public:
  Worker(NodeContext& node, int index);
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
  // The same for the optimizer states of rows. Their owners serve these calls, also where there are replicas.
  Ticket pull_state(std::span<const Key> keys, float* out, std::size_t floats, bool asynchronous);
  Ticket set_state(std::span<const Key> keys, const float* states, std::size_t floats, bool asynchronous);
  // Whether a pull of the keys may give other values than one did after the last look at them; never blocks.
  // `seen` is what that look wrote, a number for each key, and gets what this one sees. Throws
  // std::invalid_argument if it has another size.
  bool changed(std::span<const Key> keys, std::span<std::int64_t> seen);
  // push_gradients, but those of a key that is given several times are added up before (sum_in_turn). The
  // keys are of one table.
  void push_sums(std::span<const GivenGradients> reads);
  // For the only worker of the only node: rows become `values`, gradients are applied to them, and `values`
  // become what they are then; as set, push_gradients and pull. Throws std::logic_error if there are other
  // workers, and then, or if Settings::nonfinite refuses a gradient, nothing is done.
  void step_rows(std::span<const RowStep> parts);

  // Adds to rows what was written into their copies since they were pulled, applies gradients times `scale`
  // to them, and makes the copies what they are then: push, push_gradients, changed and pull, in one pass
  // over rows that are here. If Settings::nonfinite refuses a gradient, nothing is done.
  void step_copies(const RowCopies& copies, std::span<const RowStep> parts, float scale);

  // Announces access in this worker's clocks [start, end). Returns at once.
  void intent(std::span<const Key> keys, Clock start, Clock end);
  // Blocks until the keys, which this worker signalled for its current clock, can be read without a message;
  // keys that no intent brings here are not waited for. For the start of a pipeline: later keys come while
  // others are in use.
  void wait_intent(std::span<const Key> keys);

  // Announces that this worker will read a sample of `size` rows of a table in its clocks [start, end); the
  // table's scheme (SamplingSpec) says what that does. Returns at once, with a number for pull_sample.
  // Throws std::invalid_argument if no sample can be like that.
  Ticket prepare_sample(const Table& table, std::size_t size, Clock start, Clock end);
  // Rows of a sample, numbers within its table, and their values, as from pull(); without `values` only the
  // rows. Each sample can be read once: throws std::invalid_argument for any other number, and if an array
  // has another size.
  Ticket pull_sample(Ticket sample, std::span<std::int64_t> rows, float* values, std::size_t floats,
                     bool asynchronous);

  void advance_clock();
  // Sets the clock of a restored training, if it is ahead of the worker's. The skipped clocks do not count
  // when the pace is estimated.
  void skip_to_clock(Clock clock);
  Clock current_clock() const;

  bool is_done(Ticket ticket);
  // Throws std::invalid_argument for a ticket never issued.
  void wait(Ticket ticket);
  void waitall();
  // Everything this node wrote is applied, and everything applied anywhere before the call is visible here.
  Ticket wait_sync(bool asynchronous = false);
  // Waits for all workers of all nodes.
  void barrier();
  // A barrier that tells every worker whether all of them are well; if not, gives a node where one is not.
  std::optional<NodeId> agree(bool well);
  // Leaves the cluster: makes no collective call after this one. Closing the node implies it.
  void finalize();

  // Called several times per second while a call blocks; may throw, which abandons the call.
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
  // Pushes what was written into the copies of some rows.
  void push_written(const RowCopies& copies, std::span<const Key> keys);
  Ticket run(OperationKind kind, std::span<const Key> keys, float* out, const float* in, std::size_t floats,
             bool asynchronous);
  // Whether gradients are such that Settings::nonfinite refuses them or leaves some out: false if all are
  // finite. Throws std::invalid_argument if they are refused.
  bool must_skip(std::span<const Key> keys, const float* gradients, std::size_t floats) const;
  void block(const std::shared_ptr<Operation>& operation);
  const std::shared_ptr<Operation>* find(Ticket ticket) const;
  void check_usable() const;

  NodeContext& node_;
  const int index_;
  Ticket next_ticket_ = 0;
  bool finalized_ = false;
  bool told_late_ = false;
  std::vector<Key> keys_;  // of the call that runs
  struct PreparedSample {
    Sampler* sampler;
    Sample sample;
  };
  std::vector<std::unique_ptr<Sampler>> samplers_;  // by table, once one of its samples was prepared
  std::unordered_map<Ticket, PreparedSample> prepared_;
  Ticket next_sample_ = 0;
  std::unordered_map<Ticket, std::shared_ptr<Operation>> outstanding_;
  std::vector<std::shared_ptr<Operation>> abandoned_;
  std::function<void()> interrupt_check_;
};

}  // namespace adaps
