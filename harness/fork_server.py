"""A process that has imported what runs need and started nothing else; every run's group is a fork of it.

Importing torch and its like takes longer than many a run trains, and it would be paid by every rank of every
run. So it is paid once: ``python -m adabench.harness.fork_server HARNESS-PID SOCKET MODULES…`` imports, and
then forks a process group for each request. Only modules of this project and of torch are imported there:
what a plugin of somebody else does when it is imported must not reach the runs of other cells.

A fork has only the thread that called it. That is safe as long as the server has no other one, which is
looked at after the imports.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from adabench.harness.owner import Owner
from adabench.harness.process import die_with_parent, kill_tree
from adabench.harness.spec import HARNESS_VARIABLE

__all__ = ["ForkServer", "ForkServerError", "Group"]

# `torch._dynamo` is imported by the first use of any optimizer of torch.
MODULES = ("torch", "torch._dynamo", "torch.distributed", "autoada", "adabench.harness.trial")

_TASKS = Path("/proc/self/task")


class ForkServerError(RuntimeError):
    """The server cannot be started; one sentence that becomes a run's reason."""


class Group:
    """A run's process group, which the server has forked.

    Attributes
    ----------
    pid : int
        Of the group's root, the parent of its ranks.
    """

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self._ended = ended
        self._code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """The exit code of the group's root, once it has ended, or None if it has not within `seconds`.

        One that was killed has -9, as in `subprocess`.
        """
        if self._code is None and select.select([self._ended], [], [], seconds)[0]:
            # One byte if the root came to its end, none if it was killed; both once nothing is left of it.
            said = os.read(self._ended, 1)
            os.close(self._ended)
            self._code = said[0] if said else -signal.SIGKILL
        return self._code

    def end(self) -> int:
        """Kill whatever is left of the group; gives the exit code of its root."""
        kill_tree(self.pid)
        while (code := self.wait(60)) is None:
            kill_tree(self.pid)
        return code


class ForkServer:
    """The harness's side: starts the server when it is first needed, and again if it was killed.

    A context manager; the server and all groups end with it, and with the harness's process.

    Parameters
    ----------
    modules : sequence of str, optional
        What it imports beside `MODULES`.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = (*MODULES, *modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._said: IO[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Block until the server has imported its modules, seconds; nothing if it has.

        To be called by a thread that lives as long as the server is needed: the kernel ends the server with
        the thread that started it.

        Raises
        ------
        ForkServerError
            If it cannot import them, or a module started a thread.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, its = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        with its:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "adabench.harness.fork_server"),
                    *(str(os.getpid()), str(its.fileno()), *self._modules),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env={
                    **os.environ,
                    # Read when libraries are loaded, here PyTorch's and Arrow's: so none starts a thread.
                    "OMP_NUM_THREADS": "1",
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                    "PYTHONUNBUFFERED": "1",
                    HARNESS_VARIABLE: Owner.this_process().text(),
                },
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        self._connection = ours
        if _line(ours)[0] != b"ready\n":
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            self.close()
            said = lines[-1] if lines else "no message"
            raise ForkServerError(f"the process that runs are forked from cannot be started: {said}")

    def fork(self, spec_file: Path, environment: Mapping[str, str | None], out: int, err: int) -> Group:
        """Start a group for the run that a file describes; any thread may, once the server was started.

        Parameters
        ----------
        spec_file : Path
            A `TrialSpec`.
        environment : mapping
            What differs from the harness's; None for a variable that is not there.
        out, err : int
            File descriptors for the output of all processes of the group.

        Raises
        ------
        ForkServerError
            If the server is gone.
        """
        request = json.dumps([str(spec_file), dict(environment)]).encode() + b"\n"
        ended, at_end = os.pipe()
        try:
            if self._connection is None:
                raise ConnectionError("not started")
            with self._lock:
                socket.send_fds(self._connection, [request], [out, err, at_end])
                answer, _ = _line(self._connection)
        except OSError:
            answer = b""
        finally:
            os.close(at_end)
        if not answer.strip().isdigit():
            os.close(ended)
            raise ForkServerError("the process that runs are forked from is gone: was it killed?")
        return Group(int(answer), ended)

    def close(self) -> None:
        """End the server, and with it every group."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._said is not None:
            self._said.close()
        self._process = self._connection = self._said = None


def main(arguments: Sequence[str]) -> int:
    """The server; in a fork of it, the root of a group, and in a fork of that, a rank."""
    die_with_parent(int(arguments[0]))
    connection = socket.socket(fileno=int(arguments[1]))
    connection.set_inheritable(False)
    for module in arguments[2:]:
        importlib.import_module(module)
    if _TASKS.is_dir() and len(list(_TASKS.iterdir())) > 1:
        print(f"one of {', '.join(arguments[2:])} starts a thread when it is imported", file=sys.stderr)
        return 1
    # What was imported stays shared: no collection of a fork writes to its pages.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks this process for the exit codes of groups
    server = os.getpid()
    connection.sendall(b"ready\n")
    while True:
        request, descriptors = _line(connection)
        if not request:
            return 0
        group = os.fork()
        if not group:
            connection.close()
            return _begin_group(server, request, *descriptors)
        connection.sendall(b"%d\n" % group)
        for descriptor in descriptors:
            os.close(descriptor)


def _begin_group(server: int, request: bytes, out: int, err: int, at_end: int) -> int:
    """Make this fork what a new process would be, and the root of a group."""
    from adabench.harness.group import run_group

    die_with_parent(server)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.set_inheritable(at_end, False)
    spec_file, environment = json.loads(request)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # the server may have asked where temporary files go
    return run_group(Path(spec_file), at_end)


def _line(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What the other side says next, to the end of a line, with the descriptors that come along.

    Nothing if it is gone.
    """
    said, descriptors = b"", list[int]()
    while not said.endswith(b"\n"):
        part, came, _, _ = socket.recv_fds(connection, 65536, 3)
        if not part:
            return b"", descriptors
        said += part
        descriptors += came
    return said, descriptors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
