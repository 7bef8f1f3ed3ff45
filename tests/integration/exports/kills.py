"""Exports by processes that are killed while writing; the next processes continue from what they left."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
from tests.integration.checkpoints.lives import Life, lives_of

ROWS, LENGTH = 96, 4


def expected(step: int) -> npt.NDArray[np.float32]:
    """Every step adds 1 to eight rows, others in the next one."""
    values = np.zeros((ROWS, LENGTH), np.float32)
    for number in range(1, step + 1):
        values[number % 12 :: 12] += 1
    return values


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


def train(life: Life) -> None:
    step = exported(life.directory, life.acknowledged)
    with adaps.Node([adaps.Table("emb", ROWS, LENGTH)], peer_timeout=30.0) as node:
        kv = node.worker(0)
        if node.rank == 0:
            kv.set(np.arange(ROWS), expected(step))
        kv.end_setup()
        for number in life.steps(node.rank, step):
            rows = np.arange(number % 12 + 12 * node.rank, ROWS, 12 * node.world_size)
            kv.push(rows, np.ones((len(rows), LENGTH), np.float32))
            node.export(life.directory).wait()


def main(**given: Any) -> dict[str, int]:
    return lives_of(train, **given)
