"""State of a wrapped model's training: the step in progress, and the loops that provide its batches.

Model and loaders have no references to each other; both refer to the model's `TrainingState`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from autoada.parameters.remote_table import Reads, RemoteTable
from autoada.parameters.server_access import ServerAccess
from autoada.prediction.argument_recording import ArgumentRecorder
from autoada.prediction.row_set import Expected
from autoada.prediction.source_location import source_line
from autoada.training.lookahead_by_row import RowLookahead

_REPEATED = 3
"""Number of steps with reads of a whole table after which this is reported."""

_log = logging.getLogger("autoada")


class CallObserver(Protocol):
    """Observes the calls of a model in training mode: the prefetch queue of the batch in use."""

    @property
    def recording(self) -> ArgumentRecorder | None:
        """Recording of the loop between the model's calls, if there is one."""

    def model_attached(self) -> None:
        """Continue at the model's clock, as the loops of this thread call the model."""

    def call_begins(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Observe a call before it runs; `target` is a method's or module's name, empty for the model."""

    def call_ends(self, output: Any, counts: bool) -> None:
        """Observe the end of a call; a helper that reads no rows does not count."""

    def mark_done(self, following: object) -> None:
        """End the use of the batch, as the loop requests another batch from the queue `following`."""


@dataclass(eq=False)
class ActiveLoops:
    """The loops of one thread that provide batches for calls of a model."""

    thread: int
    queues: list[CallObserver] = field(default_factory=list)
    in_use: CallObserver | None = None
    """Queue of the batch in use."""
    used_together: set[object] = field(default_factory=set)
    """Queues with batches that are used at the present clock."""


class TrainingState:
    """Data and transitions of a wrapped model's steps, for its calls and for the calling loops.

    Loops of several threads may run over loaders while several models are open. A model is attached to the
    loops of the thread that calls it, from the first call until these loops are over; they advance its clock.
    """

    def __init__(
        self,
        module: nn.Module,
        access: ServerAccess,
        tables: Mapping[str, RemoteTable],
        reads: Reads,
        lookaheads: Mapping[str, RowLookahead],
    ) -> None:
        self.lookaheads = {name: lookaheads[name] for name in tables if name in lookaheads}
        self.module = module
        self.access = access
        self.worker = access.worker
        self.tables = tables
        self.reads = reads
        """Reads of the tables by the calls for the batch in use."""
        self.calls = 0
        """Number of calls in training mode for the batch in use, with the current call."""
        self.expected_calls = 1
        self.first_target = ""
        """Target of the first of these calls: a dotted name, or empty for the model itself."""
        self.replay: AbstractContextManager[Any] | None = None
        """Context of the expected calls, which records values for predictions, if there are predictions."""
        self.closed = False
        self.thread = threading.get_ident()
        """Thread that made the model."""
        self.owner: ActiveLoops | None = None
        """Loops to which the model is attached."""
        self._attached_once = False
        self._first_clock = int(self.worker.current_clock)
        self._loops: dict[int, ActiveLoops] = {}
        self._compared_data = False
        self._read_by_loop: Counter[str] = Counter()
        self._expects = False

    # Calls

    def begin_call(self, training: bool) -> CallObserver | None:
        """Begin a call by the present thread; return its observer.

        In training mode the model is attached to the loops of the thread. If no loop runs in this thread, a
        separate thread may make the batches.
        """
        if not self._loops:
            return None
        loops = self._loops.get(threading.get_ident()) or self.owner
        if loops is None and len(self._loops) == 1:
            (loops,) = self._loops.values()
        if training and loops is not None and loops is not self.owner:
            self.attach(loops)
        return None if loops is None else loops.in_use

    # Loops

    @property
    def looped(self) -> bool:
        """Whether the model was ever called by a loader's loop, or by one that advances the clock by hand."""
        return self._attached_once or int(self.worker.current_clock) != self._first_clock

    @property
    def is_free(self) -> bool:
        """Whether the model is attached to no loop of another thread."""
        return self.owner is None or self.owner.thread == threading.get_ident()

    def enter(self, queue: CallObserver) -> ActiveLoops:
        """Add a queue to the loops of this thread, and return these."""
        thread = threading.get_ident()
        loops = self._loops.setdefault(thread, ActiveLoops(thread))
        loops.queues.append(queue)
        return loops

    def leave(self, loops: ActiveLoops, queue: CallObserver) -> None:
        """Remove a queue; with the last one the model is detached."""
        if queue in loops.queues:
            loops.queues.remove(queue)
        if not loops.queues and self._loops.get(loops.thread) is loops:
            del self._loops[loops.thread]
            if self.owner is loops:
                self.owner = None

    def attach(self, loops: ActiveLoops) -> None:
        """Attach the model to loops that call it.

        Raises
        ------
        RuntimeError
            If the model is attached to loops of another thread.
        """
        if self.owner is not None:
            raise RuntimeError(
                "loops of two threads call the same model: wrap one for each thread, with a worker of its "
                "own, as in AdaModel(model, node=node, worker=1) with node = create_node(model, workers=2)"
            )
        self.owner = loops
        self._attached_once = True
        self.expect(None)
        for queue in list(loops.queues):
            queue.model_attached()

    def expect(self, expected: Expected | None) -> None:
        """Set the rows that the following forward passes in training mode will read."""
        self.calls = 0
        self.reads.begin_batch()
        if expected is not None or self._expects:
            self._expects = expected is not None
            self.expected_calls = 1 if expected is None else expected.calls
            self.replay = None if expected is None else expected.around
            for name, table in self.tables.items():
                table.expect(None if expected is None else expected.rows.get(name))

    # Intent and clock

    def keys_of(self, table: str, ids: Tensor) -> Tensor:
        """The server's keys of rows of a table, given by the parameter's qualified name."""
        return self.tables[table].keys(ids)

    def keys_by_lookahead(self, table: str, keys: Tensor) -> list[tuple[int | None, Tensor]]:
        """Split the keys of a table by lookahead; None: the lookahead of the loop that signals intent."""
        own = self.lookaheads.get(table)
        if own is None:
            return [(None, keys)]
        if len(own.batches) == 1:
            return [(ahead, keys) for ahead in own.distances]
        rows = keys - self.tables[table].first_key
        return [(ahead, keys[own.select(rows, ahead)]) for ahead in own.distances]

    def advance_clock(self) -> None:
        """End a step."""
        if self.reads.pulled_at:
            self._note_loop_reads()
        self.worker.advance_clock()

    def _note_loop_reads(self) -> None:
        """Report once that the loop reads a whole table in every step, including remote rows."""
        pulled, self.reads.pulled_at = self.reads.pulled_at, {}
        for name, where in pulled.items():
            self._read_by_loop[name] += 1
            if self._read_by_loop[name] == _REPEATED and self.access.node.world_size > 1:
                _log.warning(
                    "all of %r is fetched from the other nodes again and again, as the loop reads it outside "
                    "of the model's calls, at %s%s: compute this in forward, where rows are announced ahead, "
                    "or only for the rows of the batch, or not in every step",
                    name,
                    where,
                    source_line(where),
                )

    # Data

    def begins_data(self) -> bool:
        """Whether there are other workers and this one uses its first batch; true once."""
        compared, self._compared_data = self._compared_data, True
        return not compared and self.access.num_workers > 1
