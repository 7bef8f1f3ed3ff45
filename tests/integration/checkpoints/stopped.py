"""Stop a process at one call of the disk while it writes a checkpoint, until another has taken over.

For each call in turn, a process writes checkpoints 1 and 2 on a file system without locks and is stopped just
before its n-th call of the second one. Another process then restores the directory and writes the next
checkpoint, after which the first process continues. In the end, the directory must hold the complete
checkpoint of the second process, and the first one must get an error unless it had published before the stop.
The processes are forks of this one, so each costs some hundredths of a second.
"""

import errno
import logging
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import adaps
import adaps.checkpoint
from adaps.checkpoint import disk_calls
from tests.processes import exit_code, forked

ROWS = 40
CALLS = [name for name in disk_calls.__all__ if name not in ("naming", "process")]
TOLD, DONE = 3, 0


def train_and_write(node: adaps.Node, directory: Path, step: int) -> None:
    rows = np.arange(ROWS)
    kv = node.worker(0)
    out = np.empty((ROWS, 1), np.float32)
    kv.pull(rows, out)
    kv.push(rows, np.float32(step) - out)
    node.checkpoint(directory, extra={"step": step})


def is_stopped(directory: Path, at: int) -> int:
    """Write checkpoints of the steps 1 and 2; stopped before call `at` of the second."""
    left = at

    def before_each(name: str, original: Any) -> None:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments)

        setattr(disk_calls, name, call)

    def no_locks(path: Path, text: bytes) -> int:
        raise OSError(errno.ENOLCK, "No locks available")

    disk_calls.lock = no_locks
    logging.getLogger("adaps").setLevel(logging.ERROR)  # hides the warning that there are no locks
    with adaps.Node([adaps.Table("emb", ROWS, 1)]) as node:
        train_and_write(node, directory, 1)
        for name in CALLS:
            before_each(name, getattr(disk_calls, name))
        try:
            train_and_write(node, directory, 2)
        except adaps.CheckpointError as error:
            if "was taken over by process" not in str(error):
                raise
            return TOLD
    return DONE


def restored(directory: Path, then: int | None) -> int:
    """The step that is restored, after its content was compared; `then`, if given, is written."""
    with adaps.Node([adaps.Table("emb", ROWS, 1)]) as node:
        step = int(node.restore(directory).extra["step"])
        out = np.empty((ROWS, 1), np.float32)
        node.worker(0).pull(np.arange(ROWS), out)
        if not (out == step).all():
            raise AssertionError(f"the content is not that of step {step}: {sorted(set(out.ravel()))}")
        if then is not None:
            train_and_write(node, directory, then)
    return step


def one(directory: Path, at: int) -> str:
    """How the process that is stopped at this call ended; ``done`` if there are fewer calls."""
    first = forked(lambda: is_stopped(directory, at))
    status = os.waitpid(first, os.WUNTRACED)[1]
    if not os.WIFSTOPPED(status):
        assert os.waitstatus_to_exitcode(status) == DONE
        return "done"
    taken = exit_code(forked(lambda: 10 + restored(directory, 7)))
    os.kill(first, signal.SIGCONT)
    end = exit_code(first)
    left = exit_code(forked(lambda: 10 + restored(directory, None)))
    assert (taken in (11, 12), end in (TOLD, DONE), left) == (True, True, 17), (at, taken, end, left)
    assert end == TOLD or taken == 12, f"{at}: step 2 was acknowledged, but step 1 was restored"
    return "told" if end == TOLD else "had published"


def main(folder: str) -> dict[str, int]:
    ends: Counter[str] = Counter()
    at = 0
    while not ends["done"]:
        at += 1
        ends[one(Path(folder) / str(at), at)] += 1
    return ends
