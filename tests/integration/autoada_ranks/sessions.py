"""Sessions of backends, one after the other, each under a policy: losses, announcements, counters."""

import os
from collections import defaultdict
from itertools import islice
from typing import Any
from unittest.mock import patch

import msgspec
import torch

import adaps
from adabench.backends.interface import WorkerContext
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.harness.study.data_partition import partitioned
from tests.integration.guarantees.common import RANK, arguments, report

NODES = int(os.environ["WORLD_SIZE"])


def trained(case: dict[str, Any]) -> dict[str, Any]:
    kind, backend = load_usecase(case["usecase"]), load_backend(case["backend"])()
    usecase = kind(msgspec.convert(case["params"], kind.Params), None, 1)
    optimizer = getattr(torch.optim, case["optimizer"])
    usecase.optimizer = lambda model: optimizer(model.parameters(), lr=case["rate"])  # type: ignore[method-assign]
    made: list[Any] = []

    def share(make: Any) -> Any:
        made.append(make())
        return made[0]

    policy = adaps.Policy.parse(case["policy"])
    cluster = WorkerContext(RANK, NODES, 0, 1, 1, "loopback", share, policy=policy)
    loader = partitioned(usecase, policy, 1).loaders(RANK, NODES).train
    distances: dict[str, set[int]] = defaultdict(set)
    farthest: dict[str, dict[int, int]] = defaultdict(dict)
    announce = adaps.Worker.intent

    def intent(worker: Any, keys: Any, start: int, end: int | None = None) -> None:
        distance = start - worker.current_clock
        for table in made[0].tables:
            rows = keys - table.first_key
            rows = rows[(rows >= 0) & (rows < table.rows)].tolist()
            if rows:
                distances[table.name].add(distance)
            for row in rows:
                farthest[table.name][row] = max(farthest[table.name].get(row, 0), distance)
        announce(worker, keys, start, *([] if end is None else [end]))

    with patch.object(adaps.Worker, "intent", intent):
        session = backend.open(usecase, cluster, backend.Options(lookahead=case["lookahead"]))
        session.synchronize()
        before = session.table_counters()  # type: ignore[attr-defined]
        counted = session.counters()
        session.synchronize()  # no node's first step is counted by one that has not looked yet
        losses = []
        for batch in islice(session.batches(loader), case["steps"]):
            loss = usecase.loss(session.model, batch)
            losses.append(loss.item())
            session.step(loss)
        session.synchronize()
        sent = {name: value - counted[name] for name, value in session.counters().items() if "_sent" in name}
    after = session.table_counters()  # type: ignore[attr-defined]
    session.synchronize()  # reading the state is not counted, either
    state = session.model.state_dict() if case["state"] else {}
    session.synchronize()
    session.close()
    made[0].close()
    return {
        "losses": losses,
        "sent": sent,
        "state": {name: value.flatten().tolist() for name, value in state.items()},
        "distances": {table: sorted(found) for table, found in distances.items()},
        "farthest": {table: sorted(found.items()) for table, found in farthest.items()},
        "tables": {
            table: {name: value - before[table][name] for name, value in counted.items()}
            for table, counted in after.items()
        },
    }


given = arguments()
torch.set_num_threads(1)
report(runs=[trained(case) for case in given["cases"]])
