"""Traces the life of a few rows of a run, from the most to the least used."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch

from adabench.backends.interface import Traceable, TrainingSession, WorkerContext
from adabench.results.store import write_atomically
from adabench.usecases.interface import UseCase

BATCHES = 100
EXPONENTS = (0.5, 0.7, 0.85, 1.0)
"""Ranks of traced rows, as fractions of the number of rows, from often to rarely used."""


def begin_trace(
    session: TrainingSession, usecase: UseCase, cluster: WorkerContext, folder: Path, leads: bool
) -> None:
    """Trace the same rows on every node. Collective; sessions that cannot trace are left alone.

    One worker `leads`: it writes the rows to `folder`, where the others read them. The worker must have
    access to the folder. It finds the same rows on every host.
    """
    if not isinstance(session, Traceable):
        return
    file = folder / "traced-rows.json"
    if leads:
        batches = usecase.loaders(0, cluster.world_size * cluster.workers).train
        write_atomically(file, msgspec.json.encode(rows_to_trace(usecase, batches)))
    session.synchronize()
    if cluster.worker == 0:
        rows = msgspec.json.decode(file.read_bytes(), type=dict[str, list[int]])
        session.trace({table: torch.tensor(ids) for table, ids in rows.items()})


def rows_to_trace(usecase: UseCase, batches: Iterable[Any]) -> dict[str, list[int]]:
    """Five rows of the table that the first batches read most rows of, from its most to its least used."""
    read: dict[str, list[torch.Tensor]] = {}
    for batch in islice(batches, BATCHES):
        for table, ids in usecase.keys(batch).items():
            # A row counts once per batch that accesses it, however often the batch does.
            read.setdefault(table, []).append(ids.unique())
    used = {table: torch.cat(ids).unique(return_counts=True) for table, ids in read.items()}
    table = max(used, key=lambda name: len(used[name][0]))
    ids, counts = used[table]
    ranked = ids[counts.argsort(descending=True, stable=True)].tolist()
    places = {0, *(round((len(ranked) - 1) ** exponent) for exponent in EXPONENTS)}
    return {table: [ranked[place] for place in sorted(places) if place < len(ranked)]}
