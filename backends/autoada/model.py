"""Any PyTorch model with its parameters in the parameter server."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import adaps
from adaps.optimizers import Optimizer as Rule
from autoada.access.tables import hidden_tables
from autoada.adoption import optimizers_of, register, release, tell
from autoada.calls import Calls, DirectCalls, is_method, method
from autoada.checkpoint import WorkerState
from autoada.dense import DenseParameters
from autoada.freshness import STALENESS, Freshness
from autoada.guard import ONE_PROCESS, PARALLEL, refuse_new_parameters
from autoada.layout import layout_of
from autoada.optimizers import Optimizers, listed
from autoada.parameter import TableParameter, check_replaceable, replace_parameters
from autoada.rows import Expected
from autoada.schedules import Schedules
from autoada.shared import SharedParameters
from autoada.state import load_all_but_tables, state_of
from autoada.step import NO_REPLAY, CallListener, Step, push_at_step
from autoada.table import Read, RemoteTable
from autoada.transfer import Transfer

if TYPE_CHECKING:
    from autoada.dataloader import AdaDataLoader

FOREVER = 2**40
"""A clock that no training reaches."""

_log = logging.getLogger("autoada")
_made = threading.local()
_everywhere: weakref.WeakSet[AdaModel] = weakref.WeakSet()


class AdaModel(nn.Module):
    """Wraps a model so that it trains on the parameter server; its forward and its loop stay as they are.

    A call of the model is a call of the wrapper, of any of the model's methods through it, as in
    ``model.calculate_loss(batch)``, of the model itself, or of a module that was reached through the wrapper,
    as in ``model.encoder(x)``.

    Embedding weights become tables of the server, of which a forward pass pulls the rows that it reads; all
    other parameters become views of one flat buffer. Buffers, such as BatchNorm's statistics, stay on each
    worker, as in DistributedDataParallel with ``broadcast_buffers=False``. In evaluation mode rows are
    pulled on demand and nothing is pushed: rows that ``max_norm`` shortens are so for the model only, until
    it reads them in training mode.

    Parameters
    ----------
    model : nn.Module
        On the CPU or a CUDA device, where rows and dense parameters arrive; tables may stay on the CPU. Rank
        0's weights are kept. The model itself is changed: it is now the wrapped one. Parameters of float64,
        float16 and bfloat16 are float32 in the server and cast where the model reads them.
    optimizer : torch.optim.Optimizer, sequence of them, or rule such as `adaps.Adagrad`, optional
        Together they have all of the model's parameters. A ``step()`` pushes the gradients of its optimizer's
        parameters. The server applies SGD, Adagrad, Adam, AdamW, SparseAdam and RMSprop itself, each worker's
        gradient as a step of its own, and takes over what schedulers change. Any other optimizer, and these
        with options that the server does not have, such as AMSGrad, can have parameters that are no tables:
        at its ``step()`` every worker waits for those of all others, the gradients of all workers are summed
        up, and the optimizer itself steps with the sums, on each worker from the same parameters and state.
        A rule is applied at the end of every backward pass. By default the optimizers that hold the model's
        parameters are found and used; if there are none, it is `adaps.Adagrad` with learning rate 0.01, which
        is said once. An optimizer that is made afterwards refuses to step.
    node : adaps.Node, optional
        The node, if several worker threads share one (`create_node`); by default the model makes its own.
    worker : int
        Number of this worker thread.
    tables : iterable of str, optional
        Qualified names of parameters that are tables although no embedding module owns them.
    staleness : int
        In steps, 1 or more. What any worker pushed and the server had so many steps of this worker ago is in
        what this worker reads, and what this worker pushed then is at the server. A small limit costs waiting
        and a large one freshness: momentum in particular oscillates where gradients come late.

    Raises
    ------
    ValueError
        If a parameter is neither float32, float64, float16 nor bfloat16, parameters are on several devices,
        an optimizer of a table has no rule in the server, two optimizers hold the same parameter, or the
        model is or holds an `AdaModel`.

    Notes
    -----
    What torch's dense optimizers do to rows in steps in which they have no gradient (by momentum, by weight
    decay, by averages that forget), a single worker does when they are next read; only the moments of Adam
    without weight decay, and of AdamW, change with gradients alone, as with `torch.optim.SparseAdam`. Among
    several workers a row changes only with a gradient.

    Making one is collective: every worker of every node has to do it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | Rule | None = None,
        *,
        node: adaps.Node | None = None,
        worker: int = 0,
        tables: Iterable[str] | None = None,
        staleness: int = STALENESS,
    ) -> None:
        super().__init__()
        optimizer = optimizers_of(model, optimizer)
        layout = layout_of(model, optimizer, tables)
        for name, module in model.named_modules():
            if isinstance(module, PARALLEL):
                raise ValueError(
                    f"the model is or holds a {type(module).__name__}: give AdaModel the model in it, as the "
                    "parameter server shares its parameters between processes"
                )
            if isinstance(module, AdaModel):
                raise ValueError(
                    f"the model is wrapped already: {f'its module {name!r}' if name else 'it'} is an AdaModel"
                )
        check_replaceable(layout.tables)
        self._owns_node = node is None
        self.node = adaps.Node(layout.server_tables()) if node is None else node
        self.worker = self.node.worker(worker)
        self._freshness = Freshness(self.worker, staleness, alone=self.node.world_size == 1)
        self._number = worker
        self._leads = self.node.rank == 0 and worker == 0
        self._layout = layout
        self.transfer = Transfer(layout.device)
        self._immediate = not listed(optimizer)
        if self._leads:
            tell(model, optimizer)
            for name, remedy in hidden_tables(model, layout.tables).items():
                _log.warning("all of %r travels in every step, as it is no table; %s", name, remedy)
        self.closed = False
        self._step = Step()
        self._schedules = Schedules(
            layout.groups, layout.rules, {name: self.node.table(name) for name in layout.rules}
        )
        self.reads: list[Read] = []
        """What the expected forward passes read since `expect`, in order."""
        self._tables = self._make_tables()
        self._dense = self._make_dense(model)
        self._shared = self._make_shared(model)
        parts: dict[str, RemoteTable | DenseParameters | SharedParameters] = {
            **self._tables,
            **self._dense,
            **self._shared,
        }
        self._parts = [(layout.groups[layout.rules[name]].optimizer, part) for name, part in parts.items()]
        self._initialise()
        replace_parameters(layout.tables, self._tables)
        refuse_new_parameters(model, self)
        self._calls = Calls(self._step, self._tables.values(), self.reads, self._refresh)
        self._followed = {"": DirectCalls(self._calls, "", model)}
        self.module = model
        if self._immediate:
            self._push_after_backward(model)
        named = dict(model.named_parameters())
        own = {id(named[name]) for shared in layout.shared for name in shared.names}
        for each in listed(optimizer):
            push_at_step(each, lambda parameter: id(parameter) in own, self.push)
        register(model, listed(optimizer))
        _remember(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's forward."""
        return self._calls.run("", self.module, self.training, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
        value = getattr(self.module, name)
        if is_method(value, self.module):
            return method(self._calls, name, value, lambda: self.training)
        if isinstance(value, nn.Module):
            self._follow(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__.get("_modules", {}).get("module")
        if module is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """To the wrapped model."""
        self.module.add_module(name, module)

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """To the wrapped model."""
        self.module.register_module(name, module)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """To the wrapped model."""
        self.module.register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """To the wrapped model."""
        self.module.register_buffer(name, tensor, persistent)

    def push(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Hand gradients over: all, which the next call sees the effect of, or those of `optimizer`."""
        with torch._C.DisableTorchFunction():  # no part of what the loop does with its batch
            self._push(optimizer)

    def _push(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._step.push_queued = False
        self._calls.stepping()
        self._schedules.follow()
        parts = [part for owner, part in self._parts if optimizer is None or owner is optimizer]
        for part in parts:
            part.collect()
        self.transfer.finish()
        for part in parts:
            part.push()
        if optimizer is not None:
            for part in parts:
                if isinstance(part, DenseParameters):
                    part.follow_step()
        self._step.stale = self.shares > 1 or optimizer is None
        self._freshness.step()

    @property
    def calls(self) -> int:
        """Calls in training mode since `expect` that came to their end."""
        return self._step.calls

    @property
    def first_target(self) -> str:
        """What the first of these calls called: a method or module by its dotted name, or the model."""
        return self._step.first_target

    def listen(self, listener: CallListener | None) -> None:
        """Have `listener` told about the calls in training mode that follow."""
        self._step.listener = listener

    def turn(self, loader: object, end: Callable[[object], None] | None) -> None:
        """Another batch of `loader` is about to be used, if `end` is given, which ends its use.

        The one before is done. Loaders that alternate end each other's batches: `end` is given the loader
        whose turn comes.
        """
        step = self._step
        before, step.end_turn = step.end_turn, None
        if before is not None:
            before(loader)
        step.end_turn = end
        if end is not None:
            step.loaders.add(loader)

    def end_clock(self, calls: int, loader: object) -> None:
        """The batch in use, with which the model was called `calls` times, is done; the turn is `loader`'s.

        What several loaders give before the model is called is used together, at one clock.
        """
        step = self._step
        if calls > 0 or loader in step.loaders:
            step.loaders.clear()
            self.worker.advance_clock()

    def end_loop(self) -> None:
        """The loop has ended in the middle of a batch."""
        self._step.end_turn = None
        self._step.loaders.clear()

    @property
    def loaders(self) -> int:
        """How many loaders gave batches that are used at this clock."""
        return len(self._step.loaders)

    def expect(self, expected: Expected | None) -> None:
        """Say what the forward passes in training mode that follow will read: `expected`."""
        self._calls.next_batch()
        step = self._step
        step.calls = 0
        step.expected_calls = 1 if expected is None else expected.calls
        step.replay = NO_REPLAY if expected is None else expected.around
        self.reads.clear()
        for name, table in self._tables.items():
            table.expect(None if expected is None else expected.rows.get(name))

    def keys_of(self, table: str, ids: Tensor) -> Tensor:
        """The server's keys of rows of a table: int64, of the shape of `ids`.

        Parameters
        ----------
        table : str
            The parameter's qualified name.
        ids : Tensor
            Row ids, int64, on the CPU; duplicates stay.
        """
        return self._tables[table].keys(ids)

    @property
    def tables(self) -> dict[str, RemoteTable]:
        """The tables by the parameters' qualified names."""
        return self._tables

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped model's own state; it loads into the plain model.

        Tables are gathered from all nodes, into host memory.
        """
        self._refresh()
        return state_of(self.module, *args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the state of a plain or a wrapped model. Collective; the state of rank 0 counts."""
        del assign  # the parameters' memory is the server's
        loaded, tables = load_all_but_tables(self.module, state_dict, strict)
        self.worker.begin_setup()
        if self._leads:
            for table, values in tables:
                table.write(values)
            for dense in self._dense.values():
                dense.initialise()
        self.worker.end_setup()
        for shared in self._shared.values():
            shared.begin()
        self._pull()
        return loaded

    def checkpoint(
        self,
        directory: str | os.PathLike[str],
        loader: AdaDataLoader | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Collective: write to files all that `restore` needs to go on with the training.

        That is: all parameters and the optimizers' states, of all nodes; of each worker its buffers, learning
        rates and random generators, where it is in its data, and what it adds. Call it between two steps. A
        failure at any moment leaves the previous checkpoint of the directory as it is.

        Parameters
        ----------
        directory : path
            On a file system that all nodes share; see `adaps.Node.checkpoint`.
        loader : AdaDataLoader, optional
            Whose position is kept: batches that the loop got, the present one included, are not used again.
        extra : mapping of str to NumPy array or JSON value, optional
            What `restore` gives back to this worker, for instance a scheduler's state.

        Raises
        ------
        adaps.CheckpointError
            On every worker, if anything could not be written.
        """
        for table in self._tables.values():
            table.catch_up()
        for dense in self._dense.values():
            dense.keep_changes()
        kept = self._own_state().take(loader, extra)
        self.node.checkpoint(directory, worker=self._number, extra=kept)

    def restore(
        self, directory: str | os.PathLike[str], loader: AdaDataLoader | None = None
    ) -> dict[str, Any]:
        """Collective: go on from a checkpoint of this model; gives the `extra` of this worker.

        The number of nodes and workers may be another one. Then buffers and `extra` are those of the first
        worker, each loader skips the same share of its pass, and random generators stay as they are.

        A loader skips batches by fetching them; the generators are set so that it makes the same ones. What
        a data set draws from the global generators for each item, in the process of the training, is not
        made anew.

        Parameters
        ----------
        directory : path
            As it was given to `checkpoint`.
        loader : AdaDataLoader, optional
            Goes on behind the last batch that the checkpointed loop got.

        Raises
        ------
        adaps.CheckpointError
            On every worker, if there is no complete checkpoint or it does not fit; nothing is changed then.
        """
        restored = self.node.restore(directory, worker=self._number)
        extra = self._own_state().put(restored, loader, self.shares)
        self._schedules.restored()
        for table in self._tables.values():
            table.resume(restored.same_workers)
        self._pull()
        return extra

    def begins_data(self) -> bool:
        """Whether other workers train, too, and this one has not used any batch before; once."""
        began, self._step.data_began = self._step.data_began, True
        return not began and self.shares > 1

    def count_shared(self) -> int:
        """The number of another loader whose data all workers share."""
        self._step.loaders_shared += 1
        return self._step.loaders_shared

    @property
    def share(self) -> int:
        """The number of this worker among all that train together."""
        return self.node.rank * self.node.workers + self._number

    @property
    def shares(self) -> int:
        """How many workers train together."""
        return self.node.world_size * self.node.workers

    def _own_state(self) -> WorkerState:
        return WorkerState(
            self.module, self._layout.groups, self._tables.values(), self._shared.values(), self.transfer
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaModel:
        """What ``to()``, ``cuda()``, ``double()`` and their like do."""
        here = torch.empty(0, device=self.transfer.device)
        there = fn(here)
        if (there.device, there.dtype) != (here.device, here.dtype):
            raise RuntimeError(
                f"a wrapped model stays {here.dtype} on {here.device}: move it before AdaModel wraps it"
            )
        return self

    def close(self) -> None:
        """Collective: end this worker's part, and the node if the model made it."""
        self.closed = True
        release(self.module)
        self.worker.finalize()
        if self._owns_node:
            self.node.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("a wrapped model is in the parameter server: copy autoada.unwrap(model) instead")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a wrapped model is in the parameter server: "
            "save model.state_dict() or autoada.unwrap(model) instead"
        )

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> Any:
        raise TypeError(ONE_PROCESS)  # it is what DistributedDataParallel asks for first

    def _follow(self, name: str, module: nn.Module) -> None:
        """Have the loop's own calls of one of the model's modules, or of those in a list, be calls."""
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            for key, each in module.named_children():
                self._follow(f"{name}.{key}", each)
        elif name not in self._followed:
            self._followed[name] = DirectCalls(self._calls, name, module)

    def _make_tables(self) -> dict[str, RemoteTable]:
        return {
            name: RemoteTable(
                name,
                parameter.shape,
                self.worker,
                self.node.table(name),
                self.transfer,
                self.reads,
                self._gradient_arrived,
                self.shares == 1 and self._rule_of(name).moves_idle_rows,
                parameter.dtype,
            )
            for name, parameter in self._layout.tables.items()
        }

    def _make_dense(self, model: nn.Module) -> dict[str, DenseParameters]:
        parameters = dict(model.named_parameters())
        return {
            dense.table: DenseParameters(
                dense, parameters, self.worker, self.node.table(dense.table), self.transfer, self.shares > 1
            )
            for dense in self._layout.dense
        }

    def _make_shared(self, model: nn.Module) -> dict[str, SharedParameters]:
        parameters = dict(model.named_parameters())
        result = {}
        for shared in self._layout.shared:
            optimizer = self._layout.groups[self._layout.rules[shared.table]].optimizer
            assert optimizer is not None
            result[shared.table] = SharedParameters(
                shared,
                parameters,
                self.worker,
                self.node.table(shared.table),
                self.transfer,
                optimizer,
                self._leads,
            )
        return result

    def _rule_of(self, table: str) -> Any:
        return self._layout.groups[self._layout.rules[table]].rule_of(table).rule()

    def _initialise(self) -> None:
        """Rank 0's weights become the server's."""
        self.worker.begin_setup()
        if self._leads:
            for name, parameter in self._layout.tables.items():
                if not parameter.is_meta:
                    self._tables[name].write(parameter)
            for dense in self._dense.values():
                dense.initialise()
        self.worker.end_setup()
        for shared in self._shared.values():
            shared.begin()
        for dense in self._dense.values():  # every worker needs them in every step
            self.worker.intent(dense.keys, self.worker.current_clock, FOREVER)
        self._pull()

    def _refresh(self) -> None:
        for dense in self._dense.values():
            dense.keep_changes()
        self._pull()

    def _pull(self) -> None:
        for dense in self._dense.values():
            dense.pull()
        self._step.stale = False

    def _push_after_backward(self, model: nn.Module) -> None:
        def arrived(parameter: Tensor) -> None:
            if self.training:
                self._gradient_arrived()
            else:
                parameter.grad = None

        for parameter in model.parameters():
            if not isinstance(parameter, TableParameter) and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(arrived)

    def _gradient_arrived(self) -> None:
        if self._immediate and not self._step.push_queued:
            self._step.push_queued = True
            # runs when the whole backward pass is over: a row's gradients have to be complete
            torch.autograd.Variable._execution_engine.queue_callback(self.push)


def _remember(model: AdaModel) -> None:
    _everywhere.add(model)
    _made.models = [*(reference for reference in _of_thread() if reference() is not None), weakref.ref(model)]


def _of_thread() -> list[weakref.ref[AdaModel]]:
    made: list[weakref.ref[AdaModel]] = getattr(_made, "models", [])
    return made


def current_models() -> list[AdaModel]:
    """The `AdaModel`s that this thread made and that are not closed, the last one first.

    For a thread that made none it is the one that others made.

    Raises
    ------
    RuntimeError
        If there is none, or others made several.
    """
    here = [model for model in (reference() for reference in _of_thread()) if model is not None]
    own = [model for model in reversed(here) if not (model.closed or model.node.closed)]
    others = [model for model in list(_everywhere) if not (model.closed or model.node.closed)]
    if own or len(others) == 1:
        return own or others
    if others:
        raise RuntimeError(
            f"this thread made no AdaModel, and others made {len(others)}: say which one reads, as in "
            "AdaDataLoader(loader, model=model)"
        )
    if here:
        return here[-1:]
    raise RuntimeError("there is no AdaModel to announce rows for: make AdaModel(model) before iterating")
