"""Sessions of backends under technique "auto", with seconds that depend on whether rows move only."""

import os
from collections import defaultdict
from itertools import islice
from typing import Any
from unittest.mock import patch

import msgspec
import torch

import adaps
import autoada.model.wrapper
from adabench.backends.interface import WorkerContext
from adabench.harness.plugins.registry import load_backend, load_usecase
from autoada.training.technique_choice import TechniqueTrial, technique_trial
from tests.integration.guarantees.common import RANK, arguments, report

NODES = int(os.environ["WORLD_SIZE"])


def slowed(factors: list[float]) -> Any:
    """A factory of technique trials whose clock lets each step take one second times the group's factor."""

    def make(*args: Any) -> TechniqueTrial | None:
        trial = technique_trial(*args)
        assert trial is not None
        seconds = 0.0

        def now() -> float:
            nonlocal seconds
            step = 1.0
            for group, factor in enumerate(factors):
                step *= factor if trial._schedule.moves(group, trial._done) else 1.0
            seconds += step
            return seconds

        trial._now = now
        return trial

    return make


def trained(case: dict[str, Any]) -> dict[str, Any]:
    kind, backend = load_usecase(case["usecase"]), load_backend(case["backend"])()
    usecase = kind(msgspec.convert(case["params"], kind.Params), None, 1)
    made: list[Any] = []

    def share(make: Any) -> Any:
        made.append(make())
        return made[0]

    cluster = WorkerContext(
        RANK, NODES, 0, 1, 1, "loopback", share, policy=adaps.Policy.parse(case["policy"])
    )
    announced: dict[str, list[int]] = defaultdict(list)
    announce = adaps.Worker.intent

    def intent(worker: Any, keys: Any, start: int, end: int | None = None) -> None:
        for table in made[0].tables:
            if ((keys >= table.first_key) & (keys < table.first_key + table.rows)).any():
                announced[table.name].append(start - first)
        announce(worker, keys, start, *([] if end is None else [end]))

    session = backend.open(usecase, cluster, backend.Options(lookahead=case["lookahead"]))
    session.synchronize()
    worker: Any = session.model.worker
    first = worker.current_clock
    with patch.object(adaps.Worker, "intent", intent):
        for batch in islice(session.batches(usecase.loaders(RANK, NODES).train), case["steps"]):
            session.step(usecase.loss(session.model, batch))
    session.synchronize()
    chosen = [msgspec.to_builtins(one) for one in session.chosen()]  # type: ignore[attr-defined]
    session.close()
    made[0].close()
    return {"chosen": chosen, "announced": {table: sorted(clocks) for table, clocks in announced.items()}}


given = arguments()
torch.set_num_threads(1)
with patch.object(autoada.model.wrapper, "technique_trial", slowed(given["factors"])):
    report(runs=[trained(case) for case in given["cases"]])
