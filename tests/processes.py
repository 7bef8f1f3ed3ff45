"""Processes that a test has started and waits for."""

import subprocess
from collections.abc import Sequence

from tests.warm import WarmProcess


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
