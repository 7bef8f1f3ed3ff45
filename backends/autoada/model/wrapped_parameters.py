"""Parameters of a wrapped model, which are in the server or exchanged through it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from autoada.model.node_setup import TrainingPlan
from autoada.model.optimizer_state import OptimizerStates, ServerHeldState
from autoada.optimizer.schedules import Schedules
from autoada.parameters.dense_allreduce import AllReducedParameters
from autoada.parameters.dense_buffer import DenseParameters
from autoada.parameters.hash_table import HashRows, HashTable
from autoada.parameters.locally_stepped import (
    LocallySteppedParameters,
    RobustMeanParameters,
    ServerSummedParameters,
)
from autoada.parameters.parameter_state import ParameterState
from autoada.parameters.remote_table import Reads, RemoteTable, mark_changed
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.server_rows import ServerRows
from autoada.parameters.table_gradients import TableGradients
from autoada.sync.gradient_exchange import GradientExchange

Exchanged = TableGradients | DenseParameters | RobustMeanParameters
Waiting = ServerSummedParameters | AllReducedParameters
FOREVER = 2**40
"""End of an intent that is for good: no training reaches this clock."""


@dataclass(eq=False)
class Owned:
    """The parameters of one optimizer, in the order in which their gradients are pushed."""

    tables: list[RemoteTable]
    dense: list[DenseParameters]
    robust: list[RobustMeanParameters]
    waiting: list[Waiting]
    """Parameters whose push waits for all nodes. They are pushed last."""
    schedules: Schedules | None = None
    counted: Sequence[ParameterState] = ()
    """Dense parameters whose steps are counted here."""
    left_out: Sequence[nn.Parameter] = ()
    """Parameters without a table that a step of the optimizer leaves out, as they are in no group now."""
    members: Sequence[Sequence[int]] = ()
    """Identities of the parameters in each group of the optimizer."""
    steps_all: bool = False
    """Whether the server steps all parameters in the groups, so that the optimizer's own step has no work."""

    def __post_init__(self) -> None:
        gradients = [table.gradients for table in self.tables]
        self.exchanged: list[Exchanged] = [*gradients, *self.dense, *self.robust]
        """Parts whose gradients a rule other than the mean combines."""
        self.parts: list[Exchanged | Waiting] = [*self.exchanged, *self.waiting]
        """All parts with gradients, in order."""


class WrappedParameters:
    """Tables, dense parameters and parameters of the user's own optimizer, moved together."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, access: ServerAccess, reads: Reads) -> None:
        node, options = access.node, plan.training
        self._reads = reads
        self._layout = layout = plan.layout
        self._access = access
        combines = options.is_robust and not access.alone
        parameters = dict(model.named_parameters())
        self.tables: dict[str, RemoteTable] = {}
        for name, parameter in layout.tables.items():
            rule = layout.group_of(name).server_rule
            makes_up = access.alone and rule.rule().moves_idle_rows
            of_node = {"alone": node.world_size == 1, "combines": combines, "together": options.every == 1}
            if name in layout.hashed:
                hashed = HashRows(name, parameter, access, makes_up, layout.hashed[name], rule)
                self.tables[name] = HashTable(hashed, reads, **of_node)
            else:
                rows = ServerRows(name, parameter, access, makes_up)
                self.tables[name] = RemoteTable(rows, reads, **of_node)
        self.dense = [
            DenseParameters(
                place,
                parameters,
                access,
                at_steps=layout.groups[0].optimizer is not None,
                combines=combines,
                together=options.every == 1 and not access.alone,
            )
            for place in layout.dense
        ]
        self._exchange: GradientExchange | None = None
        robust: list[RobustMeanParameters] = []
        self._allreduced: list[AllReducedParameters] = []
        weight = options.weight(node.rank)
        if combines:
            most = len(self.tables) + len(self.dense) + len(layout.allreduced)
            aggregation = options.aggregation
            self._exchange = exchange = GradientExchange(node, access.local_index, aggregation, most)
            robust += [
                RobustMeanParameters(each, parameters, exchange, access.transfer)
                for each in layout.allreduced
            ]
        else:
            self._allreduced += [
                AllReducedParameters(each, parameters, access, weight) for each in layout.allreduced
            ]
        summed = [
            ServerSummedParameters(place, parameters, access, layout.optimizer_of(place.table))
            for place in layout.summed
        ]
        self.stepped: list[LocallySteppedParameters] = [*summed, *robust, *self._allreduced]
        self._all = Owned([*self.tables.values()], self.dense, robust, [*summed, *self._allreduced])
        self._optimizers = [
            each for each in dict.fromkeys(group.optimizer for group in layout.groups) if each is not None
        ]
        self._owned: dict[torch.optim.Optimizer, Owned] = {}
        self._holders: dict[str, torch.optim.Optimizer] = {}
        self.parameter_states = self._parameter_states(parameters)
        self._states = {id(state.parameter): state for state in self.parameter_states}
        self._identities = frozenset(map(id, parameters.values()))
        wires = {rule.wire for rule in plan.managed.rules} if plan.managed is not None else set()
        rounds = node.world_size > 1 and bool(wires - {None, "float32"})
        self.optimizer_states = OptimizerStates(self._states, access, rounds)
        # One step of all workers together is one with the mean of their gradients, by samples. Rules other
        # than the mean count every worker alike.
        self._scale = 1.0 if combines else weight / (access.num_workers if options.every == 1 else 1)
        # A lookahead of 0 batches means no intent.
        silent = {name for name, ahead in options.lookaheads.items() if not ahead.distances}
        self._announced = [each.keys_of(set(each.names) - silent) for each in self.dense]
        self.stale = False
        """Whether dense parameters have to be pulled before the next call."""

    def _parameter_states(self, parameters: Mapping[str, nn.Parameter]) -> list[ParameterState]:
        """Return the optimizer state of each parameter in the server."""
        node, layout, access = self._access.node, self._layout, self._access
        states = []
        for name, table in self.tables.items():
            rule = layout.group_of(name).server_rule
            rows = table.rows
            keys = functools.partial(getattr, rows, "all_keys")
            states.append(ParameterState(name, parameters[name], rows.table, keys, rule, access, rows))
        for place, dense in zip(layout.dense, self.dense, strict=True):
            rule = layout.group_of(place.table).server_rule
            for name in place.names:
                keys = functools.partial(dense.keys_of, (name,))
                states.append(
                    ParameterState(name, parameters[name], node.table(place.table), keys, rule, access)
                )
        return states

    @property
    def dense_shapes(self) -> dict[str, list[int]]:
        """Shapes of the dense parameters in the server, in the order of their rows."""
        places = self._layout.dense
        return {
            name: list(shape) for each in places for name, shape in zip(each.names, each.shapes, strict=True)
        }

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether this is a parameter of the model."""
        return id(parameter) in self._identities

    def steps(self, parameter: nn.Parameter) -> bool:
        """Whether the server steps a parameter, and not the optimizer itself."""
        return id(parameter) in self._states

    def owned_by(self, optimizer: torch.optim.Optimizer) -> Owned:
        """Return the parameters in the groups of the optimizer."""
        members = [[*map(id, group["params"])] for group in optimizer.param_groups]
        owned = self._owned.get(optimizer)
        if owned is None or owned.members != members:
            owned = self._owned[optimizer] = self._find_owned(optimizer, members)
        return owned

    def _find_owned(self, optimizer: torch.optim.Optimizer, members: Sequence[Sequence[int]]) -> Owned:
        states = [[self._states[each] for each in group if each in self._states] for group in members]
        number_of: dict[str, int] = {}
        for number, group in enumerate(states):
            for state in group:
                if number_of.setdefault(state.table.name, number) != number:
                    raise ValueError(
                        f"the parameter {state.name!r} has moved to another group of "
                        f"{type(optimizer).__name__}, and other parameters that share its rule in the server "
                        "have not: form the groups before AdaModel wraps the model"
                    )
        for stepped in self.stepped:
            if stepped.optimizer is not optimizer and not self._access.alone:
                stepped.refuse_to_move(optimizer)
        for name in number_of:
            if (other := self._holders.get(name, optimizer)) is not optimizer:
                self._owned.pop(other, None)  # If `other` continues, its options have to be set again.
            self._holders[name] = optimizer
        held = {id(state.parameter) for group in states for state in group}
        dense = [each for each in self.dense if each.name in number_of]
        robust = [each for each in self._all.robust if each.optimizer is optimizer]
        waiting = [each for each in self._all.waiting if each.optimizer is optimizer]
        present = {number for group in members for number in group}
        return Owned(
            [table for name, table in self.tables.items() if name in number_of],
            dense,
            robust,
            waiting,
            Schedules(
                optimizer,
                {
                    number: [self._access.node.table(name) for name in number_of if number_of[name] == number]
                    for number in dict.fromkeys(number_of.values())
                },
            ),
            [state for group in states for state in group if state.counts_here],
            [p for each in (*dense, *robust, *waiting) for p in each.parameters if id(p) not in present],
            members,
            present <= held,
        )

    def initialise(self) -> None:
        """Collective: set the server's values to the weights of the primary worker."""
        worker, hashed = self._access.worker, self._layout.hashed
        worker.begin_setup()
        if self._access.is_primary:
            for name, parameter in self._layout.tables.items():
                table = self.tables[name]
                if parameter.is_meta:
                    continue
                if isinstance(table, HashTable):
                    table.rows.write_state(hashed[name].id_map.saved(parameter))
                else:
                    table.rows.write(torch.arange(len(parameter), device="cpu"), parameter)
        self._end_setup()
        for optimizer in self._optimizers:
            self.optimizer_states.take_over(optimizer)
        for keys in self._announced:  # Every worker needs these rows in every step.
            if len(keys) > 0:
                worker.intent(keys, worker.current_clock, FOREVER)
        self.pull()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Collective: set the server's values to those that the model loads in this context.

        Each worker loads a state, and the values of the primary worker are used.
        """
        rows = [table.rows for table in self.tables.values()]
        self._access.worker.begin_setup()
        for each in rows:
            each.is_loading = True
        try:
            yield
        finally:
            for each in rows:
                each.is_loading = False
            self._end_setup()
            self.pull()

    def refresh(self) -> None:
        """Bring dense parameters up to date, and push values that were written by hand."""
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

    def follow(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Send changed options and states of all optimizers, or of one, to the server.

        If workers step together, each worker does this before any worker pushes gradients.
        """
        for each in self._optimizers if optimizer is None else [optimizer]:
            if type(each.state) is not ServerHeldState:  # A program has assigned a state.
                self.optimizer_states.take_over(each)
            schedules = self.owned_by(each).schedules
            assert schedules is not None
            schedules.follow()

    def push(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Push the gradients of all parameters, or of the parameters of `optimizer`, after `follow`.

        A step of an optimizer has a visible effect at once. A parameter in no optimizer keeps its gradient.
        """
        if optimizer is None and self._optimizers:
            for each in self._optimizers:
                self.push(each)
        elif optimizer is None:
            self._hand_over(self._all)
        else:
            owned = self._owned[optimizer]
            for state in owned.counted:
                if state.parameter.grad is not None:
                    state.count_step()
            kept = [(parameter, parameter.grad) for parameter in owned.left_out]
            for parameter, _ in kept:
                parameter.grad = None
            try:
                self._hand_over(owned)
            finally:
                for parameter, gradient in kept:
                    parameter.grad = gradient
            for dense in owned.dense:
                dense.follow_step()
        self.stale = not self._access.alone or optimizer is None

    def _hand_over(self, owned: Owned) -> None:
        for part in owned.parts:
            part.collect(self._scale)
        self._access.transfer.finish()
        self._reads.forget_rows(owned.tables)  # The step changes the rows.
        if self._exchange is None:
            self._push_own(owned)
        else:
            whole = [isinstance(part, RobustMeanParameters) for part in owned.exchanged]
            combined = self._exchange.combine([part.given() for part in owned.exchanged], whole)
            for part, one in zip(owned.exchanged, combined, strict=True):
                part.put(one)
            mark_changed(t for t, one in zip(owned.tables, combined, strict=False) if one.anywhere)

    def _push_own(self, owned: Owned) -> None:
        """Push this worker's gradients, as a separate step or as a part of a sum."""
        worker = self._access.worker
        stepped, sums = [], []
        for table in owned.tables:
            gradients = table.gradients
            if (taken := gradients.take()) is None:
                continue
            stepped.append(table)
            if gradients.sums_in_server:
                sums.append((table.rows.table, *taken))
            else:
                worker.push_gradients(*gradients.summed(taken))
        if sums:
            worker.push_sums(sums)
        mark_changed(stepped)
        for part in (*owned.dense, *owned.waiting):
            part.push()

    def leave(self) -> None:
        """Let the other workers continue to train without this worker."""
        for each in self._allreduced:
            each.leave()
        if self._exchange is not None:
            self._exchange.leave()

    def bytes_allreduced(self) -> float:
        """Bytes of gradients that this node has sent to other nodes without the server."""
        combined = 0 if self._exchange is None else self._exchange.bytes_sent
        return combined + sum(each.bytes_sent for each in self._allreduced)

    def settle(self) -> None:
        """Bring the server up to date before a checkpoint."""
        for dense in self.dense:
            dense.settle()

    def resume(self, same_workers: bool) -> None:
        """Collective: continue from a checkpoint, which may have another number of workers."""
        self._owned.clear()  # the groups have the options of the checkpoint now, and the server its own
        for optimizer in self._optimizers:
            if (schedules := self.owned_by(optimizer).schedules) is not None:
                schedules.follow()
        for table in self.tables.values():
            table.forget_rows()
            table.rows.resume(same_workers)
        for stepped in self.stepped:
            stepped.begin()  # The checkpoint contains the sums of its last steps.
        self.pull()

    def _end_setup(self) -> None:
        """Collective: send the primary worker's dense parameters, and forget all earlier values."""
        worker = self._access.worker
        if self._access.is_primary:
            for dense in self.dense:
                dense.initialise()
        worker.end_setup()
        for each in self.tables.values():
            each.forget_rows()
            if isinstance(each, HashTable):
                each.rows.state_written()
        if self._layout.hashed:  # No worker uses rows before all nodes have forgotten the earlier ones.
            worker.barrier()
        for stepped in self.stepped:
            stepped.begin()
