"""What starts the processes of runs: the interface of launchers, and what came of a run.

A launcher starts the group of processes of a run, wherever they are to be, and `watch` looks after them.
Ranks tell how far they have come in files of a scratch folder on the harness's machine: a launcher whose
ranks are elsewhere brings their files there, with times of this machine's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.machine.environment import probe
from adabench.harness.run.spec import RankResult, RankState, TrialSpec
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import Host, Link, RunSettings, Status

__all__ = ["Failure", "Group", "Launcher", "Outcome", "Supervision", "Trouble", "Unlaunchable"]


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """A rank that ended badly; a negative exit code is a signal's number."""

    rank: int
    pid: int
    exit_code: int
    time: float


class Unlaunchable(RuntimeError):
    """A run's processes cannot be started; one sentence that becomes its reason.

    Parameters
    ----------
    reason : str
    status : str, optional
        What the run is recorded as.
    """

    def __init__(self, reason: str, status: Status = "failed") -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `results` has an entry per rank if and only if it ended well.

    `left` names processes and temporary files that were still there when all ranks had ended; they are
    removed.
    """

    status: Status
    total_seconds: float
    phase: str | None = None
    rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    results: list[RankResult] = field(default_factory=list)
    left: tuple[str, ...] = ()
    link: Link | None = None


@dataclass(frozen=True)
class Supervision:
    """What ends a run before its own end, and who is told how far it has come.

    Attributes
    ----------
    timeout : float
        Seconds after which the process group is killed.
    stopped : callable
        Asked ten times per second; once true, the group is killed and the run is `interrupted`.
    watch : callable
        Told rank 0's state whenever it is read.
    look : callable
        Given the run's scratch folder ten times per second, and a last time when it is over.
    """

    timeout: float
    stopped: Callable[[], bool] = lambda: False
    watch: Callable[[RankState], None] = lambda state: None
    look: Callable[[Path, bool], None] = lambda folder, over: None


@dataclass(frozen=True)
class Trouble:
    """What happened to a run's surroundings, and is the cause of whatever its ranks say then.

    Attributes
    ----------
    reason : str
        One sentence.
    rank : int or None
        The first of the ranks that it happened to; None if it happened to all.
    """

    reason: str
    rank: int | None = None


class Group(ABC):
    """The processes of a run, which have been started."""

    launched_at: float
    """When its processes were started, in seconds of `time.monotonic`."""

    link: Link | None = None
    """What the links between its ranks were measured to be; None without a measurement."""

    @abstractmethod
    def wait(self, seconds: float) -> int | None:
        """The exit code once all processes have ended, or None if they have not within `seconds`."""

    @abstractmethod
    def end(self) -> int:
        """Kill what has not ended, and tidy up; gives the exit code. Called once, whatever happened."""

    @abstractmethod
    def vanished(self) -> list[int]:
        """Ranks that have ended by now, or cannot be reached, and told neither a result nor an error."""

    @property
    def trouble(self) -> Trouble | None:
        """What has happened to the group's surroundings by now."""
        return None

    @abstractmethod
    def failures(self) -> list[Failure]:
        """Ranks that ended badly; to be asked after the end."""

    @abstractmethod
    def left(self) -> list[str]:
        """What was still there when all ranks had ended; to be asked after the end."""

    @abstractmethod
    def out_of_memory(self, rank: int) -> bool:
        """Whether the kernel has killed a process for want of memory on that rank's machine meanwhile."""


class Launcher(ABC):
    """Starts the process groups of a session's runs; a context manager, whose end is theirs.

    Parameters
    ----------
    listen : str, optional
        The interface or address of this machine where other hosts reach it.
    say : callable, optional
        Told what a user should know.
    job : sequence of str, optional
        What a scheduler is asked for, as ``key=value``.

    Attributes
    ----------
    name : str
        What ``launcher`` of a study is.
    runs_here : bool
        Whether the first node of a run is on this machine.

    Raises
    ------
    UsageError
        For what this launcher cannot make use of.
    """

    name: ClassVar[str]
    runs_here: ClassVar[bool] = True

    def __init__(
        self,
        listen: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        job: Sequence[str] = (),
    ) -> None:
        if job:
            raise UsageError(
                f"--job {job[0]} is for a scheduler, which --launcher {self.name} does not ask: "
                "say --launcher slurm, or leave it out"
            )
        self._listen = listen
        self._say = say

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_agent(self) -> bool:
        """Whether this process only does what another one asks for: it calls `follow`, and nothing else."""
        return False

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        """Do what the process that plans and records asks for, until it needs nothing more.

        Parameters
        ----------
        plan : callable
            Makes the cells of the study that this process was given, too.
        stopped : callable
            Whether the user wants to end it.

        Returns
        -------
        bool
            Whether the user did.
        """
        raise NotImplementedError

    def check(self, study: Study) -> None:
        """Refuse what this launcher cannot do, before anything is planned.

        Raises
        ------
        UsageError
            Naming it.
        """
        return

    def agree(self, cells: Sequence[Cell]) -> None:
        """See to it that all hosts would run the same.

        Raises
        ------
        UsageError
            Naming the host, and what differs.
        """
        return

    def environment(self) -> dict[str, Any] | None:
        """The machine of the first node of runs, as `environment.capture` says it; None if it is this one."""
        return None

    def probe(self) -> tuple[float, float] | None:
        """How busy that machine is, as `environment.probe` says it; None if nobody answers there any more."""
        return probe()

    def hosts(self, nodes: int) -> list[Host]:
        """Where the nodes of a run with so many are; empty if all are on the session's machine."""
        return []

    @property
    def gone(self) -> str | None:
        """Why no further run can be started, in one sentence."""
        return None

    @property
    def interrupted(self) -> bool:
        """Whether a user has stopped the job on another host."""
        return False

    @abstractmethod
    def prepare(self, modules: Sequence[str] = ()) -> None:
        """Make ready for runs; to be called before each, by a thread that lives as long as the launcher.

        Parameters
        ----------
        modules : sequence of str
            Of this project, which runs will import.

        Raises
        ------
        LauncherError
            If no run can be started.
        """

    @abstractmethod
    def obstacle(self, settings: RunSettings) -> str | None:
        """Why a run with these settings cannot be started here; None if it can."""

    @abstractmethod
    def begin(self, spec: TrialSpec, folder: Path, out: IO[bytes], err: IO[bytes]) -> Group:
        """Start the processes of a run; any thread may.

        Parameters
        ----------
        spec : TrialSpec
        folder : Path
            The run's scratch folder. It has a folder ``tmp``, for temporary files.
        out, err : file
            Where what its ranks say is appended.

        Raises
        ------
        Unlaunchable
            If they cannot be started.
        """

    @abstractmethod
    def close(self) -> None:
        """End what is still there."""
