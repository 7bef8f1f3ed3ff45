"""Trains in processes that are killed while they write checkpoints; the next ones go on from there."""

import functools
import json
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
import adaps.checkpoint
from tests.integration.checkpoints.lives import Life, lives_of
from tests.processes import text_of_fork

ROWS, LENGTH, RATE = 96, 4, 0.5
INIT = adaps.Uniform(-1.0, 1.0, seed=4)


def table() -> adaps.Table:
    return adaps.Table("emb", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=RATE), init=INIT)


@functools.cache
def start() -> npt.NDArray[np.float32]:
    """The initial values, read in a separate process because this process must not have a node."""

    def read() -> str:
        with adaps.Node([table()]) as node:
            out = np.empty((ROWS, LENGTH), np.float32)
            node.worker(0).pull(np.arange(ROWS), out)
        return json.dumps(out.tolist())

    return np.array(json.loads(text_of_fork(read)), np.float32)


def expected(step: int) -> npt.NDArray[np.float32]:
    """Values after `step` gradients of 1 in every third row; they differ from step to step."""
    values = start().copy()
    for number in range(1, step + 1):
        values[::3] -= np.float32(RATE) / (np.sqrt(np.float32(number)) + np.float32(1e-10))
    return values


def train(life: Life) -> None:
    with adaps.Node([table()], peer_timeout=30.0) as node:
        kv = node.worker(0)
        step = 0
        if adaps.checkpoint.exists(life.directory):
            step = int(node.restore(life.directory).extra["step"])
        if not life.acknowledged <= step <= life.acknowledged + 1:
            raise AssertionError(f"step {life.acknowledged} was acknowledged; step {step} was restored")
        out = np.empty((ROWS, LENGTH), np.float32)
        kv.pull(np.arange(ROWS), out)
        if not np.allclose(out, expected(step), rtol=1e-5, atol=1e-6):
            raise AssertionError(f"the content is not that of step {step}")
        kv.barrier()
        for number in life.steps(node.rank, step):
            rows = np.arange(3 * node.rank, ROWS, 3 * node.world_size)
            kv.push_gradients(rows, np.ones((len(rows), LENGTH), np.float32))
            node.checkpoint(life.directory, extra={"step": number})


def main(**given: Any) -> dict[str, int]:
    start()
    return lives_of(train, **given)
