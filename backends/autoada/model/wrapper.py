"""Wrapper of a PyTorch model whose parameters are in the parameter server."""

from __future__ import annotations

import copy
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import adaps
from adaps.optimizers import Optimizer as Rule
from autoada.model.call_interception import Calls, without_hooks
from autoada.model.checkpoint import WorkerState
from autoada.model.forwarding import ForwardingModule, class_for, names_of_both
from autoada.model.node_setup import open_node, plan_of, plan_on_node
from autoada.model.optimizer_lookup import optimizers_of, register, release, warn_of_differences
from autoada.model.staleness import StalenessLimit, SynchronousSteps, check_limit
from autoada.model.state_dict import state_of
from autoada.model.step_hook import push_at_step
from autoada.model.wrapped_parameters import WrappedParameters
from autoada.optimizer.rules import Optimizers, listed
from autoada.parameters.forbid_new_parameters import PARALLEL, forbid_new_parameters, refuse_parallel
from autoada.parameters.layout import Layout
from autoada.parameters.remote_table import Reads, RemoteTable
from autoada.parameters.server_access import ServerAccess, Transfer
from autoada.parameters.table_parameter import check_replaceable, replace_parameters
from autoada.prediction.tables import hidden_tables
from autoada.training.loader_state import Positioned
from autoada.training.training_state import TrainingState

if TYPE_CHECKING:
    from adaps.checkpoint import Export

_log = logging.getLogger("autoada")
_made: weakref.WeakKeyDictionary[AdaModel, None] = weakref.WeakKeyDictionary()
"""Existing models of this process, in the order in which they were wrapped."""


class AdaModel(ForwardingModule):
    """Wraps a model so that it trains on the parameter server; its forward and its loop stay as they are.

    The wrapper can be called as the model itself, through the model's methods, as in
    ``model.calculate_loss(batch)``, or through its modules, as in ``model.encoder(x)``. Direct calls of the
    wrapped model also count.

    Embedding weights become tables of the server, and a forward pass pulls the rows that it reads. Other
    parameters become views of flat arrays. Buffers, such as BatchNorm's statistics, stay on each worker, as
    in DistributedDataParallel with ``broadcast_buffers=False``. In evaluation mode, rows are pulled on
    demand and nothing is pushed. If ``max_norm`` shortens a row in evaluation mode, the row in the server
    changes only when training reads it.

    Parameters
    ----------
    model : nn.Module
        Model on the CPU or on a CUDA device; its tables may stay on the CPU. All workers begin with the
        weights of rank 0. The model itself is changed. Parameters of float64, float16 and bfloat16 are
        float32 in the server, and are cast when the model reads them. Parameters that share memory without
        being one object stay on each worker, as with an optimizer that the server cannot apply.
    optimizer : torch.optim.Optimizer, sequence of them, or rule such as `adaps.Adagrad`, optional
        Optimizers of the model's parameters. A ``step()`` pushes the gradients of its optimizer's parameters.
        A parameter without an optimizer is not trained until ``add_param_group`` adds it. The state of the
        optimizers moves into the server: ``state_dict()`` gathers it, and ``load_state_dict()``, which is
        collective, replaces it. The server itself applies SGD, Adagrad, Adam, AdamW, SparseAdam and RMSprop.
        Each worker's gradient is a separate step, and the server follows changes by schedulers. Parameters
        of other optimizers, and of options that the server does not have, such as AMSGrad, stay on each
        worker. At each ``step()``, every worker waits for the sum of all workers' gradients. The optimizers
        of all workers then make the same step, from equal parameters and state. This takes much time for a
        table, so a warning names it. A rule such as
        `adaps.Adagrad` is applied at the end of every backward pass. By default, the optimizers of the
        model's parameters are found and used. If there are none, `adaps.Adagrad` with learning rate 0.01 is
        used, with a warning. An optimizer that is created afterwards refuses to step.
    node : adaps.Node, optional
        Node from `create_node`, if several worker threads share it. By default, the model creates a node.
    worker : int
        Index of this worker thread on its node.
    tables : iterable of str, optional
        Qualified names of parameters that are tables although no embedding module owns them.
    staleness : int, optional
        Maximum age, in steps of this worker, of the values that it reads; 1 or more. Updates that reached the
        server at least `staleness` steps ago are always visible. Smaller values wait more; larger values can
        slow convergence, with momentum in particular. By default, the maximum age grows: it is half of the
        square root of the number of steps so far, at least 2 and at most 64.
    policy : adaps.Policy, optional
        Management of each parameter, as for `create_node`, if the model creates its node.
    row_dtype : {"float32", "bfloat16"}
        Type of the values of the model's tables in the server's memory, as for `create_node`, if the model
        creates its node.

    Raises
    ------
    ValueError
        If a parameter is neither float32, float64, float16 nor bfloat16, parameters are on several devices,
        the server has no place for an optimizer's state or for the weight of a `HashEmbedding`, two
        optimizers hold the same parameter, or the model is or holds an `AdaModel`.

    Notes
    -----
    Torch's dense optimizers also change rows in steps without a gradient, by momentum, weight decay or
    decaying averages. A single worker applies these changes when it next reads the rows. Only the moments of
    Adam without weight decay, and of AdamW, change with gradients alone, as with `torch.optim.SparseAdam`; a
    warning reports this. With several workers a row changes only with a gradient.

    The constructor is collective: every worker of every node has to call it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | Rule | None = None,
        *,
        node: adaps.Node | None = None,
        worker: int = 0,
        tables: Iterable[str] | None = None,
        staleness: int | None = None,
        policy: adaps.Policy | None = None,
        row_dtype: str = "float32",
    ) -> None:
        super().__init__()
        _refuse_script(model)
        check_limit(staleness)
        self.__class__ = class_for(type(self), type(model))
        optimizer = optimizers_of(model, optimizer)
        if node is None:
            if worker != 0:
                raise IndexError(
                    f"worker {worker} does not exist: the model's own node has one worker; create_node makes "
                    "nodes with several"
                )
            plan = plan_of(model, optimizer, tables, policy)
        else:
            _refuse_beside_node(policy, row_dtype)
            plan = plan_on_node(node, model, optimizer, tables)
        layout, options = plan.layout, plan.training
        _refuse_wrapped(model)
        check_replaceable(layout.tables)
        self._owns_node = node is None
        self.node = open_node(plan, row_dtype) if node is None else node
        self.worker = self.node.worker(worker)
        self._access = access = ServerAccess(self.node, self.worker, worker, Transfer(layout.device))
        if access.is_primary:
            _warn_user(model, optimizer, layout)
        self._staleness = StalenessLimit(self.worker, staleness, alone=self.node.world_size == 1)
        self._synchronous = SynchronousSteps(self.worker, options.every, access.num_workers)
        self._device = layout.device
        optimizers = listed(optimizer)
        reads = Reads()
        self._wrapped = WrappedParameters(model, plan, access, reads)
        self._wrapped.initialise()
        replace_parameters(model, layout.tables, self._wrapped.tables)
        forbid_new_parameters(model, self)
        if not optimizers:
            StepsInBackward(model, self.push)  # The hooks of the parameters hold it.
        self.lookaheads = dict(options.lookaheads) if self.node.uses_intent else {}
        """Number of batches between intent and use, for each parameter whose lookahead the policy sets."""
        self._state = TrainingState(model, access, self.tables, reads, self.lookaheads)
        self._own_state = WorkerState(model, optimizers, self._wrapped, layout.device, self._staleness)
        self._calls = Calls(model, self._state, self._wrapped)
        self._of_both = names_of_both(self, model)
        self.module = model
        if access.is_primary:
            for name in sorted(self._of_both):
                _log.warning(
                    "model.%s is AdaModel's attribute, and %s also has one of this name: use model.module.%s "
                    "for it, or rename it",
                    name,
                    type(model).__name__,
                    name,
                )
        modules = self._modules
        nn.Module.register_load_state_dict_post_hook(
            self, lambda self, _: self.__dict__.update(_modules=modules)
        )
        for each in optimizers:
            push_at_step(each, self._wrapped, self.push)
            self._wrapped.optimizer_states.attach(each)
        register(model, optimizers)
        _made[self] = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward of the wrapped model."""
        module = self._modules["module"]
        assert module is not None
        calls = self._calls
        return calls.run("", calls.direct.within_call(module), module.training, (args, kwargs))

    def push(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Push all gradients, or the gradients of `optimizer`. The next call uses the new values."""
        with torch._C.DisableTorchFunction():  # Pushing is not part of the use of the batch.
            self._calls.stepping()
            self._wrapped.follow(optimizer)
            self._synchronous.before_push()
            self._wrapped.push(optimizer)
            if self._synchronous.after_push():
                self._wrapped.update()
            self._staleness.step()

    @property
    def closed(self) -> bool:
        """Whether this model or its node is closed."""
        return self._state.closed or self.node.closed

    def keys_of(self, table: str, ids: Tensor) -> Tensor:
        """Return the server's keys of rows of a table: int64, of the shape of `ids`.

        Parameters
        ----------
        table : str
            The parameter's qualified name.
        ids : Tensor
            Row ids, int64, on the CPU; duplicates stay. For a `HashEmbedding`, its ids; new ones get rows.
        """
        return self._state.keys_of(table, self.tables[table].rows_of(ids))

    def keys_by_lookahead(self, table: str, ids: Tensor) -> list[tuple[int | None, Tensor]]:
        """Return the server's keys of rows of a table, grouped by their lookahead in batches.

        Rows without intent, whose lookahead is 0 in the policy, are left out.

        Parameters
        ----------
        table : str
            The parameter's qualified name.
        ids : Tensor
            Row ids, int64, one-dimensional, on the CPU.

        Returns
        -------
        list of (int or None, Tensor)
            Lookahead in batches with the keys; None if the policy leaves it to the loop. Signal intent for
            the keys as soon as their use is at most this number of clocks away.
        """
        return self._state.keys_by_lookahead(table, self.keys_of(table, ids))

    def advance_clock(self) -> None:
        """Begin the worker's next clock, in a loop that signals intent by hand."""
        self._state.advance_clock()

    @property
    def tables(self) -> dict[str, RemoteTable]:
        """Tables by the parameters' qualified names."""
        return self._wrapped.tables

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the state of the wrapped model, which the plain model can load.

        Tables are gathered from all nodes, into host memory.
        """
        self._refresh()
        return state_of(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """A plain model with the present weights; parameters in the server become plain parameters."""
        self._refresh()
        return without_hooks(copy.deepcopy(self.module, memo))

    def _refresh(self) -> None:
        """Bring dense parameters up to date before all weights are read. Raises `AdapsError` if closed."""
        if self.tables and self.node.closed:
            raise adaps.AdapsError("the node is closed: read the model's weights before close()")
        self._wrapped.refresh()

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Collective: load the state of a plain or a wrapped model. All nodes get the state of rank 0.

        Arguments are those of `torch.nn.Module.load_state_dict`, except ``assign=True``, which is refused.
        """
        if kwargs.get("assign") or any(args[1:2]):
            raise RuntimeError(
                "load_state_dict(assign=True) would replace the parameters, which are in the server: "
                "leave assign out, so that the values are copied"
            )
        with self._wrapped.loading():
            return self.module.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the state of a module that contains the wrapped model."""
        try:
            own = {name.removeprefix(prefix): value for name, value in state_dict.items()}
            assign = local_metadata.get("assign_to_params_buffers", False)
            loaded = self.load_state_dict(own, strict=False, **({"assign": True} if assign else {}))
        except RuntimeError as error:
            error_msgs.append(str(error))
        else:
            missing_keys += [prefix + name for name in loaded.missing_keys]
            unexpected_keys += [prefix + name for name in loaded.unexpected_keys]
        self.__dict__["_modules"] = {}  # torch then finds nothing more to load, until its hook below

    def checkpoint(
        self,
        directory: str | os.PathLike[str],
        loader: Positioned | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Collective: write files with which `restore` can continue the training.

        The files contain all parameters and the optimizers' states of all nodes. For each worker, they also
        contain its buffers, learning rates, random generators, position in the data, and `extra`. Call this
        method between two steps. A failure at any moment does not change the directory's previous checkpoint.

        Parameters
        ----------
        directory : path
            Directory on a file system that all nodes share; see `adaps.Node.checkpoint`.
        loader : AdaDataLoader, optional
            Loader whose position is stored. Batches that the loop has received, including the current one,
            are not used again.
        extra : mapping of str to NumPy array or JSON value, optional
            Values that `restore` returns to this worker, such as a scheduler's state.

        Raises
        ------
        adaps.CheckpointError
            On every worker, if anything could not be written.
        """
        self._wrapped.settle()
        kept = self._own_state.take(loader, extra)
        self.node.checkpoint(directory, worker=self._access.local_index, extra=kept)

    def export(self, directory: str | os.PathLike[str], *, tables: Sequence[str] | None = None) -> Export:
        """Collective: begin to write the values of tables to files while training continues.

        All values are of one moment. Call this method between two steps. `adaps.Node.export` describes the
        guarantees.

        Parameters
        ----------
        directory : path
            Directory on a file system that all nodes share.
        tables : sequence of str, optional
            Qualified names of the parameters, equal in all exports to the directory. Default: all `tables`.
            Other parameters, such as the weights of linear layers, are in `state_dict`.

        Returns
        -------
        adaps.checkpoint.Export
            Handle to wait until the export is written.

        Raises
        ------
        adaps.CheckpointError
            On every worker, if nothing could be copied.
        KeyError
            If a table does not exist. The message names it.
        """
        names = list(self.tables) if tables is None else tables
        return self.node.export(directory, tables=names, worker=self._access.local_index)

    def restore(self, directory: str | os.PathLike[str], loader: Positioned | None = None) -> dict[str, Any]:
        """Collective: continue from a checkpoint of this model, and return the `extra` of this worker.

        The numbers of nodes and workers may differ from those of the checkpoint. In that case, all workers
        get the buffers and `extra` of the first worker, each loader skips the same share of its pass, and
        random generators do not change.

        A loader skips batches by fetching them, with the generator states that give the same batches. A data
        set may draw from the global generators for each item, in the training process. The skipped batches
        then contain other random numbers than before the checkpoint. Later batches are not affected.

        Parameters
        ----------
        directory : path
            Directory that was given to `checkpoint`.
        loader : AdaDataLoader, optional
            Loader that continues after the last batch that the loop of the checkpoint received.

        Raises
        ------
        adaps.CheckpointError
            On every worker, if there is no complete checkpoint or it does not fit. Nothing is changed.
        """
        own = self._own_state
        restored = self.node.restore(directory, worker=self._access.local_index, check=own.check)
        extra = own.put(restored, loader, self.num_workers)
        self._wrapped.resume(restored.same_workers)
        return extra

    @property
    def bytes_allreduced(self) -> float:
        """Bytes of gradients that this node has sent for parameters with the technique ``allreduce``.

        A ring of n nodes sends 2 (n - 1) / n bytes for each byte of gradients.
        """
        return self._wrapped.bytes_allreduced()

    @property
    def worker_index(self) -> int:
        """Index of this worker among all workers that train together."""
        return self._access.worker_index

    @property
    def num_workers(self) -> int:
        """Number of workers that train together."""
        return self._access.num_workers

    def close(self) -> None:
        """Collective: end this worker's part, and close the node if the model created it.

        If the node is also closed, no worker waits for this worker's steps any more. A second call has no
        effect.
        """
        if self._state.closed:
            return
        self._warn_without_loader()
        self._state.closed = True
        release(self.module)
        self.worker.finalize()
        self._wrapped.leave()
        if self._owns_node:
            self.node.close()

    def _warn_without_loader(self) -> None:
        """Warn if the model trained with rows of other nodes, and no loop could signal intent for them.

        A loop that signals intent is a loader's, or advances the clock by hand.
        """
        idle = self.node.closed or self._synchronous.steps == 0
        if idle or self.node.world_size == 1 or self._state.looped:
            return
        if any(table.rows.table.stats()["pulled_remote"] for table in self.tables.values()):
            _log.warning(
                "no loader has signalled intent, so rows were read from other nodes: "
                "AdaDataLoader(loader, shard=True) signals the rows of each batch"
            )


def unwrap(model: AdaModel) -> nn.Module:
    """Return a plain copy of the wrapped model with the current weights. The wrapped model can train on.

    All rows of every table are gathered, so the copy has to fit into memory. The call blocks until all rows
    have arrived. A single worker may call it.

    Parameters
    ----------
    model : AdaModel
        Wrapped model, which must be open. It does not change.
    """
    if not isinstance(model, AdaModel):
        raise TypeError(f"model is a {type(model).__name__}: unwrap takes an AdaModel")
    return copy.deepcopy(model)


class StepsInBackward:
    """Pushes at the end of each backward pass, for a model without an optimizer.

    In evaluation mode, gradients are dropped.
    """

    def __init__(self, model: nn.Module, push: Callable[[], None]) -> None:
        self._model = model
        self._push = push
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._queued: Callable[[], Any] = lambda: None
        """A weak reference to the callback at the end of the current backward pass."""
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._gradient_arrived)

    def _gradient_arrived(self, parameter: Tensor) -> None:
        if not self._model.training:
            parameter.grad = None
        elif self._queued() is None:  # At the end of the pass, every row's gradient is complete.
            step = functools.partial(self._step)  # PyTorch drops it with the pass, also if the pass fails.
            self._queued = weakref.ref(step)
            torch.autograd.Variable._execution_engine.queue_callback(step)

    def _step(self) -> None:
        self._push()
        for parameter in self._parameters:
            parameter.grad = None


def _refuse_beside_node(policy: adaps.Policy | None, row_dtype: str) -> None:
    if policy is not None:
        raise ValueError(
            "policy cannot be passed with a node, which has a policy already: pass it to create_node"
        )
    if row_dtype != "float32":
        raise ValueError(
            f"row_dtype {row_dtype!r} cannot be passed with a node, which has its tables already: pass it to "
            "create_node"
        )


def _refuse_script(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"the model is a {type(model).__name__}, whose forward runs without any Python call: "
            "pass the model before it is scripted or traced to AdaModel"
        )


def _refuse_wrapped(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, PARALLEL):
            raise ValueError(
                f"the model is or contains a {type(module).__name__}: pass the model inside it to AdaModel, "
                "because the parameter server shares the parameters between processes"
            )
        if isinstance(module, AdaModel):
            raise ValueError(
                f"the model is wrapped already: {f'its module {name!r}' if name else 'it'} is an AdaModel"
            )
    refuse_parallel(model)


def _warn_user(model: nn.Module, optimizer: Optimizers | Rule | None, layout: Layout) -> None:
    """Warn of differences to plain PyTorch, and of large parameters that are not tables."""
    groups = [layout.group_of(name) for name in layout.tables]
    keep = {type(each.optimizer).__name__ for each in groups if each.keeps_moments_without_gradient}
    warn_of_differences(model, optimizer, keep)
    for name, remedy in {**hidden_tables(model, layout.tables), **layout.obstacles}.items():
        _log.warning("all of %r is sent in every step, because it is not a table; %s", name, remedy)


def training_state_of(model: AdaModel) -> TrainingState:
    """Return the state that a wrapped model shares with its loaders."""
    return model._state


def calls_of(model: AdaModel) -> Calls:
    """Return the calls of a wrapped model, for loaders."""
    return model._calls


def open_models() -> list[AdaModel]:
    """Return the open `AdaModel`s of this process, the last one first; if all are closed, the last one.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    models = list(_made)[::-1]
    if not models:
        raise RuntimeError("there is no AdaModel to announce rows for: make AdaModel(model) before iterating")
    return [model for model in models if not model.closed] or models[:1]
