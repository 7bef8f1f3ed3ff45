"""The steps of a wrapped model: what its calls and the loops that call it have to agree about.

The model and its calls tell when a call begins and ends, loaders when a batch is handed out and done. Neither
knows the other; both know the `TrainingState` of the model.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType, MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import adaps
from autoada.parameters.device_copy import Transfer
from autoada.parameters.remote_table import Read, RemoteTable
from autoada.prediction.argument_recording import Recording
from autoada.prediction.row_set import Expected
from autoada.training.ab_schedule import AHEAD
from autoada.training.lookahead_by_row import RowLookahead
from autoada.training.technique_choice import TechniqueTrial

NO_REPLAY: AbstractContextManager[None] = nullcontext()
_AS_SIGNALLED: tuple[int | None, ...] = (None,)


class CallObserver(Protocol):
    """Follows the calls of a model in training mode."""

    @property
    def recording(self) -> Recording | None:
        """What follows the loop between calls."""
        ...

    def called(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The method or module `target`, a dotted name, or the model itself is about to run."""
        ...

    def left(self, output: Any, counts: bool) -> None:
        """It is over; was it a call of the model, which reads rows, or a mere helper?"""
        ...


@dataclass(frozen=True)
class WorkerIdentity:
    """One worker thread among all that train together.

    Attributes
    ----------
    node : adaps.Node
        Its node.
    worker : adaps.Worker
        Its calls.
    local_index : int
        Which of its node's workers it is.
    """

    node: adaps.Node
    worker: adaps.Worker
    local_index: int

    @property
    def worker_index(self) -> int:
        """Its number among all."""
        return self.node.rank * self.node.workers + self.local_index

    @property
    def num_workers(self) -> int:
        """How many there are."""
        return self.node.world_size * self.node.workers

    @property
    def is_primary(self) -> bool:
        """Whether its values are those that all begin with."""
        return self.worker_index == 0


class TrainingState:
    """Where each step of one wrapped model begins and ends, and whose batches its calls use.

    Loops of several threads may run over loaders while several models are open. A model's steps are those of
    the thread whose loop calls it, from the first call on until that thread's loops are over; to all other
    loops it does not matter.

    Parameters
    ----------
    module : nn.Module
        The wrapped model.
    identity : WorkerIdentity
        Who trains it.
    tables : mapping of str to RemoteTable
        Its tables, by the parameters' qualified names.
    reads : list of Read
        Where the tables write down what they read.
    transfer : Transfer
        To the model's device.
    lookaheads : mapping of str to RowLookahead
        Batches that are announced ahead, of tables that have lookaheads of their own.
    trial : TechniqueTrial, optional
        Of tables whose rows are announced only if that takes less time.

    Attributes
    ----------
    worker : adaps.Worker
        Whose clock counts the steps.
    calls, expected_calls : int
        Calls in training mode for the batch in use that have come to their end or go on, and how many it was
        expected to need.
    first_target : str
        What the first of them called: a dotted name, empty for the model itself.
    replay : context manager
        Lets the expected calls draw the random numbers that the prediction drew.
    closed : bool
        Whether the model is closed.
    end_calls : callable
        Called when this thread gets a batch: whatever asked for it is no call of the model.
    """

    def __init__(
        self,
        module: nn.Module,
        identity: WorkerIdentity,
        tables: Mapping[str, RemoteTable],
        reads: list[Read],
        transfer: Transfer,
        lookaheads: Mapping[str, RowLookahead] = MappingProxyType({}),
        trial: TechniqueTrial | None = None,
    ) -> None:
        self.lookaheads = {name: lookaheads[name] for name in tables if name in lookaheads}
        self.trial = trial
        self.module = module
        self.identity = identity
        self.worker = identity.worker
        self.tables = tables
        self.reads = reads
        self.transfer = transfer
        self.calls = 0
        self.expected_calls = 1
        self.first_target = ""
        self.replay: AbstractContextManager[Any] = NO_REPLAY
        self.closed = False
        self.end_calls: Callable[[], None] = _nothing
        self._loops: dict[int, ActiveLoops] = {}
        self._owner: ActiveLoops | None = None
        self._compared_data = False
        self._loaders_shared = 0
        self._idle = False  # tables expect nothing, and no call has been made since they were told

    # Of calls

    def begin_call(self, training: bool) -> CallObserver | None:
        """A call by the present thread begins; who follows it.

        In training mode the model's steps are those of the loops that run here.
        """
        loops = self._present_loops()
        if training:
            self._idle = False
            if loops is not None and loops is not self._owner:
                loops.join()
        return None if loops is None else loops.observer

    @property
    def observer(self) -> CallObserver | None:
        """Who follows the calls that the present thread makes."""
        loops = self._present_loops()
        return None if loops is None else loops.observer

    # Of loaders

    def loops_here(self) -> ActiveLoops:
        """The loops of this thread; a loop that has begun here enters them."""
        number = threading.get_ident()
        return self._loops.setdefault(number, ActiveLoops(self, number))

    @property
    def is_free(self) -> bool:
        """Whether no loop of another thread calls the model."""
        return self._owner is None or self._owner.thread == threading.get_ident()

    def expect(self, expected: Expected | None) -> None:
        """Say what the forward passes in training mode that follow will read: `expected`."""
        self.end_calls()
        self.calls = 0
        self.expected_calls = 1 if expected is None else expected.calls
        self.replay = NO_REPLAY if expected is None else expected.around
        self.reads.clear()
        if expected is None and self._idle:
            return
        self._idle = expected is None
        for name, table in self.tables.items():
            table.expect(None if expected is None else expected.rows.get(name))

    def keys_of(self, table: str, ids: Tensor) -> Tensor:
        """The server's keys of rows of a table, given by the parameter's qualified name."""
        return self.tables[table].keys(ids)

    def aheads(self, table: str) -> Sequence[int | None]:
        """How many batches ahead rows of a table are announced; None: as who signals intent says."""
        own = self.lookaheads.get(table)
        return _AS_SIGNALLED if own is None else own.announced

    def keys_ahead(self, table: str, keys: Tensor, ahead: int | None) -> Tensor:
        """Those of the keys of a table whose rows are announced so many batches ahead, one of `aheads`."""
        own = self.lookaheads.get(table)
        if own is None or len(own.batches) == 1:
            return keys
        return keys[own.select(keys - self.tables[table].first_key, ahead)]

    def is_due(self, table: str, clock: int, ahead: int | None) -> bool:
        """Whether rows of a table that are used at a clock are to be announced by now, if any are.

        `ahead` is how many batches before, at the most; None sets no limit.
        """
        distance = clock - int(self.worker.current_clock)
        trial = self.trial
        if trial is not None and table in trial:
            if not trial.moves(table, clock):
                return False
            if trial.is_open and distance > AHEAD:
                return False
        return ahead is None or distance <= ahead

    def begin_loop(self) -> None:
        """A loop begins: what was before it is no step."""
        if self.trial is not None:
            self.trial.begin(int(self.worker.current_clock))

    def advance_clock(self, known: bool = True) -> None:
        """A step is over; `known` says whether its rows could have been announced."""
        ended = int(self.worker.current_clock)
        self.worker.advance_clock()
        if self.trial is not None:
            self.trial.ended(ended, known)

    def begins_data(self) -> bool:
        """Whether other workers train, too, and this one has not used any batch before; once."""
        compared, self._compared_data = self._compared_data, True
        return not compared and self.identity.num_workers > 1

    def count_shared(self) -> int:
        """The number of another loader whose data all workers share."""
        self._loaders_shared += 1
        return self._loaders_shared

    def _present_loops(self) -> ActiveLoops | None:
        """The loops that a call by this thread belongs to.

        If none runs here, batches come from a thread of their own.
        """
        if not self._loops:
            return None
        loops = self._loops.get(threading.get_ident()) or self._owner
        if loops is None and len(self._loops) == 1:
            (loops,) = self._loops.values()
        return loops


@dataclass(eq=False)
class ActiveLoops:
    """The loops of one thread whose batches one model may be called with.

    Attributes
    ----------
    state : TrainingState
        The model's.
    thread : int
        The thread's number.
    observer : CallObserver or None
        Who is told about calls.
    loaders : set of object
        Whose batches are used at this clock.
    """

    state: TrainingState
    thread: int
    observer: CallObserver | None = None
    loaders: set[object] = field(default_factory=set)
    _running: dict[object, Callable[[], None]] = field(default_factory=dict)
    _end_use: Callable[[object], None] | None = None

    @property
    def joined(self) -> bool:
        """Whether the model's steps are those of these loops."""
        return self.state._owner is self

    def enter(self, loader: object, joined: Callable[[], None]) -> None:
        """A loop over `loader` begins; `joined` is called when the model turns out to be called by it."""
        self._running[loader] = joined

    def join(self) -> None:
        """These loops call the model.

        Raises
        ------
        RuntimeError
            If loops of another thread do so at the same time.
        """
        if self.joined:
            return
        if self.state._owner is not None:
            raise RuntimeError(
                "loops of two threads call the same model: wrap one for each thread, with a worker of its "
                "own, as in AdaModel(model, node=node, worker=1) with node = create_node(model, workers=2)"
            )
        self.state._owner = self
        self.state.expect(None)
        for joined in list(self._running.values()):
            joined()

    def leave(self, loader: object) -> None:
        """The loop over `loader` is over."""
        self._running.pop(loader, None)
        state = self.state
        if not self._running and state._loops.get(self.thread) is self:
            del state._loops[self.thread]
            if self.joined:
                state._owner = None

    def listen(self, observer: CallObserver) -> None:
        """Have `observer` told about the calls in training mode that follow."""
        self.observer = observer

    def stop_listening(self, observer: CallObserver) -> None:
        """Tell `observer` no more."""
        if self.observer is observer:
            self.observer = None

    def end_use(self, loader: object) -> None:
        """The loop comes for a batch of `loader`: it is done with the one that it got before."""
        end, self._end_use = self._end_use, None
        if end is not None:
            end(loader)

    def begin_use(self, loader: object, expected: Expected | None, end: Callable[[object], None]) -> None:
        """A batch of `loader` is about to be used; ``end(loader)`` will end its use.

        Loaders that alternate end each other's batches: `end` is given the loader whose turn comes.
        """
        self.end_use(loader)
        self._end_use = end
        self.loaders.add(loader)
        if self.joined:
            self.state.expect(expected)
        else:
            self.state.end_calls()

    def used(self, calls: int, loader: object, known: bool) -> None:
        """The batch in use, with which the model was called `calls` times, is done; `loader` gives the next.

        What several loaders give before the model is called is used together, at one clock. `known` says
        whether the rows of this batch could be announced.
        """
        self._expect(None)
        if calls > 0 or loader in self.loaders:
            self.loaders.clear()
            if self.joined:
                self.state.advance_clock(known)

    def abandon_use(self) -> None:
        """The loop has ended, maybe in the middle of a batch."""
        self._end_use = None
        self.loaders.clear()
        self._expect(None)

    def _expect(self, expected: Expected | None) -> None:
        if self.joined:
            self.state.expect(expected)


def push_at_step(
    optimizer: torch.optim.Optimizer,
    in_server: Container[int],
    push: Callable[[torch.optim.Optimizer], None],
) -> None:
    """Let ``optimizer.step()`` push; torch's own step then finds no gradient and does nothing.

    `in_server` has the identities of those parameters of which this holds; others stay the optimizer's own.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in in_server:
                optimizer.state.pop(parameter, None)  # the state is the server's now

    def before_step(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first one is the optimizer
            raise ValueError(
                "optimizer.step() takes no closure on the parameter server: call it after loss.backward()"
            )
        push(optimizer)

    optimizer.register_step_pre_hook(before_step)
    known = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    pushes_all = all(id(parameter) in in_server for parameter in known)
    if pushes_all and "step" not in vars(optimizer):  # where a scheduler watches it, it stays
        optimizer.step = MethodType(_step_of(type(optimizer), known, before_step), optimizer)  # type: ignore[method-assign]


def _step_of(
    kind: type[torch.optim.Optimizer], known: list[nn.Parameter], hook: Callable[..., None]
) -> Callable[..., Any]:
    """`kind`'s ``step``, of which only `hook` is left if nobody else follows it.

    The gradients of all parameters, those in `known`, are handed over then, and torch would spend as much
    time as a step of a small model takes on finding that none is left.
    """

    @functools.wraps(kind.step)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        present = [parameter for group in self.param_groups for parameter in group["params"]]
        followed = (
            len(present) != len(known)
            or not all(map(operator.is_, present, known))
            or len(self._optimizer_step_pre_hooks) + len(_global_optimizer_pre_hooks) > 2
            or self._optimizer_step_post_hooks
            or _global_optimizer_post_hooks
            or torch.autograd.profiler._is_profiler_enabled
        )
        return kind.step(self, *args, **kwargs) if followed else hook(self, (self, *args), kwargs)

    return step


def _nothing() -> None:
    pass
