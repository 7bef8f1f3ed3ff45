"""Records: a run, and the session that it belongs to.

The names are final; fields may be added, never renamed or given another meaning without a new `SCHEMA`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from adabench.results.run_settings import RunSettings

__all__ = [
    "POLICY_LEFT_OUT",
    "READABLE",
    "SCHEMA",
    "STATUSES",
    "WAITING",
    "Budget",
    "EndedRun",
    "Git",
    "Host",
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
"""Version of new records. They end with a checksum, which version 1 may lack."""

READABLE = (1, SCHEMA)

POLICY_LEFT_OUT = "# left out of this copy"
"""First words of the replacement for a policy that is too long for a kept run. Its size and digest follow."""

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}\Z")]
"""A name that is used as a file name. A name from an untrusted record must not lead to another folder."""

Status = Literal["ok", "failed", "timeout", "oom", "skipped", "not_converged", "interrupted"]
STATUSES: tuple[Status, ...] = get_args(Status)
Phase = Literal["warmup", "measured"]

WAITING = (
    *("blocked_micros", "queue_full_micros", "unsent_full_micros", "sync_micros", "barrier_micros"),
    "channel_micros",
)
"""Counters of the time that a node's workers, rows and changes waited for other nodes, and of the time that
its channels worked."""


class RecordError(ValueError):
    """Records cannot be read or written. The message names the file and the remedy."""


class Seconds(msgspec.Struct, kw_only=True, frozen=True):
    """Wall seconds of a run by phase, from the launch of its process group to the exit of its last process.

    Attributes
    ----------
    setup : float, optional
        Time for the start of the processes, imports, reading the data and creating the model.
    train : float, optional
        Time for all epochs.
    eval : float, optional
        Time for the evaluations between and after the epochs.
    teardown : float, optional
        Time after the end of the last evaluation.
    total : float
        Time from launch to exit. The other fields are None if the run did not reach its end.
    """

    setup: float | None = None
    train: float | None = None
    eval: float | None = None
    teardown: float | None = None
    total: float


class Noise(msgspec.Struct, kw_only=True, frozen=True):
    """Load of the machine, before and after the run.

    Attributes
    ----------
    load1, load1_after : float
        Load average of the last minute, in processes that run or wait for a core.
    probe_seconds, probe_seconds_after : float
        Seconds of a fixed computation.
    """

    load1: float
    probe_seconds: float
    load1_after: float | None = None
    probe_seconds_after: float | None = None


class Link(msgspec.Struct, kw_only=True, frozen=True):
    """Links between network namespaces, as measured before a run, and their price.

    Attributes
    ----------
    round_trip_ms : float
        Round trip of a byte, in milliseconds.
    gbit_per_second : float
        Rate of one TCP connection, in 10⁹ bits per second.
    relay_cpu_seconds : float
        CPU seconds of the relay that carries the packets. The run's CPU seconds do not include them.
    """

    round_trip_ms: float
    gbit_per_second: float
    relay_cpu_seconds: float


class Budget(msgspec.Struct, kw_only=True, frozen=True):
    """Time of a node's training steps, by part.

    Attributes
    ----------
    rank : int
        Rank of the node.
    steps : int
        Number of steps of all its workers.
    seconds : float
        Wall seconds of training of all its workers.
    parts : dict of str to float
        Wall seconds of each part of a step, which add up to `seconds`. Nested parts count only in the
        innermost part.
    background : dict of str to float
        CPU seconds of the process's other threads during training, by thread name.
    """

    rank: int
    steps: int
    seconds: float
    parts: dict[str, float]
    background: dict[str, float]


class Host(msgspec.Struct, kw_only=True, frozen=True):
    """A host with nodes of a run.

    Attributes
    ----------
    nodes : list of int
        Ranks of these nodes.
    address : str
        Address where they listened.
    interface : str or None
        Network interface with this address.
    machine : str
        Description of the machine in one line.
    """

    nodes: list[int]
    address: str
    interface: str | None
    machine: str


class PlannedRun(RunSettings, kw_only=True, frozen=True):
    """One entry of a session's plan.

    Attributes
    ----------
    cell : str
        Hash of the cell: use case, backend, parameters, settings, data and sources.
    usecase, backend : str
        Names of the use case and of the backend.
    params : dict
        Resolved parameters of the use case and options of the backend.
    block : int
        Index of the block, from 0; -1 for the warm-up.
    position : int
        Position within the block, from 0.
    seed : int
        Seed of the weights and of the data order, equal for all runs of a block.
    phase : {"warmup", "measured"}
        Phase of the run. A warm-up is recorded and never compared.
    """

    cell: str
    usecase: Name
    backend: Name
    params: dict[str, Any]
    block: int
    position: int
    seed: int
    phase: Phase

    @property
    def key(self) -> tuple[str, Phase, int]:
        """Key that is equal for a planned run and its record."""
        return (self.cell, self.phase, self.block)


class EndedRun(PlannedRun, kw_only=True, frozen=True):
    """A planned run and its outcome.

    Attributes
    ----------
    schema : int
        Version of the format.
    run_id : str
        Identifier, unique in its session; logs and traces are named after it.
    session : str
        Name of its session.
    attempt : int
        Number of the attempt, from 1. It is larger if the run was repeated.
    status : {"ok", "failed", "timeout", "oom", "skipped", "not_converged", "interrupted"}
        Outcome. ``not_converged`` is a run that ended without an error, but did not reach `target`.
    failed_phase : str or None
        Phase of the first process that failed: ``launch``, ``setup``, ``train``, ``eval`` or ``teardown``.
    failed_rank : int or None
        Rank of the node that failed first.
    reason : str or None
        Reason for the failure or the omission, in one sentence.
    exit_code : int or None
        Exit code of the process that failed first.
    signal : str or None
        Name of the signal that ended it, such as ``SIGKILL``.
    started_at : str
        Start time in UTC, as ISO 8601.
    seconds : Seconds
        Wall seconds by phase.
    target : dict of str to float, optional
        Quality that validation had to reach.
    target_met : bool or None
        Whether validation reached it.
    seconds_to_target : float or None
        Wall seconds of training until validation reached it, in whole epochs.
    environment : str or None
        The session's `environment_id`.
    launcher : str
        Name of the launcher. Older records do not have it; their launcher was ``local``.
    hosts : list of Host
        Hosts of its nodes, if not all were on the session's machine.
    link : Link or None
        Measured links between its network namespaces.
    noise : Noise or None
        Load of the machine before and after the run.
    policy : str or None
        Complete policy, as TOML. It is missing in older records, and in records of backends without a policy.
        Their `params` contain its name as ``techniques``.
    """

    schema: int = SCHEMA
    run_id: Name
    session: str
    attempt: int
    status: Status
    failed_phase: str | None = None
    failed_rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: str
    seconds: Seconds
    target: dict[str, float] | None = None
    target_met: bool | None = None
    seconds_to_target: float | None = None
    environment: str | None = None
    launcher: str = "local"
    hosts: list[Host] = msgspec.field(default_factory=list)
    link: Link | None = None
    noise: Noise | None = None
    policy: str | None = None


class Run(EndedRun, kw_only=True, frozen=True):
    """A run with its outcome and its measurements: a line of ``runs.jsonl``.

    Attributes
    ----------
    data : str or None
        Fingerprint of the data, ``sha256:…``.
    data_facts : dict of str to int
        Numbers of samples that describe the data and their use, by names such as ``test_triples``. Empty for
        use cases without them, and in older records.
    epoch_seconds : list of float
        Wall seconds of each epoch's training, measured by worker 0 of node 0.
    samples : int
        Samples that all workers trained on, over all epochs.
    metrics : dict of str to float
        Quality on the whole test split at the best epoch by validation.
    metric : str or None
        Name of the use case's main metric; None in older records.
    tolerance : float or None
        Largest difference of that metric that does not matter.
    history : list of dict
        One entry per epoch: its number as ``epoch``, the metrics of the test split under their names, and the
        metrics of the validation split with the prefix ``valid_``. Use cases whose evaluation takes long use
        samples of the splits here, whose sizes are in `data_facts`.
    best_epoch : int or None
        Best epoch by validation, from 1.
    counters : dict of str to float
        Counters of the parameter server during the epochs, merged over nodes by `sum_counters`. The reference
        gives the unit of each.
    cpu_seconds : float or None
        User and system CPU seconds of all processes from start to end.
    train_cpu_seconds : float or None
        CPU seconds of the epochs.
    peak_rss_mib : float or None
        Peak resident memory in MiB, summed over node processes.
    context_switches : int or None
        Context switches of all node processes, voluntary or not.
    budgets : list of Budget
        Budget of each node if the run was profiled.
    tables : dict of str to dict of str to float
        Counters of each table of the parameter server, like `counters`. Empty in older records.
    waiting : dict of str to list of float
        Counters in `WAITING` of each node, by rank. They show which node is slow or has a slow link, and how
        busy the channels of each node were. Empty for one node, without counters, and in older records.
    """

    data: str | None
    data_facts: dict[str, int] = msgspec.field(default_factory=dict)
    epoch_seconds: list[float] = msgspec.field(default_factory=list)
    samples: int = 0
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    metric: str | None = None
    tolerance: float | None = None
    history: list[dict[str, float]] = msgspec.field(default_factory=list)
    best_epoch: int | None = None
    counters: dict[str, float] = msgspec.field(default_factory=dict)
    cpu_seconds: float | None = None
    train_cpu_seconds: float | None = None
    peak_rss_mib: float | None = None
    context_switches: int | None = None
    budgets: list[Budget] = msgspec.field(default_factory=list)
    tables: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    waiting: dict[str, list[float]] = msgspec.field(default_factory=dict)


class Git(msgspec.Struct, kw_only=True, frozen=True):
    """Commit of the sources.

    Attributes
    ----------
    commit : str
        Full hash of the commit.
    dirty : bool
        Whether tracked files differed from it.
    """

    commit: str
    dirty: bool


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """One execution of a study: ``session.json``.

    Attributes
    ----------
    schema : int
        Version of the format.
    session : str
        Name of the session and of its folder.
    created_at : str
        Time of creation in UTC, as ISO 8601.
    command : list of str
        Command line.
    study : dict
        Resolved study.
    study_id : str
        Hash of the study, its sources and data. A session with an equal hash is continued.
    seed : int
        Seed of the order of the runs. Block b trains with seed + b.
    plan : list of PlannedRun
        All runs in order.
    environment : dict
        Machine, system and versions.
    environment_id : str
        Hash of the parts of `environment` that affect measurements. Runs with different hashes are never
        pooled without a warning.
    git : Git or None
        Commit of the sources; None outside of a clone.
    machine : str
        Description of the machine in one line.
    analyses : int
        Maximum number of analyses of the session until its intervals are narrow enough. Each takes an equal
        part of the significance level. Files use the name ``looks``.
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
    analyses: int = msgspec.field(default=1, name="looks")


def sum_counters(counters: list[dict[str, float]]) -> dict[str, float]:
    """Merge counters of several nodes: maximum of ``…_max``, mean of ``…_mean``, sums of all others.

    Parameters
    ----------
    counters : list of dict of str to float
        Counters of each node. A name may be missing on some nodes.
    """
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
