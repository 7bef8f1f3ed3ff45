"""Exports in processes that are killed while they write; the next ones go on from what is there.

As with checkpoints (`tests.integration.checkpoints.kills`), every life proves that the newest export is of
the step that it claims, and that this is not before the last step that was acknowledged.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
from tests.integration.checkpoints.faulty_disk import FaultyDisk
from tests.integration.checkpoints.kills import MOST_STEPS, rounds

ROWS, LENGTH = 96, 4


def expected(step: int) -> npt.NDArray[np.float32]:
    """Every step adds 1 to eight rows, others in the next one."""
    values = np.zeros((ROWS, LENGTH), np.float32)
    for number in range(1, step + 1):
        values[rows_of(number)] += 1
    return values


def rows_of(step: int) -> npt.NDArray[np.int64]:
    """Which rows change."""
    return np.arange(step % 12, ROWS, 12)


def exported(directory: Path, acknowledged: int) -> int:
    """The step of the newest export, 0 if there is none."""
    try:
        values = adaps.load_export(directory)["emb"]
    except adaps.CheckpointError as error:
        if acknowledged == 0 and "holds no complete export" in str(error):
            return 0
        raise
    for step in (acknowledged, acknowledged + 1):
        if values.tobytes() == expected(step).tobytes():
            return step
    raise AssertionError(
        f"step {acknowledged} was acknowledged; the export is none of it or of the next step"
    )


def live(directory: Path, acknowledged: int, report: int, nodes: int, fault: tuple[int, str] | None) -> None:
    """One process's life; ends the process."""

    def say(message: Any) -> None:
        os.write(report, (json.dumps(message) + "\n").encode())

    try:
        step = exported(directory, acknowledged)
        with adaps.Node([adaps.Table("emb", ROWS, LENGTH)], peer_timeout=30.0) as node:
            kv = node.worker(0)
            if node.rank == 0:
                kv.set(np.arange(ROWS), expected(step))
            kv.end_setup()
            if node.rank == 0:
                say(step)  # what was there once must not be lost later
            if fault is not None:
                FaultyDisk(*fault, say)
            for number in range(step + 1, step + 1 + MOST_STEPS):
                rows = np.arange(number % 12 + 12 * node.rank, ROWS, 12 * node.world_size)
                kv.push(rows, np.ones((len(rows), LENGTH), np.float32))
                node.export(directory).wait()
                if node.rank == 0:
                    say(number)
    except adaps.PeerLost:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["nodes"] > 1:
        import torch.distributed  # once, not in every child  # noqa: F401
    with tempfile.TemporaryDirectory(dir=given["folder"]) as folder:
        print(json.dumps(rounds(Path(folder) / "saved", given["kills"], given["seed"], given["nodes"], live)))


if __name__ == "__main__":
    main()
