"""Runs Python programs in forks of a process that has already imported PyTorch.

They behave like ``python -u FILE``, ``python -m MODULE`` or ``python -c CODE``.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import psutil

from adabench.harness.launch import fork_server
from adabench.harness.launch.fork_server import ForkServer

MODULE = fork_server.__name__
RUN_PYTHON = "tests.warm:run_python"
"""The function that a `ForkServer` runs for a Python program."""
RUN_ADABENCH = "tests.warm:run_adabench"
"""The function that a `ForkServer` runs for the command ``adabench``."""


class WarmProcess:
    """Like `subprocess.Popen` for a Python program with text output through pipes.

    Parameters
    ----------
    server : ForkServer
        The server to fork from, already started.
    arguments : sequence of str
        The arguments of ``python``: optionally ``-W`` and an action, then a file, or ``-m`` and a module, or
        ``-c`` and code, followed by the program's arguments.
    environment : mapping
        The complete environment of the program.
    folder : Path
        The working directory of the program.
    target : str, optional
        The function to run: `RUN_PYTHON`, or `RUN_ADABENCH`, which takes the arguments of that command.
    merged : bool, optional
        Whether standard error is merged into standard output.
    """

    def __init__(
        self,
        server: ForkServer,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        target: str = RUN_PYTHON,
        merged: bool = False,
    ) -> None:
        self.args = [target, *arguments]
        self.returncode: int | None = None
        out, err = os.pipe(), os.pipe()
        to = (out[1], out[1] if merged else err[1])
        self._fork = server.fork(target, [str(folder), *arguments], whole(environment), *to)
        for _, writer in (out, err):
            os.close(writer)
        self.pid = self._fork.pid
        self.stdout: IO[str] = os.fdopen(out[0], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(err[0], encoding="utf-8")
        self._readers: list[threading.Thread] = []
        self._said = ["", ""]

    def poll(self) -> int | None:
        return self._waited(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._waited(1e6 if timeout is None else timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The output from now on, complete once all processes that could write to it have ended."""
        deadline = time.monotonic() + (1e6 if timeout is None else timeout)
        if not self._readers:
            self._readers = [
                threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(2)
            ]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(max(deadline - time.monotonic(), 0.0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(max(deadline - time.monotonic(), 0.0) if timeout is not None else None)
        return self._said[0], self._said[1]

    def _read(self, number: int) -> None:
        with (self.stdout, self.stderr)[number] as stream:
            self._said[number] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._fork.end()

    def end(self) -> None:
        """Kill the program and everything that it has started, so that nothing can write any more."""
        self.kill()
        self.communicate(60.0)

    def _waited(self, seconds: float) -> int | None:
        self.returncode = self._fork.wait(seconds)
        return self.returncode


def run_warm(
    server: ForkServer,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,
    target: str = RUN_PYTHON,
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`, but with a `WarmProcess` and the output captured as text."""
    process = WarmProcess(server, arguments, environment, folder, target)
    try:
        said = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), *said)


def run_python(folder: str, *arguments: str) -> int:
    """Do in this process what ``python ARGUMENTS`` would do in `folder`; to be called once."""
    os.chdir(folder)
    _look_for_modules_as_told()
    # The existing streams were configured for the output that the server had when it started.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(number, "wb", buffering=0, closefd=False),  # noqa: SIM115
            encoding="utf-8",
            errors=errors,
            write_through=True,
        )
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    main = sys.modules["__main__"] = ModuleType("__main__")  # which stays until the process ends
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], folder
        code = compile(arguments[1], "<string>", "exec")
    else:
        file: str | None = arguments[0]
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = list(arguments[1:]), folder
            spec = importlib.util.find_spec(arguments[1])
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{arguments[1]}.__main__")
            assert spec is not None
            main.__spec__, file = spec, spec.origin
        else:
            sys.argv, sys.path[0] = list(arguments), str(Path(arguments[0]).parent)
        assert file is not None
        main.__file__ = file
        code = compile(Path(file).read_bytes(), file, "exec")
    exec(code, main.__dict__)
    return 0


def run_adabench(folder: str, *arguments: str) -> int:
    """Run ``adabench ARGUMENTS`` in `folder` within this process; may be called only once.

    The runs of the command are forked from another fork of this process.
    """
    return run_seeded(folder, "-m", "adabench.harness.cli", *arguments)


def run_seeded(folder: str, *arguments: str) -> int:
    """Like `run_python`, for a program that starts a fork server, which is itself a fork of this process."""
    os.chdir(folder)
    seed = _Seed()
    if seed.pid == 0:
        return seed.serve()
    setattr(fork_server, "subprocess", SimpleNamespace(Popen=seed, DEVNULL=subprocess.DEVNULL))  # noqa: B010
    try:
        return run_python(folder, *arguments)
    finally:
        if seed.poll() is None:
            seed.kill()
            seed.wait()


class _Seed:
    """A fork of this process that becomes a server of forks when it is called as `subprocess.Popen` is.

    It has imported what such a server imports, and it has no threads.

    Attributes
    ----------
    pid : int
        0 in the fork itself, which has to call `serve`.
    """

    def __init__(self) -> None:
        self._returncode: int | None = None
        self._ours, self._its = socket.socketpair()
        self.pid = os.fork()
        (self._its if self.pid else self._ours).close()

    def __call__(
        self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **options: Any
    ) -> _Seed | subprocess.Popen[bytes]:
        if self._ours.fileno() < 0:  # the first server was killed
            return subprocess.Popen(command, stdout=stdout, env=env, **options)
        # ``python -m MODULE``, the harness, the descriptor of its connection, which is passed, and modules.
        parent, _, *modules = command[3:]
        request = json.dumps([parent, modules, dict(env)]).encode()
        with self._ours:
            socket.send_fds(self._ours, [request], [stdout.fileno(), *options["pass_fds"]])
        return self

    def serve(self) -> int:
        """In the fork: wait for a request, serve it, and return the exit code."""
        request, descriptors = b"", list[int]()
        with self._its:
            while True:
                part, came, _, _ = socket.recv_fds(self._its, 1 << 20, 2)
                if not part:
                    break
                request += part
                descriptors += came
        if not request:
            return 0
        parent, modules, environment = json.loads(request)
        said, connection = descriptors
        os.setsid()
        for standard in (1, 2):
            os.dup2(said, standard)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[0] = os.getcwd()
        _look_for_modules_as_told()
        return fork_server.main([parent, str(connection), *modules])

    def poll(self) -> int | None:
        if self._returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode

    def wait(self) -> int:
        if self._returncode is None:
            self._returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._returncode

    def kill(self) -> None:
        if self._returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _look_for_modules_as_told() -> None:
    """In the folders of PYTHONPATH, which this process was started without."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]


def children() -> list[psutil.Process]:
    """All descendants of this process except for the fork servers and their forks."""
    servers = [one for one in psutil.Process().children() if MODULE in one.cmdline()]
    forks = {one.pid for server in servers for one in [server, *server.children(recursive=True)]}
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in forks]


def whole(environment: Mapping[str, str]) -> dict[str, str | None]:
    """The difference from this process's environment to another one."""
    missing: dict[str, str | None] = {name: None for name in os.environ if name not in environment}
    return {**missing, **environment}
