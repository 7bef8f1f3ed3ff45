"""Launchers start the processes of runs: their interface, and the outcome of a run.

A launcher starts the process group of a run, on any hosts, and `watch` supervises it. Ranks report their
progress in files of a scratch folder on the harness's machine. If the ranks are elsewhere, the launcher
copies their files there, with times of this machine's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.machine.environment import probe
from adabench.harness.machine.scratch import scratch_folder
from adabench.harness.run.spec import RankResult, RankState, RunSpec
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import Host, Link, Run, Status
from adabench.results.run_settings import RunSettings
from adabench.results.store import writing


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """A rank that ended badly: a negative exit code is a signal's number, 0 is an end without a result.

    `out_of_memory` is whether the kernel has killed a process for lack of memory during the run.
    """

    rank: int
    pid: int
    exit_code: int
    time: float
    out_of_memory: bool = False


class Unlaunchable(RuntimeError):
    """Error if a run's processes cannot be started; its text becomes the run's reason.

    Parameters
    ----------
    reason : str
        Description of the obstacle.
    status : str, optional
        Status that the run is recorded with.
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
    failed_phase: str | None = None
    failed_rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    results: list[RankResult] = field(default_factory=list)
    left: tuple[str, ...] = ()
    link: Link | None = None

    def recorded(self) -> dict[str, Any]:
        """Fields that a run's record also has."""
        return {name: value for name, value in vars(self).items() if name in Run.__struct_fields__}


@dataclass(frozen=True)
class Supervision:
    """Conditions that end a run before its own end, and observers of its progress.

    Attributes
    ----------
    timeout : float
        Seconds after which the process group is killed.
    stopped : callable
        Function that is called ten times per second. When it returns true, the group is killed and the run is
        `interrupted`.
    watch : callable
        Function that is called with rank 0's state whenever the state is read.
    look : callable
        Function that is called with the run's scratch folder and False ten times per second, and with True
        when the run is over.
    """

    timeout: float
    stopped: Callable[[], bool] = lambda: False
    watch: Callable[[RankState], None] = lambda state: None
    look: Callable[[Path, bool], None] = lambda folder, over: None


@dataclass(frozen=True)
class Trouble:
    """An incident in a run's surroundings, which explains all errors that its ranks report afterwards.

    Attributes
    ----------
    reason : str
        Description of the incident.
    rank : int or None
        First affected rank; None if all ranks are affected.
    """

    reason: str
    rank: int | None = None


@dataclass(frozen=True)
class RunFiles:
    """Files of a run while it lasts.

    Attributes
    ----------
    folder : Path
        Scratch folder of the run. It has a folder ``tmp`` for temporary files.
    out, err : file
        Files for the ranks' standard output and standard error.
    """

    folder: Path
    out: IO[bytes]
    err: IO[bytes]


@contextmanager
def run_files(purpose: str, log: Path | None = None) -> Iterator[RunFiles]:
    """Create the files of a run, and remove its scratch folder at the end.

    Parameters
    ----------
    purpose : str
        Description of the scratch folder for users who find it.
    log : Path, optional
        Path of the output files without ``.out`` and ``.err``; they are in the scratch folder by default.
    """
    with scratch_folder(purpose) as folder:
        (folder / "tmp").mkdir()
        log = log or folder / "log"
        with ExitStack() as opened:
            with writing(log.parent):
                # Without a buffer, closing a file writes nothing and cannot fail on a full disk.
                out, err = (
                    opened.enter_context(open(f"{log}.{end}", "ab", buffering=0)) for end in ("out", "err")
                )
            yield RunFiles(folder, out, err)


class Group(ABC):
    """The processes of a run, which have been started.

    Attributes
    ----------
    launched_at : float
        Start of the processes, in seconds of `time.monotonic`.
    link : Link or None
        Measurement of the links between the ranks, if there is one.
    """

    launched_at: float
    link: Link | None = None

    @abstractmethod
    def wait(self, seconds: float) -> int | None:
        """The exit code once all processes have ended, or None if they have not within `seconds`."""

    @abstractmethod
    def end(self) -> int:
        """Kill all remaining processes, clean up, and return the exit code; called exactly once."""

    @property
    def trouble(self) -> Trouble | None:
        """An incident in the group's surroundings, if there was one so far."""
        return None


@dataclass(frozen=True)
class LauncherOptions:
    """Options of the command line for a launcher.

    Attributes
    ----------
    listen : str or None
        Interface or address at which other hosts reach this machine.
    say : callable
        Function that is called with each line that a user should read.
    job : sequence of str
        Resources to request from a scheduler, as ``key=value``.
    """

    listen: str | None = None
    say: Callable[[str], None] = lambda line: None
    job: Sequence[str] = ()


class Launcher(ABC):
    """Starts the process groups of a session's runs; a context manager that ends them when it closes.

    Parameters
    ----------
    options : LauncherOptions, optional
        Options of the command line.

    Attributes
    ----------
    name : str
        Value of ``launcher`` in a study.
    runs_here : bool
        Whether the first node of a run is on this machine.
    schedules : bool
        Whether the launcher requests resources from a scheduler.

    Raises
    ------
    UsageError
        If this launcher cannot use an option.
    """

    name: ClassVar[str]
    runs_here: ClassVar[bool] = True
    schedules: ClassVar[bool] = False

    def __init__(self, options: LauncherOptions | None = None) -> None:
        self.options = options or LauncherOptions()
        if self.options.job and not self.schedules:
            raise UsageError(
                f"--job {self.options.job[0]} is for a scheduler, which --launcher {self.name} does not use: "
                "use --launcher slurm, or leave it out"
            )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_agent(self) -> bool:
        """Whether this process serves the coordinator on another host: it only calls `serve`."""
        return False

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        """Execute the coordinator's requests until it needs nothing more.

        Parameters
        ----------
        plan : callable
            Function that returns the cells of the study that this process was given.
        stopped : callable
            Function that returns whether the user wants to end the process.

        Returns
        -------
        bool
            Whether the user ended the process.
        """
        raise NotImplementedError

    def check(self, study: Study) -> None:
        """Refuse studies that this launcher cannot run, before anything is planned.

        Raises
        ------
        UsageError
            If an option is not supported; the error names it.
        """
        return

    def agree(self, cells: Sequence[Cell]) -> None:
        """Verify that all hosts would run the same cells.

        Raises
        ------
        UsageError
            If a host differs; the error names the host and the difference.
        """
        return

    def environment(self) -> dict[str, Any] | None:
        """`environment.capture` of the machine of the first node of runs; None for this machine."""
        return None

    def probe(self) -> tuple[float, float] | None:
        """`environment.probe` of that machine; None if it does not answer."""
        return probe()

    def hosts(self, nodes: int) -> list[Host]:
        """Hosts of the nodes of a run with that many nodes; empty if all are on the session's machine."""
        return []

    @property
    def gone(self) -> str | None:
        """Return the reason why no further run can be started."""
        return None

    @property
    def interrupted(self) -> bool:
        """Whether a user has stopped the job on another host."""
        return False

    @abstractmethod
    def prepare(self, modules: Sequence[str] = ()) -> None:
        """Get ready for runs. Called before each run, by a thread that lives as long as the launcher.

        Parameters
        ----------
        modules : sequence of str
            Modules of this project that runs will import.

        Raises
        ------
        LauncherError
            If no run can be started.
        """

    @abstractmethod
    def obstacle(self, settings: RunSettings) -> str | None:
        """The reason why a run with these settings cannot be started here; None if it can."""

    @abstractmethod
    def begin(self, spec: RunSpec, files: RunFiles) -> Group:
        """Start the processes of a run; any thread may call this.

        Raises
        ------
        Unlaunchable
            If they cannot be started.
        """

    @abstractmethod
    def close(self) -> None:
        """End all that is still running."""
