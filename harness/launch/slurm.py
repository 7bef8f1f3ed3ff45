"""The launcher `slurm`: this process submits a job to Slurm, and the job's hosts execute the runs.

Submitit writes the job's script and starts `take_part` on each of its hosts. It connects to the process that
submitted the job, which plans, records, and coordinates the hosts as rank 0 of `torchrun` does.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.agent import connect_agent
from adabench.harness.launch.coordinator import Coordinator, introduction
from adabench.harness.launch.host_rendezvous import CONNECT_SECONDS, listen_where
from adabench.harness.launch.launcher import LauncherOptions
from adabench.harness.launch.messages import Probe
from adabench.harness.machine.interfaces import address_named, interface_of
from adabench.harness.machine.interruption import Interruption
from adabench.harness.study.cell import Cell
from adabench.harness.study.plan import cells_of
from adabench.harness.study.study import Study
from adabench.harness.study.syntax import parse_duration
from adaps.rendezvous import Place

_TITLE = "the host that submitted the job"
_END_SECONDS = 30.0
"""Seconds for tasks to end once nothing more is needed."""
_SHORT_SECONDS = 2.0
"""Seconds for tasks to end if some of the tasks will certainly not end."""
_LOOK_SECONDS = 0.2
_QUEUE_SECONDS = 5.0
"""Seconds between two requests to Slurm's controller, which serves all users."""
_YEAR = 365 * 24 * 60
_MOST_HOSTS = 1024
_OWN = ("array", "error", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "signal", "wrap")
"""Options of sbatch that are set by this launcher or by submitit."""


@dataclass(frozen=True)
class JobRequest:
    """Resources to request for a job.

    Attributes
    ----------
    cluster : {"slurm", "local"}
        Scheduler of the job: sbatch, or submitit's local executor, on this machine.
    hosts : int or None
        Number of hosts; None for the number of nodes of the study's runs.
    minutes : int or None
        Time limit; None for the partition's limit.
    folder : Path
        Folder for the job's files, which all of its hosts see.
    options : dict of str to str or bool
        Further options of sbatch.
    """

    cluster: str
    hosts: int | None
    minutes: int | None
    folder: Path
    options: dict[str, str | bool]

    @classmethod
    def read(cls, texts: Sequence[str]) -> JobRequest:
        """Read ``hosts=2,time=2h,partition=short``, or several of these.

        A part without ``=`` belongs to the value before it, as in ``exclude=a,b``; as the first, as in
        ``exclusive``, it is an option without a value.

        Raises
        ------
        UsageError
            If a part is not valid; the error names it.
        """
        given: dict[str, str | bool] = {}
        for text in texts:
            for key, value in _parts(text):
                if key in given:
                    raise UsageError(f"--job {key} is given twice: give it once")
                given[key] = value
        cluster = str(given.pop("cluster", "slurm"))
        if cluster not in ("slurm", "local"):
            raise UsageError(f"--job cluster={cluster}: valid are slurm, and local for this machine alone")
        hosts, time_given = given.pop("hosts", None), given.pop("time", None)
        folder = given.pop("folder", "adabench-jobs")
        if hosts is not None and not (
            str(hosts).isascii() and str(hosts).isdecimal() and 1 <= int(hosts) <= _MOST_HOSTS
        ):
            raise UsageError(
                f"--job hosts={hosts} is not a number of hosts: give one from 1 to {_MOST_HOSTS}"
            )
        minutes = None
        if time_given is not None:
            try:
                minutes = math.ceil(parse_duration(str(time_given)) / 60)
            except UsageError as error:
                raise UsageError(f"--job time: {error}") from error
        for key in given:
            if key in _OWN:
                raise UsageError(
                    f"--job {key} is set by the launcher: use hosts=N to set the number of hosts"
                )
            if cluster == "local":
                raise UsageError(f"--job {key} is an option of sbatch, which cluster=local does without")
        return cls(
            cluster,
            None if hosts is None else int(hosts),
            minutes,
            Path(str(folder)).expanduser().absolute(),
            given,
        )


class Slurm(Coordinator):
    """One job of Slurm per session, which submitit submits; its hosts train, and this process records."""

    name: ClassVar[str] = "slurm"
    title: ClassVar[str] = _TITLE
    runs_here: ClassVar[bool] = False
    schedules: ClassVar[bool] = True

    def __init__(self, options: LauncherOptions | None = None) -> None:
        super().__init__(options)
        self._request = JobRequest.read(self.options.job)
        self._submitit = _submitit()
        if self._request.cluster == "slurm":
            missing = [tool for tool in ("sbatch", "srun", "squeue", "scancel") if shutil.which(tool) is None]
            if missing:
                raise UsageError(
                    f"--launcher slurm needs Slurm's {' and '.join(missing)}, not found on PATH: start it "
                    "where jobs are submitted, or try it on this machine alone with --job cluster=local"
                )
        self._address, self._why = _where(self.options.listen, self._request.cluster)
        self._study: Study | None = None
        self._job: Any = None
        self._folder: Path | None = None
        self._next_look = 0.0
        self._first_came_at: float | None = None
        self._interruption = Interruption()

    def check(self, study: Study) -> None:
        super().check(study)
        self._study = study

    def agree(self, cells: Sequence[Cell]) -> None:
        assert self._study is not None, "The environment was requested before the study was checked."
        most = max((cell.nodes for cell in cells), default=1)
        hosts = self._request.hosts or most
        cores = math.ceil(most / hosts) * max((cell.workers for cell in cells), default=1)
        secret = secrets.token_hex(32)
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        # The job is cancelled if this process is ended while the job is submitted or waits.
        with (
            socket.create_server((self._address, 0), family=family, backlog=128) as listener,
            self._interruption,
        ):
            self._submit(hosts, cores, secret, listener)
            self._accept(listener, secret, range(hosts))
        where = ", ".join(f"rank {one.rank} at {one.address} ({one.interface})" for one in self.hellos())
        self.options.say(f"job {self._job.job_id} runs: {where}")
        super().agree(cells)

    def check_missing(self, missing: set[int]) -> None:
        if self._interruption.requested:
            raise KeyboardInterrupt
        identifier = self._job.job_id
        for rank in sorted(missing):
            task = self._job.task(rank)
            if task.done() or self._left_the_queue():
                raise LauncherError(
                    f"rank {rank} of job {identifier} ended before it had connected: {_last_words(task)}"
                )
        if self._first_came_at is None and self.agents:
            self._first_came_at = time.monotonic()
        if self._first_came_at is not None and time.monotonic() - self._first_came_at > CONNECT_SECONDS:
            ranks = ", ".join(map(str, sorted(missing)))
            raise LauncherError(
                f"rank {ranks} of job {identifier} did not come within {CONNECT_SECONDS:g} s after the first"
            )

    def environment(self) -> dict[str, Any] | None:
        return self.hellos()[0].environment

    def probe(self) -> tuple[float, float] | None:
        first = self.agents[0]
        first.send(Probe())
        try:
            return first.reply().probe
        except LauncherError:
            return None

    def _submit(self, hosts: int, cores: int, secret: str, listener: socket.socket) -> None:
        """Submit the job; its secret is in a file that only this user can read."""
        request = self._request
        try:
            request.folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="job-", dir=request.folder))  # The folder has mode 700.
        except OSError as error:
            raise UsageError(
                f"--job folder={request.folder} cannot be written ({error.strerror}): name a folder that all "
                "hosts of the job see"
            ) from error
        self._folder = folder
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600, exist_ok=False)
        secret_file.write_text(secret, encoding="ascii")
        executor = self._executor(folder, hosts, cores)
        errors = self._submitit.core.utils
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # The message is also part of the error.
                self._job = executor.submit(
                    take_part, listener.getsockname()[:2], str(secret_file), msgspec.json.encode(self._study)
                )
        except (errors.FailedJobError, errors.FailedSubmissionError) as error:
            said = " ".join(str(error).split())
            raise LauncherError(f"the job was not accepted: {said or 'sbatch gave no reason'}") from error
        many = "s" * (hosts > 1)
        self.options.say(
            f"job {self._job.job_id} is submitted for {hosts} host{many}, which will find this process at "
            f"{self._address} ({interface_of(self._address)}): {self._why}; --listen names another interface "
            "or address"
        )

    def _executor(self, folder: Path, hosts: int, cores: int) -> Any:
        """Submitit's executor for a job with one task on each host."""
        request = self._request
        if request.cluster == "local":
            executor = self._submitit.LocalExecutor(folder=folder)
            executor.update_parameters(tasks_per_node=hosts, timeout_min=request.minutes or _YEAR)
            return executor
        executor = self._submitit.SlurmExecutor(folder=folder)
        named = {"job-name": "adabench", "cpus-per-task": cores, "no-requeue": True, **request.options}
        if request.minutes is not None:
            named["time"] = request.minutes
        # Without time, wckey and job_name, submitit would set default values.
        executor.update_parameters(
            nodes=hosts,
            ntasks_per_node=1,
            time=None,
            wckey=None,
            job_name=named.pop("job-name"),
            additional_parameters={key: value for key, value in named.items() if value is not False},
        )
        return executor

    def _left_the_queue(self) -> bool:
        """Whether the job is not in the queue any more: submitit uses sacct, which not all clusters have."""
        now = time.monotonic()
        if self._request.cluster == "local" or now < self._next_look:
            return False
        self._next_look = now + _QUEUE_SECONDS
        command = ["squeue", "--noheader", "--format=%T", f"--jobs={self._job.job_id}"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode == 0:
            return not said.stdout.strip()
        return "Invalid job id" in said.stderr  # else the controller may only be busy

    def _end(self, reason: str | None) -> None:
        came = bool(self.agents)
        well = reason is None and self.gone is None
        super()._end(reason)
        job, folder = self._job, self._folder
        self._job = self._folder = None
        if job is not None:
            if came:
                _wait(job, _END_SECONDS if well else _SHORT_SECONDS)
            if not job.done():
                job.cancel(check=False)
                if self._request.cluster == "local":
                    _wait(job, _END_SECONDS)
        if folder is None:
            return
        (folder / "secret").unlink()
        if well or job is None:
            shutil.rmtree(folder, ignore_errors=True)  # a shared file system may still have a log open
            with contextlib.suppress(OSError):  # other jobs have theirs there
                folder.parent.rmdir()
        else:
            self.options.say(f"the output of the job's hosts is in {folder}")


def take_part(coordinator: tuple[str, int], secret_file: str, study: bytes) -> None:
    """Serve the coordinator on this host; the main function of a task of the job.

    Parameters
    ----------
    coordinator : tuple of str and int
        Address and port of the process that submitted the job and waits.
    secret_file : str
        File with the job's secret, which only the user can read.
    study : bytes
        Study as JSON.

    Raises
    ------
    UsageError
        If this host cannot take part.
    LauncherError
        If the coordinator is gone, or has ended with an error.
    """
    submitit = _submitit()
    here = submitit.JobEnvironment()
    os.environ.pop("ADAPS_SECRET", None)
    os.environ["ADAPS_SECRET_FILE"] = secret_file
    place = Place(here.global_rank, here.num_tasks, *coordinator, hosted=False, one_host=False)
    address, _ = listen_where(place, None)
    os.environ["ADAPS_LISTEN"] = address  # The nodes of this host also listen there.
    secret = Path(secret_file).read_text(encoding="ascii")
    agent = connect_agent(coordinator, secret, introduction(here.global_rank, address), _TITLE)
    given = msgspec.json.decode(study, type=Study)
    # Slurm sends this signal some time before the job's time is over.
    almost_over = getattr(signal, f"SIG{here.USR_SIG}")
    try:
        with Interruption(almost_over) as stopped:
            agent.serve(lambda: cells_of(given), stopped)
    finally:
        agent.close()


def _parts(text: str) -> list[tuple[str, str | bool]]:
    """Key and value of each part of ``hosts=2,exclude=a,b``."""
    found: list[tuple[str, str | bool]] = []
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals and found:
            before, so_far = found.pop()
            found.append((before, f"{so_far},{part}"))
            continue
        key = key.strip().replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key) or (equals and not value) or not part.isprintable():
            raise UsageError(
                f"--job {part!r} is not of the form key=value, such as hosts=2 or partition=short"
            )
        found.append((key, value if equals else True))
    return found


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ModuleNotFoundError as error:
        if error.name != "submitit":
            raise
        raise UsageError(
            "--launcher slurm needs the package submitit, which is not installed: "
            "pip install 'adabench[slurm]'"
        ) from error


def _where(listen: str | None, cluster: str) -> tuple[str, str]:
    """The address where this process waits for the job's hosts, and the reason."""
    chosen = os.environ.get("ADAPS_LISTEN")
    if listen is not None:
        return address_named(listen), "set by --listen"
    if chosen:
        return address_named(chosen), "set by ADAPS_LISTEN"
    if cluster == "local":
        return "127.0.0.1", "the job runs on this machine only"
    name = socket.gethostname()
    with contextlib.suppress(socket.gaierror):
        for _, _, _, _, (address, *_) in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            interface = interface_of(str(address).partition("%")[0])
            if interface not in (None, "lo"):
                return str(address), f"the address of this host's name, {name}"
    raise UsageError(
        f"this host's name, {name}, is no address that the job's hosts could reach: "
        "--listen names the interface, or its address, that they do reach"
    )


def _last_words(task: Any) -> str:
    """The last line that a task of a job wrote to standard error, without its exception's name."""
    lines = [line for line in (task.stderr() or "").splitlines() if line.strip()]
    if not lines:
        found = task.get_info()
        return (
            f"it has no output, and its state is {found.get('State') or found.get('jobState') or 'unknown'}"
        )
    return re.sub(r"^(\w+\.)*\w+(Error|Exception): ", "", lines[-1].strip())


def _wait(job: Any, seconds: float) -> None:
    """Wait until all tasks of a job have ended, at most for `seconds`."""
    deadline = time.monotonic() + seconds
    while not job.done() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


LAUNCHER = Slurm
