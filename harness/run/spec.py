"""Data exchanged between the harness and the processes of a run, as small JSON files in a scratch folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from adabench.harness.study.cell import Cell
from adabench.results.record import WAITING, Budget, sum_counters

T = TypeVar("T")

FileKind = Literal["state", "error", "result", "progress", "failures", "left", "rendezvous"]

NETWORK_VARIABLE = "ADAPS_NETWORK"
"""Environment variable with the delay and bandwidth of the parameter server's links."""


class Place(msgspec.Struct, kw_only=True, frozen=True):
    """The part of a run's ranks that one process group has, where there are several.

    `local_rank` is the first rank's number among all `local_size` ranks on its host. `address` and `port`
    identify the store of the rendezvous, which the group with port 0 opens. `interface` is the network
    interface.
    """

    ranks: list[int]
    local_rank: int
    local_size: int
    group: int
    groups: int
    address: str
    port: int = 0
    interface: str | None = None


class RunSpec(Cell, kw_only=True, frozen=True):
    """One run of a cell: everything that its processes need.

    Attributes
    ----------
    cell : str
        Identifier of the cell. `params` may differ from the cell in the number of epochs.
    seed : int
        Seed of the initial weights and of the data order.
    trace : bool
        Whether the life of a few rows is recorded in the first epoch.
    profile : str or None
        Folder for flame graphs; if it is set, the run's steps are timed part by part.
    turn_socket : str or None
        Socket of a run that takes turns with others.
    watched : bool
        Whether nodes write their progress while they train.
    place : Place or None
        Ranks of this process group; None if it has all ranks.
    folder, namespaces, quotas, launched_at
        Values that the launch sets: the scratch folder, the network namespace of each node if there are any,
        the control groups of ranks that get a part of their cores, and the start time on the monotonic clock.
    """

    cell: str = ""
    seed: int = 1
    trace: bool = False
    profile: str | None = None
    turn_socket: str | None = None
    watched: bool = False
    place: Place | None = None
    folder: str = ""
    namespaces: list[str] = msgspec.field(default_factory=list)
    quotas: dict[int, str] = msgspec.field(default_factory=dict)
    launched_at: float = 0.0


class RankState(msgspec.Struct, kw_only=True, frozen=True):
    """Progress of a rank; rewritten when its phase changes."""

    pid: int
    phase: str
    epoch: int = 0


class RankError(msgspec.Struct, kw_only=True, frozen=True):
    """The exception that ended a rank; `at`, on the monotonic clock, gives the order of errors.

    `unavailable` is true if the backend cannot work here, which is not a failure.
    """

    rank: int
    phase: str
    kind: str
    message: str
    at: float
    unavailable: bool = False


class WorkerResult(msgspec.Struct, kw_only=True):
    """Measurements of one worker, which its training loop fills in.

    Attributes
    ----------
    samples : int
        Number of samples in training.
    counters, tables
        Counters of training, for all tables together and for each table. The first worker of a node has the
        node's counters.
    setup_seconds, eval_seconds, train_cpu_seconds : float
        Wall seconds of setup and evaluation, and CPU seconds of training.
    epoch_seconds : list of float
        Training seconds of each epoch, without the turns of other runs.
    metrics, history, best_epoch
        Results as in `Run`, on the worker that evaluates.
    trace : list of dict
        Events of the traced rows.
    """

    samples: int = 0
    counters: dict[str, float] = {}
    tables: dict[str, dict[str, float]] = {}
    setup_seconds: float = 0.0
    eval_seconds: float = 0.0
    train_cpu_seconds: float = 0.0
    epoch_seconds: list[float] = []
    metrics: dict[str, float] = {}
    history: list[dict[str, float]] = []
    best_epoch: int | None = None
    trace: list[dict[str, Any]] = []

    @property
    def train_seconds(self) -> float:
        return sum(self.epoch_seconds)


class RankResult(WorkerResult, kw_only=True):
    """Measurements of a rank: of its first worker, with the samples of all workers, and of the process.

    Attributes
    ----------
    rank : int
        Number of the process among all node processes.
    cpu_seconds : float
        CPU seconds of all threads and of the process's children.
    peak_rss_mib : float
        Maximum resident memory in MiB.
    context_switches : int
        Number of context switches.
    paused_seconds : float
        Seconds of other runs' turns; no other field contains them.
    data : str
        Fingerprint of the data.
    data_facts : dict of str to int
        Numbers that describe the data.
    budget : Budget or None
        Time budget of a profiled run.
    """

    rank: int
    cpu_seconds: float
    peak_rss_mib: float
    context_switches: int
    paused_seconds: float
    data: str
    data_facts: dict[str, int] = msgspec.field(default_factory=dict)
    budget: Budget | None = None


def merged_results(results: Sequence[RankResult]) -> dict[str, Any]:
    """Fields of a run's record that its ranks measured; none without results."""
    if not results:
        return {}
    first = results[0]
    summed = ("samples", "cpu_seconds", "train_cpu_seconds", "peak_rss_mib", "context_switches")
    of_first = ("data_facts", "epoch_seconds", "metrics", "history", "best_epoch")
    tables = dict.fromkeys(table for one in results for table in one.tables)
    waited = [name for name in WAITING if len(results) > 1 and all(name in one.counters for one in results)]
    return {
        **{name: sum(getattr(one, name) for one in results) for name in summed},
        **{name: getattr(first, name) for name in of_first},
        "counters": sum_counters([one.counters for one in results]),
        "tables": {table: sum_counters([one.tables.get(table, {}) for one in results]) for table in tables},
        "budgets": [one.budget for one in results if one.budget is not None],
        "waiting": {name: [one.counters[name] for one in results] for name in waited},
    }


RANK_FILES: tuple[FileKind, ...] = ("state", "error", "result", "progress")
"""Files that a rank writes."""

GROUP_FILES: tuple[FileKind, ...] = ("failures", "left", "rendezvous")
"""Files that a process group writes.

They have a `Failure` for each failed rank, as soon as it has failed; the names of all that was still there
when the group's ranks had ended; and, of the first group, the port of its store. """


def exchange_file(folder: Path, kind: FileKind, number: int) -> Path:
    """File of a rank or of a process group, by its number, in a run's scratch folder."""
    return folder / f"{'group' if kind in GROUP_FILES else 'rank'}{number}.{kind}.json"


def read_json(file: Path, kind: type[T]) -> T | None:
    """Return the object that a process of a run has written; None if there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
