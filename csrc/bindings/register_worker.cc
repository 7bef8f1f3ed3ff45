#include <pybind11/stl.h>

#include "register.h"
#include "worker_handle.h"

namespace adaps::bindings {

namespace {

constexpr char kWorker[] = R"(The calls of one worker thread on its node; `adaps.Node.worker` gives it.

A worker belongs to one thread at a time: a call while another thread is in one raises `AdapsError`. All
workers of a node share its rows. Calls release the GIL while they work or wait, and Ctrl-C ends one that
waits.

Notes
-----
**Keys** are an int64 array or CPU tensor, C-contiguous and of any shape, or a list, tuple or range of
integers. Each is in ``[0, num_keys)``, and keys of several tables may be mixed. Duplicates are allowed, and
behave as if they were given one after the other.

**Values** are a float32 array or CPU tensor, C-contiguous: the rows of the keys one after the other, so its
size is the sum of their lengths, ``(len(keys), length)`` for keys of one table. They are not copied on the
way in.

**Asynchronous calls** return a ticket for `is_done` and `wait`, -1 if the call was complete at once. Keys may
be changed as soon as the call has returned, values not before it is complete.

**Order.** A worker reads what it wrote, and never an older value of a key than it has read before. One key of
one call is read or written as a whole; several keys are not. What other workers wrote is visible after
`wait_sync`, `barrier` and `wait_sync` on all of them.

**Errors.** Before anything is done, TypeError (dtype), ValueError (size, layout, device) or IndexError (a key
that does not exist) names the value. After the loss of a node every call that needs the cluster raises
`PeerLost`, and `AdapsError` if this node is closed or this worker finalized.)";

constexpr char kPull[] = R"(Write the values of the keys to `out`, one after the other.

Blocks until every row has been read: from this node's memory if it owns the row or holds a replica, else by
a message to the owner.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What to read; duplicates are each written.
out : float32 array or CPU tensor
    Gets the rows in the order of the keys. It must be writable.
asynchronous : bool
    Return at once; `out` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; `out` is unchanged.
TypeError, ValueError
    If an array has another dtype, size or layout, is read-only or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPush[] = R"(Add a delta to the value of each key.

Blocks until each delta is in the row at its owner, or in a replica here, whose changes the next exchange
brings to the owner.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What to change; the deltas of duplicates add up.
deltas : float32 array or CPU tensor
    One row per key.
asynchronous : bool
    Return at once; `deltas` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; nothing is added.
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPushGradients[] = R"(Update the value of each key by its table's optimizer.

Blocks until each gradient is applied at the row's owner, or to a replica here, whose change the next exchange
brings to the owner.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What to update. Duplicates are steps of their own, one after the other: sum their gradients up first, as
    `deduplicate` helps to do, where torch's sparse gradients are the model.
gradients : float32 array or CPU tensor
    One row per key.
asynchronous : bool
    Return at once; `gradients` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; nothing is applied.
ValueError
    If a gradient holds NaN or infinity and the node has ``nonfinite="raise"``, naming table and row; or for
    an array of another size or layout. Nothing is applied.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kSet[] = R"(Overwrite the value of each key; the optimizer's state stays.

Blocks until every value is at its owner, where it is ordered like any other update.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What to write; the last of several duplicates counts.
values : float32 array or CPU tensor
    One row per key.
asynchronous : bool
    Return at once; `values` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; nothing is written.
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPullState[] = R"(Write the optimizer states of the keys to `out`, one after the other.

Blocks until every state has been read from the row's owner, whose state includes what this node pushed before.
A state is one row of float32 numbers, of `NodeTable.state_length`. Its parts are those of `torch.optim`, one
after the other: ``momentum_buffer`` of SGD; ``sum`` of Adagrad; ``exp_avg`` and ``exp_avg_sq`` of Adam;
``square_avg``, ``momentum_buffer`` and ``grad_avg`` of RMSprop, as far as the rule has them. Each is as long as the
value. The last number is then the step that changed the row last, if steps are numbered by `NodeTable.set_step`,
or the number of gradients that Adam has applied; Adagrad and SGD without momentum have it if there is weight
decay. `RowAdagrad` has its one accumulator.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Rows whose state is read; duplicates are each written.
out : float32 array or CPU tensor
    Gets the states in the order of the keys. It must be writable.
asynchronous : bool
    Return at once; `out` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; `out` is unchanged.
TypeError, ValueError
    If an array has another dtype, size or layout, is read-only or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kSetState[] = R"(Overwrite the optimizer state of each key; its value stays.

Blocks until every state is at the row's owner, where it is ordered like any other update.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Rows whose state is written; the last of several duplicates counts.
states : float32 array or CPU tensor
    One state per key, as `pull_state` gives it.
asynchronous : bool
    Return at once; `states` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
IndexError
    Naming the first key that does not exist; nothing is written.
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kChanged[] =
    R"(Whether a pull may give other values than one did after the last look at these keys.

Never blocks, sends nothing, and reads no row; for rows that are read again and again though they change
seldom. ``worker.changed(keys, seen); worker.pull(keys, out)`` reads them, and from then on ``if
worker.changed(keys, seen): worker.pull(keys, out)`` keeps `out` as if each pull were made.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What was pulled.
seen : int64 array or CPU tensor
    One number for each key, which stand for the rows that the last look found, and are replaced by those of
    this one: zeros at first, and nobody else's to write.

Returns
-------
bool
    False if a pull would give what one gave after the last look. True otherwise, but also if keys that are
    next to these were changed, or a row was only looked at to be sent, and always if a row is not here.

Raises
------
IndexError
    Naming the first key that does not exist.
TypeError, ValueError
    If an array has another dtype, size or layout, is read-only or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPullRows[] = R"(Read rows of a table by their ids, and write down their keys.

As ``keys[:] = table.keys(ids)``, then ``table.catch_up(keys)`` if `idle_rows` says so, then
``pull(keys, out)``.

Parameters
----------
table : NodeTable
    Whose rows they are; of this worker's node.
ids : int64 array, CPU tensor or sequence of int
    Row ids; duplicates stay.
out : float32 array or CPU tensor
    Filled with one row per id.
keys : int64 array or CPU tensor
    Filled with one key per id. Nothing else may be done with it before the call returns.
idle_rows : bool
    Whether the rows make up for the steps that they missed before.

Raises
------
IndexError
    Naming the first row that does not exist; nothing is read.
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPushSums[] = R"(Update values by their tables' optimizers, each with the sum of its gradients.

As one `push_gradients` for each part, with the gradients of keys that occur several times added up before:
within each read in the order in which they are given, then the sums of the reads in turn. That is what
PyTorch's backward pass does with several embeddings of one weight.

Parameters
----------
parts : sequence of sequences of (keys, gradients, ignored)
    The reads of one table: keys and a float32 row for each, as for `push_gradients`. What is given for the key
    `ignored` counts as zeros; None ignores no key.

Raises
------
IndexError
    Naming the first key that does not exist; nothing of its part is applied.
ValueError
    If a sum holds NaN or infinity and the node has ``nonfinite="raise"``, keys of one part are of several
    tables, or an array has another size or layout. Nothing of the part is applied.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kStepRows[] =
    R"(Update rows whose values are kept outside, where nobody else is that could change them.

The rows get the values of the array, then the gradients are applied by the table's optimizer, and the array
gets the new values: what `set`, `push_gradients` and `pull` do one after the other, in one pass.

Parameters
----------
table : NodeTable
    Whose rows they are.
values : float32 array or CPU tensor
    Of all rows of the table; those with a gradient are changed.
parts : sequence of (row, gradient)
    The first row of each gradient, which fills that row and the following ones. The last of these it may fill
    in part: the rest of the row has the gradient 0.

Raises
------
AdapsError
    If the node has several workers or is one of several.
ValueError
    If a gradient holds NaN or infinity and the node has ``nonfinite="raise"``, or does not fit; then it is not
    applied.
TypeError
    If an array has another dtype.)";

constexpr char kStepCopies[] =
    R"(Update rows of which a copy is kept outside, where others change them, too.

What was written into the copy since the last pull is added to the rows, the gradients times `scale` are applied
by the table's optimizer, and the copy gets the new values: what `push`, `push_gradients`, `changed` and `pull`
do one after the other, in one pass over rows that are here. It blocks as these do, row by row for those that
are not.

Parameters
----------
table : NodeTable
    Whose rows they are; of this worker's node.
values : float32 array or CPU tensor
    Of all rows of the table; those with a gradient are changed.
pulled : float32 array or CPU tensor
    What `values` was after the last pull; it gets the new values, too.
seen : int64 array or CPU tensor
    A number for each row of the table, as for `changed`.
parts : sequence of (row, gradient)
    As for `step_rows`, best in the order of their rows.
scale : float
    By what gradients are multiplied.

Raises
------
ValueError
    If a gradient times `scale` holds NaN or infinity and the node has ``nonfinite="raise"``, or a gradient does
    not fit; then nothing is changed. Or for an array of another size.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kIntent[] = R"(Announce that this worker will access the keys in its clocks ``[start, end)``.

Never blocks for a message: the node's own threads bring the rows, and with ``timing`` not before `start` is
near. An intent counts while `current_clock` is below `end`. One whose `end` has been reached already has no
effect: ``stats()["intents_late"]`` counts its keys, and a warning says so once. It changes where rows are and
never what a call reads or writes. A key that no node announces stays with its owner, which is what a policy's
technique ``auto`` compares with.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What will be accessed; they are copied, and duplicates change nothing.
start : int
    The first clock of the access.
end : int, optional
    The first clock after it; ``start + 1`` by default.

Raises
------
IndexError
    Naming the first key that does not exist; nothing is announced.
ValueError
    If `end` is not above `start`, or `start` is beyond the last clock.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitIntent[] =
    R"(Block until keys that were announced for the current clock can be read without a message.

For the beginning of a loop: later batches are brought while others are in use. Keys that no intent brings
here are not waited for.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    What this worker announced for its current clock; duplicates change nothing.

Raises
------
IndexError
    Naming the first key that does not exist.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPrepareSample[] =
    R"(Announce that this worker will read a sample of a table's rows in its clocks ``[start, end)``.

Never blocks for a message. What it does depends on the scheme of the table's `Sampling`: ``preloc`` and
``pool`` draw the rows and signal intent for them, ``local`` and ``naive`` draw when the sample is read.

Parameters
----------
table : NodeTable
    Of this worker's node, made with `sampling`.
n : int
    How many rows.
start : int
    The first clock of the access.
end : int, optional
    The first clock after it; ``start + 1`` by default.

Returns
-------
int
    The sample's number, for one `pull_sample`. What it takes in memory is freed by that.

Raises
------
ValueError
    If the table has no `sampling`, no sample of `n` rows is possible, or the clocks are none.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kPullSample[] = R"(Write the rows of a prepared sample, and their values.

The values are read as `pull` reads them, and keep its promises. Rows are numbers within their table:
``table.keys(rows_out)`` are the keys to push gradients to.

Parameters
----------
sample : int
    What `prepare_sample` returned; each sample is read once.
rows_out : int64 array or CPU tensor
    Gets the `n` rows, in the order drawn. It must be writable.
values_out : float32 array or CPU tensor, optional
    Gets their values one after the other. Without it the rows are drawn, and nothing is read.
asynchronous : bool
    Return at once, with the rows; `values_out` must then stay as it is until the call is complete.

Returns
-------
int or None
    A ticket for `wait` if the call is asynchronous and reads values.

Raises
------
ValueError
    If there is no such sample, or it was read before; or for an array of another size or layout.
TypeError
    If an array has another dtype.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kAdvanceClock[] = R"(Add one to this worker's clock: a step of its training is done.

Never blocks. Intents whose `end` is the new clock are over, and those whose `start` is now near are acted on.
Other workers have clocks of their own.)";

constexpr char kCurrentClock[] = "int: This worker's clock: 0 at first, and more with each `advance_clock`.";

constexpr char kIsDone[] = R"(Whether an asynchronous call is complete; never blocks.

Parameters
----------
ticket : int
    What the call returned.

Raises
------
ValueError
    If this worker never issued the ticket.
PeerLost
    If the call is not complete, and a node of the cluster is lost.)";

constexpr char kWait[] = R"(Block until an asynchronous call is complete; at once if it was waited for before.

Parameters
----------
ticket : int
    What the call returned.

Raises
------
ValueError
    If this worker never issued the ticket.
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitAll[] = R"(Block until all asynchronous calls of this worker are complete.

Raises
------
PeerLost
    If a node of the cluster is lost.)";

constexpr char kWaitSync[] =
    R"(Block until this node's writes are applied, and what was applied before is visible here.

That is: everything that any worker of this node wrote before the call is applied at its owners, and
everything that was applied anywhere before the call is what this node reads. ``wait_sync(); barrier();
wait_sync()`` on all workers makes every write of each of them visible to all.

Parameters
----------
asynchronous : bool
    Return a ticket at once, which is complete when a blocking call would have returned.

Returns
-------
int or None
    A ticket if the call is asynchronous.

Raises
------
PeerLost
    If a node of the cluster is lost.)";

constexpr char kBarrier[] = R"(Collective: block until every worker of every node is here.

It orders no writes by itself: see `wait_sync`.

Raises
------
PeerLost
    If a node of the cluster is lost, or does not come within `stall_timeout`.)";

constexpr char kAgree[] = R"(Collective: a barrier that tells every worker whether all of them are well.

Parameters
----------
well : bool
    Whether this worker is.

Returns
-------
int or None
    The rank of a node with a worker that is not well, the same for all; None if all are well.

Raises
------
PeerLost
    If a node of the cluster is lost, or does not come within `stall_timeout`.)";

constexpr char kSkipToClock[] =
    R"(Go on from a later clock, as after a restore; an earlier one changes nothing.

Never blocks. The clocks in between do not count as time that passed, by which the node learns how fast this
worker's clock runs.

Parameters
----------
clock : int
    The new clock.

Raises
------
ValueError
    If it is beyond the last clock.)";

constexpr char kBeginSetup[] =
    R"(Collective: block until every worker is here, before the first values are set.

Raises
------
PeerLost
    If a node of the cluster is lost, or does not come within `stall_timeout`.)";

constexpr char kEndSetup[] =
    R"(Collective: block until every worker sees what any worker wrote before it called this.

Raises
------
PeerLost
    If a node of the cluster is lost, or does not come within `stall_timeout`.)";

constexpr char kFinalize[] = R"(End this worker's part in collective calls, which then do not wait for it.

Blocks until its asynchronous calls are complete. Closing the node does it, too; a second call does nothing,
and any other call raises `AdapsError` afterwards.

Raises
------
PeerLost
    If a node of the cluster is lost.)";

}  // namespace

void register_worker(py::module_& module) {
  py::class_<WorkerHandle, std::shared_ptr<WorkerHandle>>(module, "Worker", kWorker)
      .def("pull", &WorkerHandle::pull, py::arg("keys"), py::arg("out"), py::arg("asynchronous") = false,
           kPull)
      .def("push", &WorkerHandle::push, py::arg("keys"), py::arg("deltas"), py::arg("asynchronous") = false,
           kPush)
      .def("push_gradients", &WorkerHandle::push_gradients, py::arg("keys"), py::arg("gradients"),
           py::arg("asynchronous") = false, kPushGradients)
      .def("set", &WorkerHandle::set, py::arg("keys"), py::arg("values"), py::arg("asynchronous") = false,
           kSet)
      .def("pull_state", &WorkerHandle::pull_state, py::arg("keys"), py::arg("out"),
           py::arg("asynchronous") = false, kPullState)
      .def("set_state", &WorkerHandle::set_state, py::arg("keys"), py::arg("states"),
           py::arg("asynchronous") = false, kSetState)
      .def("changed", &WorkerHandle::changed, py::arg("keys"), py::arg("seen"), kChanged)
      .def("pull_rows", &WorkerHandle::pull_rows, py::arg("table"), py::arg("ids"), py::arg("out"),
           py::arg("keys"), py::arg("idle_rows") = false, kPullRows)
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
      .def_property_readonly("current_clock", &WorkerHandle::current_clock, kCurrentClock)
      .def("is_done", &WorkerHandle::is_done, py::arg("ticket"), kIsDone)
      .def("wait", &WorkerHandle::wait, py::arg("ticket"), kWait)
      .def("waitall", &WorkerHandle::waitall, kWaitAll)
      .def("wait_sync", &WorkerHandle::wait_sync, py::arg("asynchronous") = false, kWaitSync)
      .def("barrier", &WorkerHandle::barrier, kBarrier)
      .def("agree", &WorkerHandle::agree, py::arg("well"), kAgree)
      .def("skip_to_clock", &WorkerHandle::skip_to_clock, py::arg("clock"), kSkipToClock)
      .def("begin_setup", &WorkerHandle::begin_setup, kBeginSetup)
      .def("end_setup", &WorkerHandle::end_setup, kEndSetup)
      .def("finalize", &WorkerHandle::finalize, kFinalize);
}

}  // namespace adaps::bindings
