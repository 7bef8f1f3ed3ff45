"""The fork server: a process that has imported torch, and from which the process group of each run is forked.

Importing torch takes longer than the training of a small run, and every rank of every run would import it.
Therefore a fork server imports it once. It is this module, run as a program with the arguments
``HARNESS-PID SOCKET MODULES…``, and forks a process for each request. It imports only modules of this project
and their dependencies: the import of a plugin may have side effects, which must not affect the runs of other
cells.

A fork contains only the thread that called it. This is safe as long as the server has no other thread, which
is checked after the imports. The fork server of `multiprocessing` is not used for four reasons: it does not
check this, it does not report a failed import, its forks do not end with it, and they import the harness's
main module again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from adabench.harness.errors import LauncherError
from adabench.harness.machine.process import die_with_parent, kill_tree, prepare_quick_end
from adabench.harness.machine.process_identity import HARNESS_VARIABLE, ProcessIdentity

# `torch._dynamo` is imported by the first use of any optimizer of torch.
MODULES = ("torch", "torch._dynamo", "torch.distributed", "autoada", "adabench.harness.run.training_loop")

_TASKS = Path("/proc/self/task")
_CODE = struct.Struct("=i")


KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""Settings of glibc for all runs, unless the user's environment has others: see mallopt(3).

By default, memory that a step frees returns to the kernel, which clears it for the next step. In some use
cases, this takes a tenth of the CPU time.
"""


class ForkServerError(LauncherError):
    """Error if the server cannot be started or is gone; its text becomes a run's reason."""


class Fork:
    """A process that the server has forked.

    Attributes
    ----------
    pid : int
        Identifier of the process.
    """

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self._ended = ended
        self._code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """The exit code, once the process has ended, or None if it has not within `seconds`.

        As in `subprocess`, the exit code of a process that a signal ended is the signal's number, negative.
        """
        if self._code is None and select.select([self._ended], [], [], seconds)[0]:
            code = os.read(self._ended, _CODE.size)
            os.close(self._ended)
            # The pipe is empty if the server has died; its forks die with it.
            self._code = _CODE.unpack(code)[0] if code else -signal.SIGKILL
        return self._code

    def end(self) -> int:
        """Kill the process, if it has not ended, and all below it; gives the exit code."""
        while True:
            kill_tree(self.pid)
            code = self.wait(60.0)
            if code is not None:
                return code


class ForkServer:
    """The harness's side: starts the server when it is first needed, and again if it was killed.

    A context manager; the server and all that it forked end with it, and with the harness's process.

    Parameters
    ----------
    modules : sequence of str, optional
        Modules that it imports in addition to `MODULES`.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = (*MODULES, *modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._output: IO[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Block until the server has imported its modules, for seconds; do nothing if it has.

        The calling thread has to live as long as the server is needed: the kernel ends the server with the
        thread that started it.

        Raises
        ------
        ForkServerError
            If it cannot import them, or a module started a thread.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, its = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        with its:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "adabench.harness.launch.fork_server"),
                    *(str(os.getpid()), str(its.fileno()), *self._modules),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={
                    **KEEP_FREED_MEMORY,
                    **os.environ,
                    # Read by PyTorch's and Arrow's libraries when they are loaded; then none starts a thread.
                    "OMP_NUM_THREADS": "1",
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                    "PYTHONUNBUFFERED": "1",
                    HARNESS_VARIABLE: ProcessIdentity.this_process().text(),
                },
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        self._connection = ours
        if _receive(ours)[0] != b"ready\n":
            self._output.seek(0)
            lines = self._output.read().decode(errors="replace").strip().splitlines()
            self.close()
            last = lines[-1] if lines else "no message"
            raise ForkServerError(f"the process that runs are forked from cannot be started: {last}")

    def fork(
        self, target: str, arguments: Sequence[str], environment: Mapping[str, str | None], out: int, err: int
    ) -> Fork:
        """Start a process; any thread may, once the server was started.

        Parameters
        ----------
        target : str
            ``module:function`` that the process calls; the result is its exit code.
        arguments : sequence of str
            Arguments of the function.
        environment : mapping
            Differences from the server's environment; None for a variable to remove.
        out, err : int
            File descriptors for standard output and standard error.

        Raises
        ------
        ForkServerError
            If the server is gone.
        """
        request = json.dumps([target, list(arguments), dict(environment)]).encode() + b"\n"
        ended, at_end = os.pipe()
        try:
            if self._connection is None:
                raise ConnectionError("not started")
            with self._lock:
                socket.send_fds(self._connection, [request], [out, err, at_end])
                answer, _ = _receive(self._connection)
        except OSError:
            answer = b""
        finally:
            os.close(at_end)
        if not answer:
            os.close(ended)
            raise ForkServerError("the process that runs are forked from is gone: was it killed?")
        return Fork(int(answer), ended)

    def close(self) -> None:
        """End the server, and with it all that it forked."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._connection = self._output = None


def main(arguments: Sequence[str]) -> int:
    """The server; in a fork of it, the function that was requested. Gives the exit code of either."""
    prepare_quick_end()  # Called first, so that `atexit` functions of the imports are called.
    die_with_parent(int(arguments[0]))
    connection = socket.socket(fileno=int(arguments[1]))
    connection.set_inheritable(False)
    for module in arguments[2:]:
        importlib.import_module(module)
    if _TASKS.is_dir() and len(list(_TASKS.iterdir())) > 1:
        print(f"one of {', '.join(arguments[2:])} starts a thread when it is imported", file=sys.stderr)
        return 1
    # Keeps the memory of the imported modules shared: the garbage collection of a fork does not write to it.
    gc.collect()
    gc.freeze()
    alarm, bell = socket.socketpair()
    bell.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    server, running = os.getpid(), dict[int, int]()
    connection.sendall(b"ready\n")
    while True:
        ready, _, _ = select.select([connection, alarm], [], [])
        if alarm in ready:
            alarm.recv(4096)
            _report_ended(running)
        if connection not in ready:
            continue
        request, descriptors = _receive(connection)
        if not request:
            return 0
        out, err, at_end = descriptors
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (connection, alarm, bell):
                one.close()
            for descriptor in (at_end, *running.values()):
                os.close(descriptor)
            return _begin(server, request, out, err)
        running[pid] = at_end
        os.close(out)
        os.close(err)
        connection.sendall(b"%d\n" % pid)


def _report_ended(running: dict[int, int]) -> None:
    """Write the exit codes of forks that have ended to their pipes."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        at_end = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # The reader of the pipe is gone.
            os.write(at_end, _CODE.pack(os.waitstatus_to_exitcode(status)))
        os.close(at_end)


def _begin(server: int, request: bytes, out: int, err: int) -> int:
    """Make this fork like a new process, and call the function that was requested."""
    die_with_parent(server)
    os.setsid()
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        # Each fork would write the server's buffer again, so the server has none. But without a buffer print
        # writes the end of a line separately, and the ranks of a run share one file.
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True, write_through=False)
    target, arguments, environment = json.loads(request)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # The server may have cached the host name.
    # NumPy's generator has to differ from process to process; Python's sees to it itself.
    np.random.seed()  # noqa: NPY002
    module, _, function = target.partition(":")
    return int(getattr(importlib.import_module(module), function)(*arguments))


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The other side's next line, with the descriptors that come with it; an empty line if it is gone."""
    line, descriptors = b"", list[int]()
    while not line.endswith(b"\n"):
        part, came, _, _ = socket.recv_fds(connection, 65536, 3)
        if not part:
            return b"", descriptors
        line += part
        descriptors += came
    return line, descriptors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
