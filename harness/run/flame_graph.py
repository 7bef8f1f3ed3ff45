"""Flame graphs: py-spy samples this process, including native code, while it trains."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adabench.harness.machine.process import allow_tracing

INSTALL = "py-spy is not installed: pip install 'adabench[profile]', or pip install py-spy"

_RATE = 100
_FINISH_SECONDS = 60.0


class NoFlameGraph(RuntimeError):
    """Error with the reason why no flame graph was written."""


def find_py_spy() -> str | None:
    """Return the path of py-spy, in this Python's environment or on the PATH."""
    own = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    return own or shutil.which("py-spy")


@contextmanager
def flame_graph(file: Path) -> Iterator[None]:
    """Write an SVG of this process's calls in the body to `file`.

    It has native frames where py-spy can read them, else Python's only. Raises `NoFlameGraph` before the body
    if py-spy cannot trace this process, and after it if py-spy wrote nothing.
    """
    sampler = _attach(file)
    try:
        yield
    finally:
        if sampler.poll() is None:
            sampler.send_signal(signal.SIGINT)
        try:
            said, _ = sampler.communicate(timeout=_FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            sampler.kill()
            said, _ = sampler.communicate()
    if not file.is_file():
        raise NoFlameGraph(f"py-spy wrote no flame graph: {_last_line(said) or 'it said nothing'}")


def _attach(file: Path) -> subprocess.Popen[str]:
    program = find_py_spy()
    if program is None:
        raise NoFlameGraph(INSTALL)
    allow_tracing()
    reason = ""
    for native in [True, False] if sys.platform == "linux" else [False]:
        command = [program, "record", "--pid", str(os.getpid()), "--rate", str(_RATE), "--output", str(file)]
        sampler = subprocess.Popen(
            [*command, *(["--native"] if native else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert sampler.stdout is not None
        said = ""
        for line in sampler.stdout:  # The pipe ends when py-spy ends.
            said += line
            if "Sampling process" in line:
                return sampler
        sampler.stdout.close()
        sampler.wait()
        reason = _last_line(said) or f"exit code {sampler.returncode}"
    raise NoFlameGraph(f"py-spy cannot look at the process: {reason}")


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""
