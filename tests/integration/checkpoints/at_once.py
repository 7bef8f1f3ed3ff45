"""Reads a checkpoint's manifest on threads that begin at the same time, in processes that have not read one.

Each try has a process of its own, for only the first reading is of interest: it makes what all others use.
The result is how many of them died.
"""

import os
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import adaps
from adaps.checkpoint import editions
from adaps.checkpoint.manifests import CHECKPOINTS
from tests.integration.guarantees.common import on_threads
from tests.processes import exit_code, forked

TRIES, THREADS = 40, 2


def main() -> dict[str, int]:
    sys.setswitchinterval(1e-6)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "saved"
        # The child has a node and its threads; this process is to have none.
        assert exit_code(forked(lambda: write(directory))) == 0
        return {"died": sum(exit_code(forked(partial(read_at_once, directory))) != 0 for _ in range(TRIES))}


def write(directory: Path) -> int:
    with adaps.Node([adaps.Table("emb", 10, 2)]) as node:
        node.checkpoint(directory)
    return 0


def read_at_once(directory: Path) -> int:
    together = threading.Barrier(THREADS)

    def read(_: int) -> None:
        together.wait()
        if editions.newest(directory, CHECKPOINTS) is None:
            os._exit(1)

    on_threads(THREADS, read)
    return 0
