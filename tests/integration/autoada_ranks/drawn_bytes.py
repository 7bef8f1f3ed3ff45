"""Trains a knowledge graph with negatives that each node draws; all other rows are local before their use."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from adabench.backends.interface import ServerOptions
from adabench.backends.strategies.manual import ManualSession
from adabench.usecases.kge import KgeParams, KgeUseCase
from tests.integration.guarantees.common import RANK, arguments, report
from tests.worker_contexts import PerProcess, worker_context

NODES = int(os.environ["WORLD_SIZE"])
TABLE = "entities.weight"


def awaited(session: ManualSession, loader: Iterable[Any]) -> Iterator[Any]:
    for batch in loader:
        session.announce(batch, session.server.current_clock)
        for table, rows in session.keys(batch).items():
            session.server.wait_intent(session.model.node.table(table).keys(rows))
        yield batch


def trained(scheme: Any, steps: int) -> dict[str, float]:
    params = KgeParams(triples=20_000, batch=16, negatives=64, dim=32)
    usecase = KgeUseCase(params, None, 1)
    shared = PerProcess()
    session = ManualSession(usecase, worker_context(shared, RANK, NODES), ServerOptions(sampling=scheme))
    session.synchronize()
    before = session.table_counters()[TABLE]
    session.synchronize()  # no node's first step is counted by one that has not looked yet
    for batch in islice(session.drawn(awaited(session, usecase.loaders(RANK, NODES).train)), steps):
        session.step(usecase.loss(session.model, batch))
    session.synchronize()
    after = session.table_counters()[TABLE]
    session.close()
    shared.close()
    return {name: value - before[name] for name, value in after.items()}


given = arguments()
torch.set_num_threads(1)
report(**{scheme: trained(scheme, given["steps"]) for scheme in given["schemes"]})
