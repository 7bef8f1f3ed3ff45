"""The duration of training with and without exports of the tables, alternately and for the same steps.

The cost for other workloads, whatever the length of their steps, follows from the time for which a worker
waits for an export, the CPU time beside the steps, and the bytes of the files.
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import adaps
from tests.checkpoint_files import manifest_path
from tests.integration.guarantees.common import RANK, random_generator, skewed

ROWS, LENGTH, BATCH = 200_000, 32, 2_000
AHEAD = 3


def main(directory: str, steps: int, rounds: int) -> dict[str, Any]:
    table = adaps.Table(
        "t", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=0.01), init=adaps.Uniform(-1, 1, seed=1)
    )
    with adaps.Node([table]) as node:
        blocks = Blocks(node, Path(directory))
        blocks.run(steps, exports=0)  # until rows are where they are used
        first = blocks.run(steps, exports=1)
        pairs = [(blocks.run(steps, exports=1), blocks.run(steps, exports=0)) for _ in range(rounds)]
    if RANK == 0:
        shutil.rmtree(directory)
    return {
        "first": first._asdict(),
        "exporting": [one._asdict() for one, _ in pairs],
        "plain": [other._asdict() for _, other in pairs],
    }


class Block(NamedTuple):
    """Seconds of a block, seconds of waiting for exports, CPU seconds, and bytes of the files."""

    wall: float
    blocked: float
    cpu: float
    bytes: int


class Blocks:
    """Steps of one worker, which announces its rows, reads them and pushes gradients."""

    def __init__(self, node: adaps.Node, directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._kv = node.worker(0)
        self._step = 0
        self._out = np.empty((BATCH, LENGTH), np.float32)
        self._weights = random_generator(1).standard_normal((LENGTH, LENGTH)).astype(np.float32)

    def run(self, steps: int, exports: int) -> Block:
        """Make `steps` steps and, evenly among them, `exports` exports."""
        self._kv.barrier()
        begun, cpu, blocked, written = time.monotonic(), time.process_time(), 0.0, 0
        for step in range(steps):
            if exports and step % (steps // exports) == 0:
                before = time.monotonic()
                export = self._node.export(self._directory)
                blocked += time.monotonic() - before
            self._train()
        if exports:
            export.wait()  # all writing takes place within the block
        self._kv.barrier()
        if exports:
            written = sum(file["bytes"] for file in newest_part(self._directory) if file["rank"] == RANK)
        return Block(time.monotonic() - begun, blocked, time.process_time() - cpu, written)

    def _train(self) -> None:
        kv = self._kv
        kv.intent(self._rows(self._step + AHEAD), self._step + AHEAD)
        rows = self._rows(self._step)
        kv.pull(rows, self._out)
        gradients = np.tanh(self._out @ self._weights)
        kv.push_gradients(rows, gradients)
        kv.advance_clock()
        self._step += 1

    def _rows(self, step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        own = skewed(random_generator(RANK, step), ROWS // 2, BATCH)
        return own + RANK % 2 * (ROWS // 2)


def newest_part(directory: Path) -> list[dict[str, Any]]:
    """The files that the newest export has added."""
    parts = json.loads(manifest_path(directory).read_text())["export"]["parts"]
    return list(parts[-1]["files"])
