"""Base class of sessions on the parameter server: the node of the process, the model on it, and a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

import adaps
import autoada
from adabench.backends.interface import Served, ServerOptions, SimulatedRun, Timed, Unavailable, WorkerContext
from adabench.backends.strategies._faults import fault_of
from adabench.backends.strategies._simulate import simulate
from adabench.backends.strategies._step_timing import server_calls
from adabench.backends.strategies._table_layout import served
from adabench.usecases.interface import Placed, Sampled, UseCase
from autoada.model.node_setup import check_policy

if TYPE_CHECKING:
    import pandas as pd


class OnServer:
    """A backend on the parameter server. A strategy derives a class with a name and a session type."""

    name: ClassVar[str]
    session: ClassVar[type[ServerSession]]
    Options: ClassVar[type[ServerOptions]] = ServerOptions
    distributed: ClassVar[bool] = True

    def open(self, usecase: UseCase, context: WorkerContext, options: ServerOptions) -> ServerSession:
        return self.session(usecase, context, options)

    def check_policy(
        self, usecase: UseCase, policy: adaps.Policy, nodes: int, workers: int, network: str
    ) -> None:
        model = usecase.model()
        optimizer = usecase.optimizer(model)
        check_policy(model, optimizer, policy, nodes, workers=workers, network=network)

    def simulate(self, usecase: UseCase, options: ServerOptions, run: SimulatedRun) -> adaps.Simulation:
        return simulate(usecase, options, run)

    def served(self, usecase: UseCase) -> tuple[Served, ...]:
        return served(usecase)


class DrawnByServer:
    """Batches with rows that the server draws, instead of the use case's loader."""

    def __init__(self, batches: Iterable[Any], usecase: Sampled, negatives: autoada.NegativeSampler) -> None:
        self._batches, self._usecase, self._negatives = batches, usecase, negatives

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield self._usecase.with_drawn(batch, self._negatives())


class ServerSession:
    """One worker's training on the parameter server, without intent. Strategies add the intent."""

    def __init__(self, usecase: UseCase, context: WorkerContext, options: ServerOptions) -> None:
        model = usecase.model()
        optimizer = usecase.optimizer(model)
        # The sampler must be created before the table moves to the server.
        self._negatives = None if options.sampling == "loader" else _sampler(usecase, model, context, options)

        def make() -> adaps.Node:
            return autoada.create_node(
                model,
                optimizer,
                workers=context.workers,
                channels=options.channels,
                policy=context.policy,
                row_dtype=options.row_dtype,
                timing=options.timing,
                listen=context.host,
            )

        self.usecase = usecase
        self.options = options
        self.model = autoada.AdaModel(model, optimizer, node=context.per_process(make), worker=context.worker)
        self.server = self.model.worker
        self._fault = fault_of(options, context, self.model)
        own = self.model.lookaheads.values()
        self.lookahead = max([options.lookahead, *(one.most for one in own)])
        """Number of batches to fetch before their use."""
        self._later: list[tuple[int, Tensor, int]] = []
        self._optimizer = optimizer
        if isinstance(usecase, Placed):
            self._place(usecase.home_rows(context.index, context.world_size * context.workers))

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(self.drawn(loader))

    def drawn(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches. If the server draws rows, it does so when a batch is requested."""
        if self._negatives is None:
            return batches
        assert isinstance(self.usecase, Sampled)
        return DrawnByServer(batches, self.usecase, self._negatives)

    def keys(self, batch: Any) -> dict[str, Tensor]:
        """Return rows that a batch of the loader will read, without the rows that the server will draw."""
        if self._negatives is not None:
            assert isinstance(self.usecase, Sampled)
            batch = self.usecase.with_drawn(batch, torch.empty(0, dtype=torch.int64))
        return self.usecase.keys(batch)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        if self._fault is not None:
            self._fault.spoil()
        self._optimizer.step()

    def announce(self, batch: Any, clock: int) -> None:
        """Signal that `batch` will be used at `clock`, with the use case's hand-written keys.

        The policy's lookahead, or else the option, is the number of steps by which intent is signalled in
        advance.
        """
        for table, ids in self.keys(batch).items():
            for own, keys in self.model.keys_by_lookahead(table, ids):
                self._later.append((self.options.lookahead if own is None else own, keys, clock))
        self._announce_due()

    def advance(self) -> None:
        """Advance the worker's clock."""
        self.model.advance_clock()
        self._announce_due()

    def _announce_due(self) -> None:
        now, waiting = self.server.current_clock, []
        for ahead, keys, clock in self._later:
            if clock < now:  # the batch was used without intent
                continue
            if clock - now <= ahead:
                self.server.intent(keys, clock)
            else:
                waiting.append((ahead, keys, clock))
        self._later = waiting

    def from_first_rows(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches. The first one waits for its rows, because no intent was signalled earlier."""
        for number, batch in enumerate(batches):
            if number == 0:
                for table, ids in self.keys(batch).items():
                    self.server.wait_intent(self.model.keys_of(table, ids))
            yield batch

    def _place(self, rows: Mapping[str, Tensor]) -> None:
        """Move rows to this node. They stay until another node needs them."""
        if not rows:
            return
        for table, ids in rows.items():
            keys = self.model.keys_of(table, ids)
            self.server.intent(keys, self.server.current_clock)
            self.server.wait_intent(keys)
        self.server.advance_clock()

    def synchronize(self) -> None:
        self.server.wait_sync()
        self.server.barrier()
        self.server.wait_sync()

    def counters(self) -> dict[str, float]:
        counted, allreduced = self.model.node.stats(), self.model.bytes_allreduced
        counted["bytes_sent"] += allreduced
        return {**counted, "bytes_sent_allreduce": allreduced}

    def table_counters(self) -> dict[str, dict[str, float]]:
        return {table.name: table.stats() for table in self.model.node.tables}

    def trace(self, rows: Mapping[str, Tensor]) -> None:
        self.model.node.trace(torch.cat([self.model.keys_of(table, ids) for table, ids in rows.items()]))

    def traced(self) -> pd.DataFrame:
        return adaps.trace_frame(self.model.node)

    def measured(self, timed: Timed) -> AbstractContextManager[None]:
        return server_calls(timed, ServerSession)

    def close(self) -> None:
        self.model.close()


def _sampler(
    usecase: UseCase, model: nn.Module, context: WorkerContext, options: ServerOptions
) -> autoada.NegativeSampler:
    assert options.sampling != "loader"
    if not isinstance(usecase, Sampled):
        raise Unavailable(f"{usecase.name} draws no rows for its batches: set sampling=loader")
    draws = usecase.draws(context.index)
    sampling = adaps.Sampling(scheme=options.sampling, seed=context.seed)
    table = model.get_submodule(draws.table.rpartition(".")[0])
    return autoada.NegativeSampler(table, draws.number, sampling)
