"""What a record is: a run, and the session that it belongs to.

The names are final; fields may be added, never renamed or given another meaning without a new `SCHEMA`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

__all__ = [
    "READABLE",
    "SCHEMA",
    "STATUSES",
    "Budget",
    "Git",
    "Link",
    "Name",
    "Noise",
    "Phase",
    "PlannedRun",
    "RecordError",
    "Run",
    "Seconds",
    "Session",
    "Status",
    "sum_counters",
]

SCHEMA = 2
"""Of records that are written now: each ends with a checksum, which those of schema 1 may lack."""

READABLE = (1, SCHEMA)

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}\Z")]
"""What files are called after: in a record of a stranger it must not lead anywhere else."""

Status = Literal["ok", "failed", "timeout", "oom", "skipped", "not_converged", "interrupted"]
STATUSES: tuple[Status, ...] = (
    "ok",
    "failed",
    "timeout",
    "oom",
    "skipped",
    "not_converged",
    "interrupted",
)
Phase = Literal["warmup", "measured"]


class RecordError(ValueError):
    """Records that cannot be read or written: one sentence that names the file and what would be right."""


class Seconds(msgspec.Struct, kw_only=True, frozen=True):
    """Wall seconds of a run by phase, from the launch of its process group to the exit of its last process.

    `setup` includes the start of the processes, imports and reading the data; `train` is the sum of the
    epochs; `eval` the evaluations between and after them.
    """

    setup: float | None = None
    train: float | None = None
    eval: float | None = None
    teardown: float | None = None
    total: float


class Noise(msgspec.Struct, kw_only=True, frozen=True):
    """What else the machine was doing: the load and a fixed computation's time, before and after the run."""

    load1: float
    probe_seconds: float
    load1_after: float | None = None
    probe_seconds_after: float | None = None


class Link(msgspec.Struct, kw_only=True, frozen=True):
    """What the links between network namespaces were measured to be right before a run, and their price.

    The round trip is that of a byte, the rate that of one TCP connection. The relay that carries the packets
    is no part of the run's CPU seconds.
    """

    round_trip_ms: float
    gbit_per_second: float
    relay_cpu_seconds: float


class Budget(msgspec.Struct, kw_only=True, frozen=True):
    """Where the time of a node's training steps went.

    `parts` are wall seconds of all its workers and sum up to `seconds`, what their training took; what they
    did inside one another counts once, as the innermost. `background` are CPU seconds of the process's other
    threads meanwhile, by the threads' name.
    """

    rank: int
    steps: int
    seconds: float
    parts: dict[str, float]
    background: dict[str, float]


class Run(msgspec.Struct, kw_only=True, frozen=True):
    """One cell, executed once: a line of ``runs.jsonl``.

    `metrics` are those of the test split at the best epoch by validation. The use case is judged by `metric`,
    and differences of at most `tolerance` in it do not matter; older records have neither. `history` has an
    entry per epoch: the test split's metrics under their own names, the validation split's with the prefix
    ``valid_``.
    `cpu_seconds` are those of all processes from start to end, `train_cpu_seconds` those of the epochs.
    `budgets` are there, one a node, if the run was profiled.
    If it was `pinned`, each node process had one core of its own for all its threads. If it was
    `interleaved`, the runs of its block took turns, of an epoch or so many steps as the session's study says.
    No seconds count in which it was another's turn, but in the total of a run that did not end well.
    """

    schema: int = SCHEMA
    run_id: Name
    session: str
    cell: str
    usecase: Name
    backend: Name
    params: dict[str, Any]
    nodes: int
    workers: int
    network: str
    pinned: bool = False
    interleaved: bool = False
    data: str | None
    block: int
    position: int
    seed: int
    phase: Phase
    attempt: int
    status: Status
    failed_phase: str | None = None
    failed_rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: str
    seconds: Seconds
    epoch_seconds: list[float] = []
    samples: int = 0
    metrics: dict[str, float] = {}
    metric: str | None = None
    tolerance: float | None = None
    history: list[dict[str, float]] = []
    best_epoch: int | None = None
    target: dict[str, float] | None = None
    target_met: bool | None = None
    seconds_to_target: float | None = None
    counters: dict[str, float] = {}
    cpu_seconds: float | None = None
    train_cpu_seconds: float | None = None
    peak_rss_mib: float | None = None
    context_switches: int | None = None
    noise: Noise | None = None
    link: Link | None = None
    environment: str | None = None
    budgets: list[Budget] = []


class PlannedRun(msgspec.Struct, kw_only=True, frozen=True):
    """One entry of a session's plan: which cell runs when."""

    cell: str
    usecase: Name
    backend: Name
    params: dict[str, Any]
    nodes: int
    workers: int
    network: str
    pinned: bool = False
    interleaved: bool = False
    block: int
    position: int
    seed: int
    phase: Phase

    @property
    def key(self) -> tuple[str, Phase, int]:
        """What makes a planned run the same one as a recorded run."""
        return (self.cell, self.phase, self.block)


class Git(msgspec.Struct, kw_only=True, frozen=True):
    """The commit that ran, and whether tracked files differed from it."""

    commit: str
    dirty: bool


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """One execution of a study: ``session.json``.

    `environment_id` is a hash of the parts of `environment` that change what is measured; runs of different
    identifiers are never pooled silently. `looks` is how often at most the session was to be judged until it
    was precise enough: each time at that part of the level.
    """

    schema: int = SCHEMA
    session: str
    created_at: str
    command: list[str]
    study: dict[str, Any]
    study_id: str
    seed: int
    plan: list[PlannedRun]
    environment: dict[str, Any]
    environment_id: str
    git: Git | None
    machine: str
    looks: int = 1


def sum_counters(counters: list[dict[str, float]]) -> dict[str, float]:
    """Merge the counters of several nodes: summed, but ``…_max`` the greatest and ``…_mean`` the mean."""
    merged: dict[str, float] = {}
    for name in sorted(set().union(*counters)):
        values = [one[name] for one in counters if name in one]
        if name.endswith("_max"):
            merged[name] = max(values)
        elif name.endswith("_mean"):
            merged[name] = sum(values) / len(values)
        else:
            merged[name] = sum(values)
    return merged
