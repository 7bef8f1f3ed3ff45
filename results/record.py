"""What a record is: a run, and the session that it belongs to.

The names are final; fields may be added, never renamed or given another meaning without a new `SCHEMA`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

__all__ = [
    "POLICY_LEFT_OUT",
    "READABLE",
    "SCHEMA",
    "STATUSES",
    "WAITING",
    "Budget",
    "Choice",
    "Git",
    "Host",
    "Link",
    "Name",
    "Noise",
    "Phase",
    "PlannedRun",
    "RecordError",
    "Run",
    "RunSettings",
    "Seconds",
    "Session",
    "Setting",
    "Status",
    "sum_counters",
]

SCHEMA = 2
"""The version of records that are written now. A checksum is at their end, which version 1 may lack."""

READABLE = (1, SCHEMA)

POLICY_LEFT_OUT = "# left out of this copy"
"""How the policy of a kept run begins that was too long for it; its size and digest follow."""

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

WAITING = ("blocked_micros", "queue_full_micros", "unsent_full_micros", "sync_micros", "barrier_micros")
"""Counters of time in which a node's workers, or its rows and changes, waited for other nodes."""


class RecordError(ValueError):
    """Records that cannot be read or written: one sentence that names the file and what would be right."""


class Seconds(msgspec.Struct, kw_only=True, frozen=True):
    """Wall seconds of a run by phase, from the launch of its process group to the exit of its last process.

    Attributes
    ----------
    setup : float, optional
        The start of the processes, imports, reading the data and making the model.
    train : float, optional
        The epochs together.
    eval : float, optional
        The evaluations between and after them.
    teardown : float, optional
        From the end of the last evaluation on.
    total : float
        From launch to exit; the others are None if the run did not come to its end.
    """

    setup: float | None = None
    train: float | None = None
    eval: float | None = None
    teardown: float | None = None
    total: float


class Noise(msgspec.Struct, kw_only=True, frozen=True):
    """What else the machine was doing, before and after the run.

    Attributes
    ----------
    load1, load1_after : float
        The machine's load average of the last minute, in processes that run or wait for a core.
    probe_seconds, probe_seconds_after : float
        What a fixed computation took, in seconds.
    """

    load1: float
    probe_seconds: float
    load1_after: float | None = None
    probe_seconds_after: float | None = None


class Link(msgspec.Struct, kw_only=True, frozen=True):
    """What the links between network namespaces were measured to be right before a run, and their price.

    Attributes
    ----------
    round_trip_ms : float
        Of a byte, in milliseconds.
    gbit_per_second : float
        Rate of one TCP connection, in 10⁹ bits per second.
    relay_cpu_seconds : float
        CPU seconds of the relay that carries the packets, which are no part of the run's.
    """

    round_trip_ms: float
    gbit_per_second: float
    relay_cpu_seconds: float


class Budget(msgspec.Struct, kw_only=True, frozen=True):
    """Where the time of a node's training steps went.

    Attributes
    ----------
    rank : int
        The node.
    steps : int
        How many, of all its workers.
    seconds : float
        Wall seconds of all its workers' training.
    parts : dict of str to float
        Wall seconds of each part of a step, which sum up to `seconds`; of parts inside one another the
        innermost counts.
    background : dict of str to float
        CPU seconds of the process's other threads meanwhile, by the threads' name.
    """

    rank: int
    steps: int
    seconds: float
    parts: dict[str, float]
    background: dict[str, float]


class Host(msgspec.Struct, kw_only=True, frozen=True):
    """A host on which nodes of a run were.

    Attributes
    ----------
    nodes : list of int
        Their ranks.
    address : str
        Where they listened.
    interface : str or None
        The network's interface that has this address.
    machine : str
        The machine in one line.
    """

    nodes: list[int]
    address: str
    interface: str | None
    machine: str


class Choice(msgspec.Struct, kw_only=True, frozen=True):
    """What a node chose for a table of which the policy says ``technique = "auto"``.

    Attributes
    ----------
    rank : int
        The node.
    table : str
        The parameter's qualified name.
    technique : {"adaptive", "static"}
        Rows moved, and were copied, or stayed where they were. ``adaptive`` if it was not decided.
    steps : int or None
        Of its first worker until it knew; None if it was not decided.
    pairs : int
        Of stretches that were compared.
    ratio : float or None
        What a step took while rows moved, divided by what it took while they stayed, by all workers' steps.
    alone : bool
        Whether it decided by its first worker's steps, as it did not hear from the others.
    """

    rank: int
    table: str
    technique: Literal["adaptive", "static"]
    steps: int | None
    pairs: int
    ratio: float | None
    alone: bool


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """What a field of `RunSettings` is to somebody who plans runs; its type and limits are the field's own.

    Attributes
    ----------
    help : str
        What the command line's option does.
    default : object, optional
        The value in a study that gives none, where the field itself has no default.
    several : bool
        Whether a study may give several values, each of which makes cells of its own.
    needs : str, optional
        The field without which this one means nothing.
    because : str
        Why it needs that: what goes on after the value in the sentence that refuses it.
    """

    help: str
    default: Any = None
    several: bool = False
    needs: str | None = None
    because: str = ""


class RunSettings(msgspec.Struct, kw_only=True, frozen=True):
    """How a run is executed, apart from its use case, its backend and their parameters.

    Studies, cells, plans, what a run's processes are told and records all contain these fields. Add one here,
    with a default that is true of older records, and it is a key of studies, an option of ``run``, ``plan``
    and ``profile``, a part of what makes cells differ, and recorded; what it does is up to the code that
    executes a run.

    Attributes
    ----------
    nodes : int
        Node processes.
    workers : int
        Worker threads per node.
    network : str
        The links between nodes: ``loopback``, ``lan``, ``slow``, a delay and a rate, or ``namespaces:…``.
    pinned : bool
        Whether each node process had one core of its own for all its threads.
    interleaved : bool
        Whether the runs of its block took turns. No seconds count in which it was another's turn, but in the
        total of a run that did not end well.
    turn_steps : int
        Steps of a turn; 0 for an epoch and its evaluation. Older records do not have it: there it stands in
        the session's study.
    node_percent : int
        What each node got of the processor, in percent of an equal part of the cores, one core at most.
    last_node_percent : int
        What the last of several nodes got, in percent of what the others did.
    """

    nodes: Annotated[
        int,
        msgspec.Meta(ge=1, le=1024),
        Setting(help="Node processes; several values make several cells.", default=2, several=True),
    ]
    workers: Annotated[
        int,
        msgspec.Meta(ge=1, le=1024),
        Setting(help="Worker threads per node.", default=1, several=True),
    ]
    network: Annotated[
        str,
        Setting(
            help="Links between nodes: loopback, sockets (the same without shared memory), lan, slow, or "
            "such as 0.5ms,2gbit; namespaces:lan, between network namespaces, slows down all sockets, and "
            "namespaces:lan:0-1/10 one link more.",
            default="loopback",
            several=True,
        ),
    ]
    pinned: Annotated[bool, Setting(help="Each node process gets one core for all its threads.")] = False
    interleaved: Annotated[
        bool,
        Setting(
            help="The runs of a block take turns, an epoch each: for noisy machines; all are in memory at "
            "once."
        ),
    ] = False
    turn_steps: Annotated[
        int,
        msgspec.Meta(ge=0, le=10**9),
        Setting(
            help="Steps of a turn with --interleaved, instead of an epoch.",
            needs="interleaved",
            because="is the length of a turn, but the runs take none",
        ),
    ] = 0
    node_percent: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting(
            help="How much of an equal part of the cores, one core at most, each node gets, in percent: the "
            "rest is left to the relay of namespaces; less than 100 needs root."
        ),
    ] = 100
    last_node_percent: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting(
            help="How much of what the others get the last of several nodes gets, in percent: a slow "
            "node; less than 100 needs root."
        ),
    ] = 100

    def settings(self) -> dict[str, Any]:
        """Name -> value of the fields of `RunSettings`, to make something else that contains them."""
        return {name: getattr(self, name) for name in RunSettings.__struct_fields__}


class PlannedRun(RunSettings, kw_only=True, frozen=True):
    """One entry of a session's plan: which cell runs when.

    Attributes
    ----------
    cell : str
        The cell's hash, of use case, backend, parameters, settings, data and sources.
    usecase, backend : str
        Their names.
    params : dict
        Parameters of the use case and options of the backend, resolved.
    block : int
        From 0; -1 for the warm-up.
    position : int
        Place within the block, from 0.
    seed : int
        Of weights and of the order of the data; the same for all runs of a block.
    phase : {"warmup", "measured"}
        A warm-up is recorded and never compared.
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
        """What makes a planned run the same one as a recorded run."""
        return (self.cell, self.phase, self.block)


class Run(PlannedRun, kw_only=True, frozen=True):
    """A planned run that was executed: a line of ``runs.jsonl``.

    Attributes
    ----------
    schema : int
        The version of the format.
    run_id : str
        Unique in its session; logs and traces are called after it.
    session : str
        The session that it belongs to.
    data : str or None
        Fingerprint of what was read, ``sha256:…``.
    attempt : int
        From 1; more if the run was repeated.
    status : {"ok", "failed", "timeout", "oom", "skipped", "not_converged", "interrupted"}
        How it ended. ``not_converged``: well, but without reaching `target`.
    failed_phase : str or None
        What the first process that failed was doing: ``launch``, ``setup``, ``train``, ``eval`` or
        ``teardown``.
    failed_rank : int or None
        The node that failed first.
    reason : str or None
        Why it did not end well, or was skipped: one sentence.
    exit_code : int or None
        Of the process that failed first.
    signal : str or None
        What ended it, such as ``SIGKILL``.
    started_at : str
        UTC, in ISO 8601.
    seconds : Seconds
        Wall seconds by phase.
    epoch_seconds : list of float
        Wall seconds of each epoch's training, those of worker 0 of node 0.
    samples : int
        Samples that all workers trained on, over all epochs.
    metrics : dict of str to float
        Quality on the test split at the best epoch by validation.
    metric : str or None
        The one that the use case is judged by; older records have none.
    tolerance : float or None
        Differences in it that do not matter.
    history : list of dict
        An entry per epoch: its number as ``epoch``, the test split's metrics under their own names, the
        validation split's with the prefix ``valid_``.
    best_epoch : int or None
        By validation, from 1.
    target : dict of str to float, optional
        The quality that validation had to reach.
    target_met : bool or None
        Whether it did.
    seconds_to_target : float or None
        Wall seconds of training until it did, whole epochs.
    counters : dict of str to float
        What the parameter server counted while the epochs ran, merged over nodes by `sum_counters`; each has
        its unit in the reference.
    cpu_seconds : float or None
        User and system CPU seconds of all processes from start to end.
    train_cpu_seconds : float or None
        Those of the epochs.
    peak_rss_mib : float or None
        The most resident memory of each node process, in MiB, summed up.
    context_switches : int or None
        Of all node processes, voluntary or not.
    noise : Noise or None
        What else the machine was doing.
    link : Link or None
        What the links were measured to be, if nodes were in network namespaces.
    environment : str or None
        The session's `environment_id`.
    budgets : list of Budget
        One per node if the run was profiled.
    policy : str or None
        How each parameter was managed: the whole policy, as TOML. Older records have none, and those of
        backends that take no policy; their `params` say it in a word, as ``techniques``.
    tables : dict of str to dict of str to float
        `counters` of each of the parameter server's tables, which older records lack.
    choices : list of Choice
        For each node and each table of which the policy leaves open whether rows move; older records have
        none.
    launcher : str
        What started its processes; older records, which have none, are of ``local``.
    hosts : list of Host
        Where its nodes were, if not all on the session's machine.
    waiting : dict of str to list of float
        Of each node, by rank, the counters in `WAITING`, which `counters` has as sums: what names the node
        that is slow, or behind a slow link. Empty for one node, without counters, and in older records.
    """

    schema: int = SCHEMA
    run_id: Name
    session: str
    data: str | None
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
    policy: str | None = None
    tables: dict[str, dict[str, float]] = {}
    choices: list[Choice] = []
    launcher: str = "local"
    hosts: list[Host] = []
    waiting: dict[str, list[float]] = {}


class Git(msgspec.Struct, kw_only=True, frozen=True):
    """The sources that ran.

    Attributes
    ----------
    commit : str
        In full.
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
        The version of the format.
    session : str
        Its name, which is its folder's.
    created_at : str
        UTC, in ISO 8601.
    command : list of str
        The command line.
    study : dict
        The study as it was resolved.
    study_id : str
        Hash of the study, its sources and data: a session with the same one is continued.
    seed : int
        Of the order of the runs; block b trains with seed + b.
    plan : list of PlannedRun
        All runs, in their order.
    environment : dict
        Machine, system and versions.
    environment_id : str
        Hash of the parts of `environment` that change what is measured; runs of different ones are never
        pooled silently.
    git : Git or None
        None outside a clone.
    machine : str
        The machine in one line.
    analyses : int
        Most analyses of the session until its intervals are narrow enough; each takes an equal part of the
        level. Files call it ``looks``.
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
    """Merge the counters of several nodes: summed, but ``…_max`` the greatest and ``…_mean`` the mean.

    Parameters
    ----------
    counters : list of dict of str to float
        One per node; a name need not be in all.
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
