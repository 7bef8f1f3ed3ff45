"""Sessions of backends on ranks: what they lose, announce and count, under policies."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import torch

import adaps
from adabench.backends.strategies.autoada_automatic import AutoAdaAutomatic
from adabench.harness.machine.quota import enter
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.harness.study.data_partition import partitioned
from adabench.harness.study.model_parameters import usecase_from
from tests.integration.guarantees.common import RANK
from tests.worker_contexts import PerProcess, worker_context

NODES = int(os.environ.get("WORLD_SIZE", "1"))


class Announced(NamedTuple):
    """An announcement of rows of a table, and the worker's clock at that time."""

    table: str
    rows: list[int]
    start: int
    clock: int


@contextmanager
def opened(
    backend: Any,
    usecase: Any,
    policy: adaps.Policy | None = None,
    seed: int = 1,
    announced: list[Announced] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """A session of this rank, once all ranks have one; what it announces is added to `announced`."""
    shared = PerProcess()
    context = worker_context(shared, RANK, NODES, policy=policy, seed=seed)
    noted = [] if announced is None else announced
    announce = adaps.Worker.intent

    def intent(worker: adaps.Worker, keys: Any, start: int, end: int | None = None) -> None:
        for table in shared.made[0].tables:
            rows = keys - table.first_key
            rows = rows[(rows >= 0) & (rows < table.rows)].tolist()
            if rows:
                noted.append(Announced(table.name, rows, start, worker.current_clock))
        announce(worker, keys, start, *([] if end is None else [end]))

    with patch.object(adaps.Worker, "intent", intent):
        session = backend.open(usecase, context, backend.Options(**options))
        session.synchronize()
        yield session
    session.close()
    shared.close()


def usecase_with(name: str, params: dict[str, Any]) -> Any:
    kind = load_usecase(name)
    return kind(msgspec.convert(params, kind.Params), None, 1)


def trained_sessions(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Losses, announcements and counters of sessions, one after the other."""
    return {"runs": [trained(**case) for case in cases]}


def trained(
    usecase: str,
    params: dict[str, Any],
    backend: str,
    policy: str,
    steps: int,
    rate: float,
    lookahead: int,
    optimizer: str,
    state: bool,
) -> dict[str, Any]:
    made, parsed = usecase_with(usecase, params), adaps.Policy.parse(policy)
    made.optimizer = lambda model: getattr(torch.optim, optimizer)(model.parameters(), lr=rate)
    loader = partitioned(made, parsed, 1).loaders(RANK, NODES).train
    losses, announced = [], list[Announced]()
    with opened(load_backend(backend)(), made, parsed, announced=announced, lookahead=lookahead) as session:
        before, counted = session.table_counters(), session.counters()
        session.synchronize()  # no node's first step is counted by one that has not looked yet
        for batch in islice(session.batches(loader), steps):
            loss = made.loss(session.model, batch)
            losses.append(loss.item())
            session.step(loss)
        session.synchronize()
        sent = {name: value - counted[name] for name, value in session.counters().items() if "_sent" in name}
        tables = differences(session.table_counters(), before)
        session.synchronize()  # reading the state is not counted, either
        final = session.model.state_dict() if state else {}
        session.synchronize()
    distances: dict[str, set[int]] = defaultdict(set)
    farthest: dict[str, dict[int, int]] = defaultdict(dict)
    for one in announced:
        distance = one.start - one.clock
        distances[one.table].add(distance)
        for row in one.rows:
            farthest[one.table][row] = max(farthest[one.table].get(row, 0), distance)
    return {
        "losses": losses,
        "sent": sent,
        "state": {name: value.flatten().tolist() for name, value in final.items()},
        "distances": {table: sorted(found) for table, found in distances.items()},
        "farthest": {table: sorted(found.items()) for table, found in farthest.items()},
        "tables": tables,
    }


def differences(
    after: dict[str, dict[str, float]], before: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    return {
        table: {name: count - before[table][name] for name, count in counts.items()}
        for table, counts in after.items()
    }


def slowed_epochs(cases: Sequence[dict[str, Any]], groups: list[str]) -> dict[str, Any]:
    """Epochs of `ctr`, on nodes that control groups slow down for an epoch, if there are any."""
    return {"runs": [epochs(**case, groups=[Path(group) for group in groups]) for case in cases]}


def epochs(policy: str, params: dict[str, Any], groups: list[Path]) -> dict[str, Any]:
    parsed = adaps.Policy.parse(policy)
    usecase = partitioned(usecase_with("ctr", params), parsed, 1)
    loaders = usecase.loaders(RANK, NODES)
    seconds, samples, auc = 0.0, 0, []
    with opened(AutoAdaAutomatic(), usecase, parsed) as session:
        for epoch in range(usecase.params.epochs):
            timed = epoch == 1  # the first one learns what to announce
            if timed and groups:
                enter(groups[RANK])
            session.synchronize()
            began = time.monotonic()
            for batch in session.batches(loaders.train):
                session.step(usecase.loss(session.model, batch))
                samples += usecase.samples(batch)
            session.synchronize()
            if timed:
                seconds = time.monotonic() - began
            if timed and groups:
                enter(groups[RANK].parent)
            auc.append(usecase.evaluate(session.model, loaders.test)["auc"])
        answers = sum(table["messages_sent_answer"] for table in session.table_counters().values())
        session.synchronize()
    return {"seconds": seconds, "answers": answers, "samples": samples, "auc": auc}


def counted_epoch(usecase: str, backend: str, policy: str) -> dict[str, Any]:
    """The counters of one epoch, as a run trains it."""
    made = usecase_from(usecase, None, 0)
    loaders = made.loaders(RANK, NODES)
    with opened(load_backend(backend)(), made, adaps.Policy.parse(policy), seed=0) as session:
        before = session.table_counters()
        session.synchronize()  # no node's first step is counted by one that has not looked yet
        for batch in session.batches(loaders.train):
            session.step(made.loss(session.model, batch))
        session.synchronize()
        return {"tables": differences(session.table_counters(), before)}
