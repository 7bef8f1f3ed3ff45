"""All parameters of a wrapped model, in the server or shared by way of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from autoada.model.node_setup import TrainingOptions
from autoada.optimizer.schedules import Schedules
from autoada.parameters.dense_allreduce import AllReducedParameters
from autoada.parameters.dense_buffer import DenseParameters
from autoada.parameters.dense_robust_mean import RobustMeanParameters
from autoada.parameters.dense_server_sum import LocallySteppedParameters, ServerSummedParameters
from autoada.parameters.device_copy import Transfer
from autoada.parameters.layout import Layout
from autoada.parameters.remote_table import Read, RemoteTable
from autoada.sync.gradient_exchange import GradientExchange
from autoada.training.training_state import WorkerIdentity

Part = RemoteTable | DenseParameters | ServerSummedParameters | AllReducedParameters | RobustMeanParameters
FOREVER = 2**40
"""A clock that no training reaches."""


@dataclass(frozen=True)
class Owned:
    """What one optimizer changes, in the order in which it is handed over."""

    tables: list[RemoteTable] = field(default_factory=list)
    others: list[DenseParameters | ServerSummedParameters | AllReducedParameters | RobustMeanParameters] = (
        field(default_factory=list)
    )

    def add(self, part: Part) -> None:
        """This, too."""
        if isinstance(part, RemoteTable):
            self.tables.append(part)
        else:
            self.others.append(part)


_NOTHING = Owned()


class WrappedParameters:
    """Tables, dense parameters and those that the user's own optimizer changes, moved together.

    Parameters
    ----------
    model : nn.Module
        Whose parameters they are; dense ones become views of a flat buffer.
    layout : Layout
        Where each lies.
    identity : WorkerIdentity
        Who trains it.
    transfer : Transfer
        To the model's device.
    reads : list of Read
        Where tables note what they read.
    on_gradient : callable or None
        Called during the backward pass when a table's gradient has arrived, if anybody wants to know.
    training : TrainingOptions
        What the policy leaves to who trains.

    Attributes
    ----------
    tables : dict of str to RemoteTable
        By the parameters' qualified names.
    dense : list of DenseParameters
        All others that the server's rules change.
    stepped : list of LocallySteppedParameters
        Those that the user's own optimizer changes.
    stale : bool
        Whether dense parameters have to be pulled before the next call.
    push_queued : bool
        Whether the end of the backward pass will push.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        identity: WorkerIdentity,
        transfer: Transfer,
        reads: list[Read],
        on_gradient: Callable[[], None] | None,
        training: TrainingOptions,
    ) -> None:
        node, worker = identity.node, identity.worker
        parameters = dict(model.named_parameters())
        self._layout = layout
        self._identity = identity
        self._transfer = transfer
        self._schedules = Schedules(
            layout.groups, layout.rules, {name: node.table(name) for name in layout.rules}
        )
        alone = identity.num_workers == 1
        self.tables = {
            name: RemoteTable(
                name,
                parameter.shape,
                worker,
                node.table(name),
                transfer,
                reads,
                on_gradient,
                alone and layout.group_of(name).rule_of(name).rule().moves_idle_rows,
                parameter.dtype,
                alone=node.world_size == 1,
            )
            for name, parameter in layout.tables.items()
        }
        self.dense = [
            DenseParameters(
                each,
                parameters,
                worker,
                node.table(each.table),
                transfer,
                shared=not alone,
                at_steps=layout.group_of(each.table).optimizer is not None,
                combined=training.is_robust,
            )
            for each in layout.dense
        ]
        shared = [
            ServerSummedParameters(
                each,
                parameters,
                worker,
                node.table(each.table),
                transfer,
                layout.optimizer_of(each.table),
                identity.is_primary,
            )
            for each in layout.summed
        ]
        self._exchange: GradientExchange | None = None
        allreduced: list[AllReducedParameters | RobustMeanParameters] = []
        if training.is_robust and not alone:
            most = len(self.tables) + len(self.dense) + len(layout.allreduced)
            self._exchange = exchange = GradientExchange(
                node, identity.local_index, training.aggregation, most
            )
            allreduced += [
                RobustMeanParameters(each, parameters, exchange, transfer) for each in layout.allreduced
            ]
        else:
            weight = training.weight(node.rank)
            allreduced += [
                AllReducedParameters(each, parameters, node, transfer, weight) for each in layout.allreduced
            ]
        self._allreduced = [each for each in allreduced if isinstance(each, AllReducedParameters)]
        self.stepped: list[LocallySteppedParameters] = [*shared, *allreduced]
        of_layout = (*layout.tables, *(each.table for each in (*layout.dense, *layout.summed)))
        owners = [layout.group_of(name).optimizer for name in of_layout]
        owners += [each.optimizer for each in layout.allreduced]
        # What waits for all nodes comes last.
        parts: tuple[Part, ...] = (*self.tables.values(), *self.dense, *shared, *allreduced)
        self._owned: dict[torch.optim.Optimizer | None, Owned] = {None: Owned()}
        for owner, part in zip(owners, parts, strict=True):
            self._owned[None].add(part)
            if owner is not None:
                self._owned.setdefault(owner, Owned()).add(part)
        # One step of all workers together is one with the mean of their gradients, by samples.
        self._scale = training.weight(node.rank) / (identity.num_workers if training.every == 1 else 1)
        self._announced = [each.keys_of(_wanted(each, training)) for each in self.dense]
        self.stale = False
        self.push_queued = False

    def initialise(self) -> None:
        """Collective: the weights of the worker that leads become the server's."""
        worker = self._identity.worker
        self._set_up(
            (self.tables[name], parameter)
            for name, parameter in self._layout.tables.items()
            if not parameter.is_meta
        )
        for keys in self._announced:  # every worker needs them in every step
            if len(keys) > 0:
                worker.intent(keys, worker.current_clock, FOREVER)
        self.pull()

    def load(self, tables: Iterable[tuple[RemoteTable, Tensor]]) -> None:
        """Collective: these values of tables, and those that dense parameters have, become the server's."""
        self._set_up(tables)
        self.pull()

    def refresh(self) -> None:
        """Bring dense parameters up to date, and hand over what was written into them by hand."""
        for dense in self.dense:
            dense.refresh()
        self.stale = False

    def update(self) -> None:
        """Bring dense parameters up to date before a call of training."""
        for dense in self.dense:
            dense.update()
        self.stale = False

    def pull(self) -> None:
        """Bring dense parameters up to date."""
        for dense in self.dense:
            dense.pull()
        self.stale = False

    def push(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Hand gradients over: all, or those of `optimizer`, whose ``step()`` shows its effect at once."""
        self._schedules.follow()
        owned = self._owned.get(optimizer, _NOTHING)
        if self._exchange is None:
            self._push_apart(owned)
        else:
            self._push_exchanged(owned, self._exchange)
        if optimizer is not None:
            for part in owned.others:
                if isinstance(part, DenseParameters):
                    part.follow_step()
        self.stale = self._identity.num_workers > 1 or optimizer is None

    def _push_apart(self, owned: Owned) -> None:
        """Each worker's gradients are a step of their own, or are added up."""
        for table in owned.tables:
            table.collect(self._scale)
        for part in owned.others:
            part.collect(self._scale)
        self._transfer.finish()
        worker = self._identity.worker
        sums = []
        for table in owned.tables:
            taken = table.take()
            if taken and table.is_local:
                sums.append(taken)
            else:
                for keys, gradients, _ in taken:
                    worker.push_gradients(keys, gradients)
        if sums:
            worker.push_sums(sums)
        for part in owned.others:
            assert not isinstance(part, RobustMeanParameters)  # an exchange exists then
            part.push()

    def _push_exchanged(self, owned: Owned, exchange: GradientExchange) -> None:
        """All workers' gradients are combined to one step."""
        combinable: list[RemoteTable | DenseParameters | RobustMeanParameters] = [*owned.tables]
        for table in owned.tables:
            table.collect(1.0, each_once=True)
        for part in owned.others:
            assert not isinstance(
                part, ServerSummedParameters | AllReducedParameters
            )  # refused with the policy
            combinable.append(part)
            part.collect(1.0)
        self._transfer.finish()
        whole = [isinstance(part, RobustMeanParameters) for part in combinable]
        combined = exchange.combine([part.given() for part in combinable], whole)
        for given, one in zip(combinable, combined, strict=True):
            given.put(one)

    def leave(self) -> None:
        """The others train on without this worker."""
        for each in self._allreduced:
            each.leave()
        if self._exchange is not None:
            self._exchange.leave()

    def bytes_allreduced(self) -> float:
        """Bytes of gradients that this node has sent to others, not by way of the server."""
        combined = 0 if self._exchange is None else self._exchange.bytes_sent
        return combined + sum(each.bytes_sent for each in self._allreduced)

    def settle(self) -> None:
        """Have the server know all that a checkpoint is to keep."""
        for table in self.tables.values():
            table.catch_up()
        for dense in self.dense:
            dense.settle()

    def resume(self, same_workers: bool) -> None:
        """Go on from a checkpoint, of this number of workers or of another."""
        self._schedules.restored()
        for table in self.tables.values():
            table.resume(same_workers)
        self.pull()

    def _set_up(self, tables: Iterable[tuple[RemoteTable, Tensor]]) -> None:
        worker = self._identity.worker
        worker.begin_setup()
        if self._identity.is_primary:
            for table, values in tables:
                table.write(values)
            for dense in self.dense:
                dense.initialise()
        worker.end_setup()
        for stepped in self.stepped:
            stepped.begin()


def _wanted(dense: DenseParameters, training: TrainingOptions) -> list[str]:
    """Those that are announced: a lookahead of no batch is no intent."""
    own = training.lookaheads
    return [name for name in dense.names if name not in own or own[name].announced]
