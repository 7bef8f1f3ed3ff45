"""Rows of the newest session of the study `peers`: ours against its floor and against other systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from adabench.analysis.load import cell_labels, measured
from adabench.results.record import Run
from adabench.results.store import list_sessions

from .goals import Row

__all__ = ["Cost", "costs", "newest_runs", "rows_against_peers"]

FLOOR = "floor"
PEERS = ("torchrec", "rpc", "ddp", "single")
OURS = "autoada-automatic"

Measure = Callable[[Run], float]


class Cost(msgspec.Struct, frozen=True):
    """Medians over a backend's measured runs."""

    backend: str
    cpu_microseconds_a_sample: float
    samples_a_second: float
    auc: float
    runs: int


def newest_runs(sessions: Path) -> list[Run]:
    """The measured runs of the newest session, none if there is no session."""
    stores = [store for store in list_sessions(sessions) if store.session().study["name"] == "peers"]
    return measured(stores[-1].runs()) if stores else []


def costs(runs: Sequence[Run]) -> list[Cost]:
    """A line a backend, cheapest first."""
    found = [
        Cost(
            backend=label,
            cpu_microseconds_a_sample=round(median(map(cpu_microseconds, own)), 2),
            samples_a_second=round(median(map(samples_a_second, own))),
            auc=round(median(run.metrics["auc"] for run in own), 4),
            runs=len(own),
        )
        for label, own in _by_label(runs).items()
    ]
    return sorted(found, key=lambda cost: cost.cpu_microseconds_a_sample)


def rows_against_peers(runs: Sequence[Run]) -> list[Row]:
    """Automatic intent as ratios to the floor and to whichever peer was the best in a block."""
    ours = [run for run in runs if run.backend == OURS and run.params["techniques"] == "adaptive"]
    floor = [run for run in runs if run.backend == FLOOR]
    peers = [run for run in runs if run.backend in PEERS]
    rows = []
    if ours and floor:
        cost = _ratio(ours, floor, cpu_microseconds, min)
        rows.append(Row("CTR on 2 nodes, CPU a sample", cost, 1.25, "× the floor", at_most=True))
    if ours and peers:
        names = ", ".join(name for name in PEERS if any(run.backend == name for run in peers))
        cost = _ratio(ours, peers, cpu_microseconds, min)
        rows.append(Row("CTR on 2 nodes, CPU a sample", cost, 1, f"× the best of {names}", at_most=True))
        speed = _ratio(ours, peers, samples_a_second, max)
        rows.append(Row("CTR on 2 nodes, samples a second", speed, 1, f"× the best of {names}"))
    return rows


def cpu_microseconds(run: Run) -> float:
    assert run.train_cpu_seconds is not None
    return 1e6 * run.train_cpu_seconds / run.samples


def samples_a_second(run: Run) -> float:
    return run.samples / sum(run.epoch_seconds)


def _by_label(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    labels = cell_labels(runs)
    return {label: [run for run in runs if run.cell == cell] for cell, label in labels.items()}


def _ratio(
    ours: Sequence[Run], others: Sequence[Run], measure: Measure, best: Callable[[Sequence[float]], float]
) -> float:
    """The median over blocks of ours over the best of the others in the same block."""
    ratios = []
    for own in ours:
        beside = [measure(run) for run in others if run.block == own.block]
        if beside:
            ratios.append(measure(own) / best(beside))
    return round(median(ratios), 4)
