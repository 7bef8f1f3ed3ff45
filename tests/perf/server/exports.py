"""How long training takes while tables are exported, and without: in turns, in the same steps."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK, arguments, random_generator, report, skewed

ROWS, LENGTH, BATCH = 200_000, 32, 2_000
AHEAD = 3


def main() -> None:
    given = arguments()
    table = adaps.Table(
        "t", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=0.01), init=adaps.Uniform(-1, 1, seed=1)
    )
    directory = Path(given["directory"])
    with adaps.Node([table]) as node:
        blocks = Blocks(node, directory)
        blocks.run(given["steps"], exports=0)  # until rows are where they are used
        pairs = [
            (blocks.run(given["steps"], exports=1), blocks.run(given["steps"], exports=0))
            for _ in range(given["rounds"])
        ]
    if RANK == 0:
        shutil.rmtree(directory)
    report(
        exporting=[one[0] for one, _ in pairs],
        blocked=[one[1] for one, _ in pairs],
        plain=[other[0] for _, other in pairs],
    )


class Blocks:
    """Steps of one worker, which announces its rows, reads them and pushes gradients."""

    def __init__(self, node: adaps.Node, directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._kv = node.worker(0)
        self._step = 0
        self._out = np.empty((BATCH, LENGTH), np.float32)
        self._weights = random_generator(1).standard_normal((LENGTH, LENGTH)).astype(np.float32)

    def run(self, steps: int, exports: int) -> tuple[float, float]:
        """Seconds that so many steps take, and in which the worker waits for as many exports among them."""
        self._kv.barrier()
        begun, blocked = time.monotonic(), 0.0
        for step in range(steps):
            if exports and step % (steps // exports) == 0:
                before = time.monotonic()
                export = self._node.export(self._directory)
                blocked += time.monotonic() - before
            self._train()
        if exports:
            export.wait()  # whatever is written takes place within the block
        self._kv.barrier()
        return time.monotonic() - begun, blocked

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


if __name__ == "__main__":
    main()
