"""Simulation of the backends on the parameter server: their cost on a cluster that does not exist."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import adaps
from adabench.backends.interface import ServerOptions, SimulatedRun
from adabench.usecases.interface import Placed, UseCase, hashed_tables
from autoada.model.node_setup import plan_of


def simulate(usecase: UseCase, options: ServerOptions, run: SimulatedRun) -> adaps.Simulation:
    """Replay the accesses of the use case's batches; see `adaps.simulate`.

    Raises
    ------
    PolicyError
        If the policy does not fit, or has a setting that is not simulated.
    ValueError
        If batches contain rows that the server draws at random.
    """
    model = usecase.model()
    plan = plan_of(model, usecase.optimizer(model), None, run.policy, len(run.cluster.machines))
    for what, there in (
        ("synchronization every n steps", plan.training.every > 0),
        ("technique 'allreduce'", bool(plan.training.allreduced)),
        ("shares of the data", bool(plan.training.shares)),
        (
            "lookahead of some rows of a table",
            any(len(one.batches) > 1 for one in plan.training.lookaheads.values()),
        ),
    ):
        if there:
            raise adaps.PolicyError(f"{run.policy.source}: {what} is not simulated; leave it out")
    if plan.layout.summed:
        raise ValueError("parameters with their own optimizer cannot be simulated")
    if hashed := sorted(hashed_tables(usecase)):
        raise ValueError(
            f"rows of {hashed[0]} are numbered during training and not simulated: use keys=dense"
        )
    if options.sampling != "loader":
        raise ValueError(f"sampling={options.sampling} is not simulated; leave it out")
    tables = plan.layout.server_tables(options.row_dtype)
    dense = [layout.table for layout in plan.layout.dense]
    lookahead = {
        **dict.fromkeys(plan.layout.tables, options.lookahead),
        **{name: one.most for name, one in plan.training.lookaheads.items() if name in plan.layout.tables},
    }
    streams = streams_of(usecase, len(run.cluster.machines) * run.workers, run.steps)

    return adaps.simulate(
        streams,
        "adaptive" if plan.managed is None else plan.managed,
        run.cluster,
        tables=tables,
        dense=dense,
        compute=run.compute,
        lookahead=lookahead,
        epoch=run.epoch,
        steps_before=run.steps_before,
        workers=run.workers,
        channels=options.channels,
        timing=options.timing,
        traced_steps=run.traced_steps,
        incidents=run.incidents,
        peer_timeout=run.peer_timeout,
        seed=run.seed,
    )


_last: tuple[UseCase, int, int | None, list[adaps.Stream]] | None = None
"""Arguments and result of the last call of `streams_of`, because policies are compared on equal accesses."""


def streams_of(usecase: UseCase, workers: int, steps: int | None) -> list[adaps.Stream]:
    """Return accesses of each worker in its first steps, epoch after epoch, or in one epoch."""
    global _last
    if _last is None or _last[0] is not usecase or _last[1:3] != (workers, steps):
        _last = usecase, workers, steps, [_stream(usecase, rank, workers, steps) for rank in range(workers)]
    return _last[3]


def _stream(usecase: UseCase, worker: int, workers: int, steps: int | None) -> adaps.Stream:
    placed = usecase.home_rows(worker, workers) if isinstance(usecase, Placed) else {}
    train = usecase.loaders(worker, workers).train
    batches = iter(train) if steps is None else islice(_endless(train), steps)
    accessed = [{name: rows.numpy() for name, rows in usecase.keys(batch).items()} for batch in batches]
    return adaps.Stream(accessed, {name: rows.numpy() for name, rows in placed.items()})


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over `batches` again and again.

    Raises
    ------
    ValueError
        If there are no batches.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("the use case has no training batches: give it more data")
