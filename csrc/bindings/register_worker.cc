#include <pybind11/stl.h>

#include <string>

#include "register.h"
#include "worker_handle.h"

namespace adaps::bindings {

namespace {

constexpr char kWorker[] = R"(The interface of one worker thread to its node; `adaps.Node.worker` returns it.

Only one thread at a time may use a worker: a call during another thread's call raises `AdapsError`. All
workers of a node share its rows. Calls release the GIL while they work or wait, and Ctrl-C ends a waiting
call.

Notes
-----
**Keys** are a C-contiguous int64 array or CPU tensor of any shape, or a list, tuple or range of integers.
Each key is in ``[0, num_keys)``, and keys of several tables may be mixed. Duplicates are allowed, and behave
as if they were given one after the other. Keys of a table with ids must be of rows that `rows_of` returned on
this node; any other row raises IndexError. If the table evicts rows, so does a row that this worker did not find
in its present clock and that no intent of its node needs.

**Values** are a C-contiguous float32 array or CPU tensor with the concatenated rows of the keys. Its size is
the sum of the rows' lengths: ``(len(keys), length)`` for keys of one table. Values are not copied.

**Asynchronous calls** return a ticket for `is_done` and `wait`, or -1 if the call was complete at once. Keys
may be changed as soon as the call has returned. Values may be changed when the call is complete.

**Order.** A worker reads its own writes, and never an older value of a key than it has read before. The row
of one key is read and written atomically; the rows of several keys are not. Writes of other workers are
visible after `wait_sync`, `barrier` and `wait_sync` on all workers.

**Errors.** Arguments are checked before anything is changed. TypeError (dtype), ValueError (size, layout,
device) and IndexError (a key that does not exist) name the wrong value. After the loss of a node, every call
that needs the cluster raises `PeerLost`. After this node was closed or this worker was finalized, calls raise
`AdapsError`.)";

// A call that reads or writes one row of an array for each key.
struct RowCall {
  const char* name;
  OperationKind kind;
  const char* text;
  const char* keys;   // description of the argument `keys`
  const char* array;  // name of the other argument, and its description
  const char* content;
  const char* unchanged;  // effect of the call if a key does not exist
};

constexpr RowCall kRowCalls[] = {
    {"pull", OperationKind::kPull, R"(Write the values of the keys to `out`, one after the other.

Blocks until every row has been read: from this node's memory if it owns the row or holds a replica, otherwise
by a message to the owner.)",
     "Keys of the rows to read. Duplicates are allowed, and each is written.", "out",
     "Output for the rows, in the order of the keys. It must be writable.", "`out` is unchanged"},
    {"push", OperationKind::kPush, R"(Add a delta to the value of each key.

Blocks until each delta is in the row at its owner, or in a replica on this node. The next exchange sends the
changes of replicas to the owner.)",
     "Keys of the rows to change. The deltas of duplicates are added up.", "deltas",
     "Deltas to add, one row per key.", "nothing is added"},
    {"push_gradients", OperationKind::kPushGradients,
     R"(Update the value of each key with its table's optimizer.

Blocks until each gradient is applied at the row's owner, or to a replica on this node. The next exchange
sends the changes of replicas to the owner. If a gradient contains NaN or infinity and the node has
``nonfinite="raise"``, ValueError names table and row, and nothing is applied.)",
     "Keys of the rows to update. Duplicates are separate steps, one after the other. To apply the sum of\n"
     "    their gradients instead, like torch's sparse gradients, sum them first, for example with\n"
     "    `deduplicate`.",
     "gradients", "Gradients, one row per key.", "nothing is applied"},
    {"set", OperationKind::kSet, R"(Overwrite the value of each key; the optimizer's state is unchanged.

Blocks until every value has reached its owner, which orders it with all other updates.)",
     "Keys of the rows to write. Of several duplicates, the last one takes effect.", "values",
     "New values, one row per key.", "nothing is written"},
    {"pull_state", OperationKind::kPullState,
     R"(Write the optimizer states of the keys to `out`, one after the other.

Blocks until every state has been read from the row's owner. The states include all earlier pushes of this node.
A state is one row of `NodeTable.state_length` float32 numbers. It contains the buffers of `torch.optim` that the
rule has, each as long as the value, one after the other: ``momentum_buffer`` of SGD; ``sum`` of Adagrad;
``exp_avg`` and ``exp_avg_sq`` of Adam; ``square_avg``, ``momentum_buffer`` and ``grad_avg`` of RMSprop. One more
number follows: the step that last changed the row, if `NodeTable.set_step` numbers steps, and otherwise the number
of gradients that Adam has applied. Adagrad and SGD without momentum have this number only with weight decay. The
state of `RowAdagrad` is one accumulator.)",
     "Keys of the rows to read. Duplicates are allowed, and each is written.", "out",
     "Output for the states, in the order of the keys. It must be writable.", "`out` is unchanged"},
    {"set_state", OperationKind::kSetState,
     R"(Overwrite the optimizer state of each key; the value is unchanged.

Blocks until every state has reached the row's owner, which orders it with all other updates. If the `wire` of a
table rounds, other nodes may still have rounding errors of the old state, which can make the new state negative.
Write the states of such rows before their first gradient.)",
     "Keys of the rows to write. Of several duplicates, the last one takes effect.", "states",
     "New states, one row per key, in the form that `pull_state` returns.", "nothing is written"},
};

std::string description(const RowCall& call) {
  const std::string array = call.array;
  return std::string(call.text) +
         "\n\nParameters\n----------\nkeys : int64 array, CPU tensor or sequence of int\n    " + call.keys +
         "\n" + array + " : float32 array or CPU tensor\n    " + call.content +
         "\nasynchronous : bool\n    Whether to return at once. If so, `" + array +
         R"(` must not be changed or freed until the call is complete.

Returns
-------
int or None
    Ticket of the call if it is asynchronous.

Raises
------
IndexError
    If a key does not exist. The error names the first one, and )" +
         call.unchanged + R"(.
TypeError, ValueError
    If an array has another dtype, size or layout, is not on the CPU, or is an output and read-only.
PeerLost
    If a node of the cluster is lost.)";
}

// Appends the errors of a call for which every worker waits.
std::string collective(const char* text) {
  return std::string(text) + R"(

Raises
------
PeerLost
    If a node of the cluster is lost, or does not arrive within `stall_timeout`.)";
}

constexpr char kUsedIds[] = R"(Return the ids of the rows that any node has read or written.

An id whose row was only requested, or for which only intent was signalled, is not among them. Blocks until all
nodes have sent their ids. The result contains the ids of calls that were complete before this call, and of
other workers' calls before a `barrier`.

Parameters
----------
table : NodeTable
    Table with ``keys="int64"``, on this worker's node.

Returns
-------
int64 array
    Distinct ids, in ascending order.

Raises
------
ValueError
    If the table has no ids.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kRowsOf[] =
    R"(Write the row of each id of a table with ``keys="int64"``, and assign rows to new ids.

All other calls identify the rows of such a table by these row numbers, which `NodeTable.keys` converts to keys.
Ids that this node knows need no message, so the call returns at once. The first use of an id on a node may need
one message to the node that assigns its row and the answer. A node can only use rows of ids that it knows, so
call this on each node that uses an id.

An id keeps its row as long as the cluster exists, unless the table evicts rows. Then a row belongs to its id
until this worker's clock advances, and as long as intents of this node need it. Call this again in each clock
that uses an id without intent. A call with a row of an earlier clock raises IndexError, unless a worker of this
node already uses the row for another id. If the table admits ids only when they were seen several times, the row
of an id that is not admitted is -1. Each call counts once for each of its ids.

Parameters
----------
table : NodeTable
    Table of the ids, on this worker's node.
ids : int64 array, CPU tensor or sequence of int
    Any 64-bit ids, including negative ones. Duplicates are allowed, and each is written.
rows_out : int64 array or CPU tensor
    Output for the rows, one per id. It must be writable.
asynchronous : bool
    Whether to return at once. If so, `rows_out` must not be changed or freed until the call is complete, and it
    is written by the `wait`, `waitall` or `is_done` that completes the call.
create : bool
    Whether new ids get rows. Otherwise, as in an evaluation, -1 is written for an id without a row, no row is
    evicted, and the call does not count as a use when rows are chosen for eviction.

Returns
-------
int or None
    Ticket of the call if it is asynchronous.

Raises
------
AdapsError
    If a node has no row left for a new id, or too few rows that are not in use. The error names table, node and
    capacity, and `rows_out` is unchanged. Other new ids of the call may have been assigned. An asynchronous call raises this in `wait`.
ValueError
    If the table was created with `rows`.
TypeError, ValueError
    If an array has another dtype, size or layout, is read-only or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kChanged[] =
    R"(Whether a pull could return other values than at the last call of this function.

Never blocks, sends no message, and reads no row. It is useful for rows that are read often and rarely change.
First read them with ``worker.changed(keys, seen); worker.pull(keys, out)``. From then on, ``if
worker.changed(keys, seen): worker.pull(keys, out)`` keeps `out` as up to date as a pull each time.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Keys of the rows that were pulled.
seen : int64 array or CPU tensor
    State of the last call, with one number for each key, which this call updates. Fill it with zeros before
    the first call, and do not change it afterwards.

Returns
-------
bool
    False if a pull would return the values of a pull after the last call. True if it could return others.
    True is also returned if neighboring keys were changed, if a row was accessed to be sent, or if a row is
    not local.

Raises
------
IndexError
    If a key does not exist. The error names the first one.
TypeError, ValueError
    If an array has another dtype, size or layout, is read-only or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPullRows[] = R"(Read rows of a table by their ids.

Equivalent to ``keys = table.keys(ids)``, then ``table.catch_up(keys)`` if `idle_rows` is true, then
``pull(keys, out)``.

Parameters
----------
table : NodeTable
    Table of the rows, on this worker's node.
ids : int64 array, CPU tensor or sequence of int
    Row ids. Duplicates are kept.
out : float32 array or CPU tensor
    Output for the values, one row per id.
idle_rows : bool
    Whether the rows first catch up with the steps that they missed.

Raises
------
IndexError
    If a row does not exist. The error names the first one, and nothing is read.
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPushSums[] = R"(Update rows of tables with the sums of their gradients.

For each table, the gradients of each row are summed in the given order, as in PyTorch's gradient of an
embedding. `push_gradients` of these sums follows.

Parameters
----------
parts : sequence of (table, ids, gradients)
    A `NodeTable` on this worker's node, row ids, which may repeat, and a float32 row for each id.

Raises
------
IndexError
    If a row does not exist. The error names the first one, and nothing is applied.
ValueError
    If a sum contains NaN or infinity and the node has ``nonfinite="raise"``, or if an array has another size
    or layout. The part is not applied.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kStepRows[] =
    R"(Update rows with values in an array, on a single node with a single worker.

Sets the rows to the values of the array, applies the gradients with the table's optimizer, and writes the new
values to the array. This is equivalent to `set`, `push_gradients` and `pull`, but needs only one pass.

Parameters
----------
table : NodeTable
    Table of the rows.
values : float32 array or CPU tensor
    Values of all rows of the table. Rows with a gradient are changed.
parts : sequence of (row, gradient)
    Gradients and the first row of each. A gradient continues in the following rows. If it ends within a row,
    the rest of the row has the gradient 0.

Raises
------
AdapsError
    If the node has several workers, or the cluster has several nodes.
ValueError
    If a gradient contains NaN or infinity and the node has ``nonfinite="raise"``, or if a gradient exceeds the
    table. The gradient is not applied.
TypeError
    If an array has another dtype.)";

constexpr char kStepCopies[] =
    R"(Update rows and a copy of them in an array, while other workers also update the rows.

Adds the changes that were written into the copy since the last pull to the rows, applies the gradients times
`scale` with the table's optimizer, and writes the new values to the copy. This is equivalent to `push`,
`push_gradients`, `changed` and `pull`, but needs only one pass over local rows. It blocks like these calls;
remote rows are handled one by one.

Parameters
----------
table : NodeTable
    Table of the rows, on this worker's node.
values : float32 array or CPU tensor
    Copy of all rows of the table. Rows with a gradient are changed.
pulled : float32 array or CPU tensor
    Contents of `values` after the last pull. It also receives the new values.
seen : int64 array or CPU tensor
    State for each row of the table, as in `changed`.
parts : sequence of (row, gradient)
    Gradients and the first row of each, as in `step_rows`. Parts in the order of their rows are fastest.
scale : float
    Factor for the gradients.

Raises
------
ValueError
    If a gradient times `scale` contains NaN or infinity and the node has ``nonfinite="raise"``, if a gradient
    exceeds the table, or if an array has another size. Nothing is changed.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kIntent[] = R"(Announce that this worker will access the keys in its clocks ``[start, end)``.

Does not block: the node's own threads move or replicate the rows. With ``timing``, they start shortly before
`start`. An intent is active while `current_clock` is below `end`. If `end` has already been
reached, the intent has no effect: ``stats()["intents_late"]`` counts its keys, and one warning is logged.
Intent changes the location of rows, but never the result of a call. A key without intent stays with its
owner.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Keys of the rows that will be accessed. They are copied, and duplicates have no effect.
start : int
    First clock of the access.
end : int, optional
    First clock after the access; ``start + 1`` by default. With ``2**40`` or more, the intent is for good: the
    row stays at its home node if other nodes also use it.

Raises
------
IndexError
    If a key does not exist. The error names the first one, and nothing is announced.
ValueError
    If `end` is not greater than `start`, or if `start` is greater than the largest clock.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitIntent[] =
    R"(Block until keys that were announced for the current clock can be read without a message.

This is useful at the start of a loop. Later, the rows of a batch arrive while earlier batches are used. Keys
that no intent makes local are not waited for.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Keys that this worker announced for its current clock. Duplicates have no effect.

Raises
------
IndexError
    If a key does not exist. The error names the first one.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPrepareSample[] =
    R"(Announce that this worker will read a sample of a table's rows in its clocks ``[start, end)``.

Does not block. The effect depends on the scheme of the table's `Sampling`. ``preloc`` and ``pool``
draw the rows now and signal intent for them. ``local`` and ``naive`` draw the rows when the sample is read.

Parameters
----------
table : NodeTable
    Table to draw from. It must belong to this worker's node and have `sampling`.
n : int
    Number of rows to draw.
start : int
    First clock of the access.
end : int, optional
    First clock after the access; ``start + 1`` by default.

Returns
-------
int
    Number of the sample, for one call of `pull_sample`, which frees the sample's memory.

Raises
------
ValueError
    If the table has no `sampling`, if no sample of `n` rows is possible, or if the clocks are invalid.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPullSample[] = R"(Write the rows of a prepared sample, and their values.

Values are read as by `pull`, with the same guarantees. Rows are identified by their index in the table; the
keys for a push of gradients are ``table.keys(rows_out)``.

Parameters
----------
sample : int
    Number that `prepare_sample` returned. Each sample can be read once.
rows_out : int64 array or CPU tensor
    Output for the `n` rows, in the order of the draws. It must be writable.
values_out : float32 array or CPU tensor, optional
    Output for their values, one row after the other. Without it, rows are drawn but no values are read.
asynchronous : bool
    Whether to return as soon as the rows are written. If so, `values_out` must not be changed until the call
    is complete.

Returns
-------
int or None
    Ticket of the call if it is asynchronous and reads values.

Raises
------
ValueError
    If the sample does not exist or was read before, or if an array has another size or layout.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kAdvanceClock[] = R"(Add one to this worker's clock, after a training step.

Never blocks. Ends intents whose `end` is the new clock, and acts on intents whose `start` is now near. The
clocks of other workers do not change.)";

constexpr char kEndUses[] = R"(End the use of the rows that `rows_of` has returned in the present clock.

Never blocks. Use it in an evaluation, whose clock does not advance: the rows can then be given to other ids.
Rows that an intent or an unfinished call needs stay in use.)";

constexpr char kCurrentClock[] =
    "int: Clock of this worker. It starts at 0, and `advance_clock` increases it.";

constexpr char kIsDone[] = R"(Whether an asynchronous call is complete; never blocks.

Parameters
----------
ticket : int
    Ticket that the call returned.

Raises
------
ValueError
    If this worker never issued the ticket.
PeerLost
    If the call is not complete, and a node of the cluster is lost.)";

constexpr char kWait[] = R"(Block until an asynchronous call is complete.

Returns at once if the call was already waited for.

Parameters
----------
ticket : int
    Ticket that the call returned.

Raises
------
ValueError
    If this worker never issued the ticket.
AdapsError
    If the call is `rows_of`, and a node had no row left for a new id.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitAll[] = R"(Block until all asynchronous calls of this worker are complete.

Raises
------
AdapsError
    If a call of `rows_of` found a node without a row for a new id. Other calls may be incomplete.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitSync[] =
    R"(Block until this node's writes are applied and earlier writes of all nodes are visible here.

When the call returns, all earlier writes of this node's workers are applied at their owners. All writes that
were applied on any node before the call are visible on this node. ``wait_sync(); barrier(); wait_sync()`` on
all workers makes all writes of all workers visible to all workers.

Parameters
----------
asynchronous : bool
    Whether to return a ticket at once. The ticket is complete when the conditions above are true. While no
    worker waits for it, other nodes do not hurry: they send their changes as part of their next exchange.

Returns
-------
int or None
    Ticket of the call if it is asynchronous.

Raises
------
PeerLost
    If a node of the cluster is lost.)";

constexpr char kBarrier[] = R"(Block until every worker of every node has called this. Collective.

A barrier alone does not make writes visible; see `wait_sync`.)";

constexpr char kAgree[] =
    R"(Block like `barrier`, and return whether any worker has reported a failure. Collective.

Parameters
----------
well : bool
    False to report a failure of this worker.

Returns
-------
int or None
    Rank of a node with a worker that reported a failure, equal for all workers; None if there is none.)";

constexpr char kSkipToClock[] =
    R"(Continue from a later clock, for example after a restore. An earlier clock has no effect.

Never blocks. The node ignores the skipped clocks when it estimates the pace of this worker's clock.

Parameters
----------
clock : int
    New clock.

Raises
------
ValueError
    If it is greater than the largest clock.)";

constexpr char kBeginSetup[] =
    R"(Block until every worker has called this, before the first values are set. Collective.)";

constexpr char kEndSetup[] =
    R"(Block until the writes of all workers before this call are visible to all workers. Collective.)";

constexpr char kFinalize[] = R"(Exclude this worker from collective calls, which then do not wait for it.

Blocks until its asynchronous calls are complete. Closing the node has the same effect. A second call does
nothing. Any other call afterwards raises `AdapsError`, except those about its clock.

Raises
------
PeerLost
    If a node of the cluster is lost.)";

}  // namespace

void register_worker(py::module_& module) {
  py::class_<WorkerHandle, std::shared_ptr<WorkerHandle>> worker(module, "Worker", kWorker);
  for (const RowCall& call : kRowCalls) {
    const auto run = [kind = call.kind, array = call.array](WorkerHandle& handle, py::handle keys,
                                                            py::handle values, bool asynchronous) {
      return handle.access_rows(kind, keys, values, array, asynchronous);
    };
    worker.def(call.name, run, py::arg("keys"), py::arg(call.array), py::arg("asynchronous") = false,
               description(call).c_str());
  }
  worker
      .def("rows_of", &WorkerHandle::rows_of, py::arg("table"), py::arg("ids"), py::arg("rows_out"),
           py::arg("asynchronous") = false, py::arg("create") = true, kRowsOf)
      .def("used_ids", &WorkerHandle::used_ids, py::arg("table"), kUsedIds)
      .def("changed", &WorkerHandle::changed, py::arg("keys"), py::arg("seen"), kChanged)
      .def("pull_rows", &WorkerHandle::pull_rows, py::arg("table"), py::arg("ids"), py::arg("out"),
           py::arg("idle_rows") = false, kPullRows)
      .def("push_sums", &WorkerHandle::push_sums, py::arg("parts"), kPushSums)
      .def("step_rows", &WorkerHandle::step_rows, py::arg("table"), py::arg("values"), py::arg("parts"),
           kStepRows)
      .def("step_copies", &WorkerHandle::step_copies, py::arg("table"), py::arg("values"), py::arg("pulled"),
           py::arg("seen"), py::arg("parts"), py::arg("scale") = 1.0F, kStepCopies)
      .def("intent", &WorkerHandle::intent, py::arg("keys"), py::arg("start"), py::arg("end") = py::none(),
           kIntent)
      .def("wait_intent", &WorkerHandle::wait_intent, py::arg("keys"), kWaitIntent)
      .def("prepare_sample", &WorkerHandle::prepare_sample, py::arg("table"), py::arg("n"), py::arg("start"),
           py::arg("end") = py::none(), kPrepareSample)
      .def("pull_sample", &WorkerHandle::pull_sample, py::arg("sample"), py::arg("rows_out"),
           py::arg("values_out") = py::none(), py::arg("asynchronous") = false, kPullSample)
      .def("advance_clock", &WorkerHandle::advance_clock, kAdvanceClock)
      .def("end_uses", &WorkerHandle::end_uses, kEndUses)
      .def_property_readonly("current_clock", &WorkerHandle::current_clock, kCurrentClock)
      .def("is_done", &WorkerHandle::is_done, py::arg("ticket"), kIsDone)
      .def("wait", &WorkerHandle::wait, py::arg("ticket"), kWait)
      .def("waitall", &WorkerHandle::waitall, kWaitAll)
      .def("wait_sync", &WorkerHandle::wait_sync, py::arg("asynchronous") = false, kWaitSync)
      .def("barrier", &WorkerHandle::barrier, collective(kBarrier).c_str())
      .def("agree", &WorkerHandle::agree, py::arg("well"), collective(kAgree).c_str())
      .def("skip_to_clock", &WorkerHandle::skip_to_clock, py::arg("clock"), kSkipToClock)
      .def("begin_setup", &WorkerHandle::begin_setup, collective(kBeginSetup).c_str())
      .def("end_setup", &WorkerHandle::end_setup, collective(kEndSetup).c_str())
      .def("finalize", &WorkerHandle::finalize, kFinalize);
}

}  // namespace adaps::bindings
