"""A fake Slurm: programs with the names of its commands, answered by a server in this process.

Its hosts are network namespaces. The options that the launcher uses behave as the manual pages of sbatch,
srun, squeue, sacct and scancel describe.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adabench.harness.launch.fork_server import Fork, ForkServer
from adabench.harness.machine.process import kill_tree
from tests.integration.hosts.on_host import RUN_TASK
from tests.warm import whole

_COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scancel")
_CLIENT = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    out, err, code = json.load(server.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""

_Answer = tuple[str, str, int]


@dataclass
class Job:
    """A job that was submitted.

    `modes` has the access rights of the files in the script's folder at that time, and of the folder itself
    as ``.``; `secret` is the content of its file ``secret``, and `tasks` are process ids.
    """

    number: str
    options: dict[str, str]
    script: str
    modes: dict[str, int]
    secret: str
    state: str = "PENDING"
    tasks: list[int] = field(default_factory=list)
    batch: subprocess.Popen[bytes] | None = None


class Cluster:
    """A context manager that ends all jobs when it exits.

    Parameters
    ----------
    warm : ForkServer
        The parent of all tasks.
    folder : Path
        The folder for the programs.
    hosts : sequence of str
        The network namespaces that serve as hosts.

    Attributes
    ----------
    jobs : list of Job
    commands : list of list of str
        The command lines of all programs that were called.
    full, broken, accounts : bool
        Whether jobs have to wait, whether tasks fail at once, and whether there is a database of past jobs.
    """

    def __init__(self, warm: ForkServer, folder: Path, hosts: Sequence[str]) -> None:
        self.jobs: list[Job] = []
        self.commands: list[list[str]] = []
        self.full = self.broken = False
        self.accounts = True
        self._warm, self._hosts = warm, hosts
        self._programs = folder / "slurm"
        self._programs.mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        address = str(folder / "slurm.socket")
        self._listener.bind(address)
        self._listener.listen()
        for name in _COMMANDS:
            program = self._programs / name
            program.write_text(_CLIENT.format(python=sys.executable, address=address))
            program.chmod(0o755)
        self._threads = [threading.Thread(target=self._listen)]

    def __enter__(self) -> Cluster:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        # A job may have been submitted just now, or be starting its tasks.
        while living := [thread for thread in self._threads if thread.is_alive()]:
            for job in self.jobs:
                if job.batch is not None:
                    job.batch.kill()
                for task in job.tasks:
                    kill_tree(task)
            living[0].join(0.1)
        self._listener.close()

    def path(self) -> str:
        """PATH with its commands."""
        return os.pathsep.join([str(self._programs), os.environ["PATH"]])

    def cancel(self, job: Job) -> None:
        """Cancel a job as ``scancel`` does, without the SIGKILL half a minute later."""
        job.state = "CANCELLED" if job.state in ("PENDING", "RUNNING") else job.state
        for task in job.tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(task, signal.SIGTERM)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was shut down
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            argv, folder, environment = json.load(connection.makefile())
            self.commands.append(argv)
            answer: Callable[..., _Answer] = getattr(self, f"_{Path(argv[0]).name}")
            connection.sendall(json.dumps(answer(argv[1:], folder, environment)).encode())

    def _sbatch(self, arguments: Sequence[str], folder: str, environment: dict[str, str]) -> _Answer:
        (file,) = map(Path, arguments)
        script = file.read_text()
        options = {}
        for line in script.splitlines():
            if line.startswith("#SBATCH --"):
                (option,) = shlex.split(line.removeprefix("#SBATCH --"))
                options[option.partition("=")[0]] = option.partition("=")[2]
        if options.get("partition") == "nowhere":
            said = "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
            return "", f"sbatch: error: invalid partition specified: nowhere\n{said}", 1
        place = file.parent
        job = Job(
            number=str(4200 + len(self.jobs)),
            options=options,
            script=script,
            modes={name: stat.S_IMODE((place / name).stat().st_mode) for name in (".", *os.listdir(place))},
            secret=(place / "secret").read_text(),
        )
        self.jobs.append(job)
        if not self.full:
            self._start(job, file, folder, environment)
        return f"Submitted batch job {job.number}\n", "", 0

    def _start(self, job: Job, file: Path, folder: str, environment: dict[str, str]) -> None:
        own = {
            "SLURM_JOB_ID": job.number,
            "SLURM_JOB_NUM_NODES": job.options["nodes"],
            "SLURM_NTASKS": str(int(job.options["nodes"]) * int(job.options["ntasks-per-node"])),
            "SLURM_JOB_NODELIST": ",".join(self._hosts[: int(job.options["nodes"])]),
        }
        # Submitit renames the script soon, when bash has opened it already.
        with file.open("rb") as script:
            job.batch = subprocess.Popen(
                ["bash"], stdin=script, cwd=folder, env={**environment, **own}, start_new_session=True
            )
        job.state = "RUNNING"

        def follow() -> None:
            assert job.batch is not None
            code = job.batch.wait()
            if job.state == "RUNNING":
                job.state = "FAILED" if code else "COMPLETED"

        self._threads.append(threading.Thread(target=follow))
        self._threads[-1].start()

    def _srun(self, arguments: Sequence[str], folder: str, environment: dict[str, str]) -> _Answer:
        given, rest = dict[str, str](), list(arguments)
        while rest[0].startswith("--"):
            option = rest.pop(0)
            if option != "--unbuffered":
                given[option] = rest.pop(0)
        number = environment["SLURM_JOB_ID"]
        (job,) = (one for one in self.jobs if one.number == number)
        assert rest[:2] == [sys.executable, "-u"]
        arguments = ["-c", "raise OSError('no space left on this host')"] if self.broken else rest[2:]
        forks = list[Fork]()
        for rank in range(int(environment["SLURM_NTASKS"])):
            own = {
                "SLURM_PROCID": str(rank),
                "SLURM_NODEID": str(rank),
                "SLURM_LOCALID": "0",
                "TEST_NAMESPACE": self._hosts[rank],
            }
            out, err = (
                given[name].replace("%j", number).replace("%t", str(rank)) for name in ("--output", "--error")
            )
            with open(out, "ab") as out_file, open(err, "ab") as err_file:
                fork = self._warm.fork(
                    RUN_TASK,
                    [folder, *arguments],
                    whole({**environment, **own}),
                    out_file.fileno(),
                    err_file.fileno(),
                )
            forks.append(fork)
            job.tasks.append(fork.pid)
        codes = [fork.wait(1e6) for fork in forks]
        return "", "", max(abs(code or 0) for code in codes)

    def _squeue(self, arguments: Sequence[str], *_: object) -> _Answer:
        assert list(arguments[:2]) == ["--noheader", "--format=%T"]
        there = [job for job in self.jobs if job.state in ("PENDING", "RUNNING")]
        found = [job for job in there if f"--jobs={job.number}" in arguments]
        if not found:  # squeue has forgotten jobs that ended some time ago
            return "", "slurm_load_jobs error: Invalid job id specified\n", 1
        return f"{found[0].state}\n", "", 0

    def _sacct(self, *_: object) -> _Answer:
        if not self.accounts:
            return "", "Slurm accounting storage is disabled\n", 1
        lines = [f"{job.number}|{job.state}|{','.join(self._hosts)}" for job in self.jobs]
        return "\n".join(["JobID|State|NodeList", *lines, ""]), "", 0

    def _scancel(self, arguments: Sequence[str], *_: object) -> _Answer:
        found = [job for job in self.jobs if job.number in arguments]
        for job in found:
            self.cancel(job)
        return "", "", 0 if found else 1
