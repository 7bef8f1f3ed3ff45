"""What passes between the harness and the processes of a run: small JSON files in a scratch folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adabench.results.record import Budget, Choice, RunSettings

__all__ = [
    "FILES",
    "NETWORK_VARIABLE",
    "Place",
    "RankError",
    "RankResult",
    "RankState",
    "RunSpec",
    "error_file",
    "progress_file",
    "read_json",
    "result_file",
    "state_file",
]

T = TypeVar("T")

NETWORK_VARIABLE = "ADAPS_NETWORK"
"""Environment variable that tells the parameter server how to shape its links."""


class Place(msgspec.Struct, kw_only=True, frozen=True):
    """The part of a run's ranks that one process group has, where there are several.

    `local_rank` is that of the first of them among all `local_size` on its host, `address` and `port` are of
    the store where all meet; the group of port 0 holds it. `interface` is the network's.
    """

    ranks: list[int]
    local_rank: int
    local_size: int
    group: int
    groups: int
    address: str
    port: int = 0
    interface: str | None = None


class RunSpec(RunSettings, kw_only=True, frozen=True):
    """One run: what to train with what, and how.

    `folder`, `namespaces`, one per node if the network has any, `quotas`, the control groups of the ranks
    that do not get all of their cores, and `launched_at`, on the machine's monotonic clock, are set by the
    launch. With `trace` the life of a few rows is written down in the first epoch. `turns` is the socket of
    a run that takes turns with others, `policy` a whole document, `cell` the identifier of the cell, `place`
    None if all ranks are of one process group. With `watched` its nodes say how they are while they train.
    """

    usecase: str
    params: dict[str, Any]
    backend: str
    options: dict[str, Any]
    policy: str | None = None
    data: str | None = None
    seed: int = 1
    trace: bool = False
    profile: str | None = None
    turns: str | None = None
    cell: str = ""
    place: Place | None = None
    watched: bool = False
    folder: str = ""
    namespaces: list[str] = msgspec.field(default_factory=list)
    quotas: dict[int, str] = msgspec.field(default_factory=dict)
    launched_at: float = 0.0


class RankState(msgspec.Struct, kw_only=True, frozen=True):
    """How far a rank has come; rewritten when its phase changes."""

    pid: int
    phase: str
    epoch: int = 0


class RankError(msgspec.Struct, kw_only=True, frozen=True):
    """The exception that ended a rank; `at`, on the monotonic clock, tells which came first.

    `unavailable` says that the backend cannot work here, which is no failure.
    """

    rank: int
    phase: str
    kind: str
    message: str
    at: float
    unavailable: bool = False


class RankResult(msgspec.Struct, kw_only=True, frozen=True):
    """What a rank measured. Seconds, metrics and history are filled in by rank 0.

    CPU seconds are those of all threads of the process, `cpu_seconds` also those of its children. In
    `paused_seconds` it was other runs' turn; they are part of no others.
    """

    rank: int
    counters: dict[str, float]
    cpu_seconds: float
    peak_rss_mib: float
    context_switches: int
    samples: int
    setup_seconds: float
    train_seconds: float
    train_cpu_seconds: float
    eval_seconds: float
    paused_seconds: float
    epoch_seconds: list[float]
    data: str
    tables: dict[str, dict[str, float]] = {}
    choices: list[Choice] = []
    metrics: dict[str, float] = {}
    history: list[dict[str, float]] = []
    best_epoch: int | None = None
    trace: list[dict[str, Any]] = []
    budget: Budget | None = None


def state_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.state.json"


def error_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.error.json"


def result_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.result.json"


def progress_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.samples.json"


FILES: Mapping[str, Callable[[Path, int], Path]] = {
    "state": state_file,
    "error": error_file,
    "result": result_file,
    "samples": progress_file,
}
"""What a rank writes, by its kind."""


def read_json(file: Path, kind: type[T]) -> T | None:
    """What a process of a run has written; None if it has not."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
