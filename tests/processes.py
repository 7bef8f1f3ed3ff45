"""Processes that a test has started and waits for."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.warm import WarmProcess

__all__ = ["outputs"]


def outputs(
    processes: Sequence[subprocess.Popen[str] | WarmProcess], seconds: float
) -> list[tuple[str, str]]:
    """The standard output and error of each process; no process is left running, whatever happens."""
    try:
        return [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60.0)
