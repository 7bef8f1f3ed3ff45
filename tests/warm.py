"""Python programs as processes that need not import PyTorch first: forks of one that has.

What they do is what ``python -u FILE`` or ``python -m MODULE`` would do.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import IO

import psutil

from adabench.harness.launch import fork_server
from adabench.harness.launch.fork_server import ForkServer

__all__ = ["RUN_PYTHON", "WarmProcess", "children", "run_python", "whole"]

MODULE = fork_server.__name__
RUN_PYTHON = "tests.warm:run_python"
"""What a `ForkServer` is asked for."""


class WarmProcess:
    """As `subprocess.Popen` of a Python program whose output is text and goes to pipes.

    Parameters
    ----------
    server : ForkServer
        Started.
    arguments : sequence of str
        Those of ``python``: a file, or ``-m`` and a module, and what follows.
    environment : mapping
        The whole of it.
    folder : Path
        Where it works.
    """

    def __init__(
        self, server: ForkServer, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.args = ["python", *arguments]
        self.returncode: int | None = None
        out, err = os.pipe(), os.pipe()
        self._fork = server.fork(RUN_PYTHON, [str(folder), *arguments], whole(environment), out[1], err[1])
        for _, writer in (out, err):
            os.close(writer)
        self.pid = self._fork.pid
        self.stdout: IO[str] = os.fdopen(out[0], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(err[0], encoding="utf-8")

    def poll(self) -> int | None:
        return self._waited(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._waited(1e6 if timeout is None else timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes from now on, once it has ended."""
        said = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            if not stream.closed:
                with stream:
                    said[number] = stream.read()

        readers = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
        ]
        deadline = time.monotonic() + (1e6 if timeout is None else timeout)
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(deadline - time.monotonic(), 0.0))
        self.wait(max(deadline - time.monotonic(), 0.0) if timeout is not None else None)
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._fork.end()

    def _waited(self, seconds: float) -> int | None:
        self.returncode = self._fork.wait(seconds)
        return self.returncode


def run_python(folder: str, *arguments: str) -> int:
    """Do in this process what ``python ARGUMENTS`` would do in `folder`; to be called once."""
    os.chdir(folder)
    main = sys.modules["__main__"] = ModuleType("__main__")  # which stays until the process ends
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = list(arguments[1:]), folder
        main.__spec__ = spec = importlib.util.find_spec(arguments[1])
        assert spec is not None
        assert isinstance(spec.loader, SourceLoader)
        main.__file__, code = spec.origin, spec.loader.get_code(arguments[1])
    else:
        sys.argv, sys.path[0] = list(arguments), str(Path(arguments[0]).parent)
        main.__file__ = arguments[0]
        code = compile(Path(arguments[0]).read_bytes(), arguments[0], "exec")
    assert code is not None
    exec(code, main.__dict__)
    return 0


def children() -> list[psutil.Process]:
    """What this process has started and what that has started, but for the servers of forks."""
    servers = [one for one in psutil.Process().children() if MODULE in one.cmdline()]
    forks = {one.pid for server in servers for one in [server, *server.children(recursive=True)]}
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in forks]


def whole(environment: Mapping[str, str]) -> dict[str, str | None]:
    """The difference from this process's environment to another one."""
    missing: dict[str, str | None] = {name: None for name in os.environ if name not in environment}
    return {**missing, **environment}
