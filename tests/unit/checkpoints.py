"""The training and the checks that the tests of checkpoints share."""

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps

ROWS, LENGTH = 40, 3
OPTIMIZERS = [
    adaps.SGD(lr=0.1),
    adaps.SGD(lr=0.1, momentum=0.9),
    adaps.Adagrad(lr=0.1),
    adaps.RowAdagrad(lr=0.1),
    adaps.Adam(lr=0.1),
    adaps.SparseAdam(lr=0.1),
]
INIT = adaps.Uniform(-1.0, 1.0, seed=5)


def table(optimizer: Any = OPTIMIZERS[2], **changes: Any) -> adaps.Table:
    given = {"name": "emb", "rows": ROWS, "length": LENGTH, "optimizer": optimizer, "init": INIT, **changes}
    return adaps.Table(**given)


def train(node: adaps.Node, first: int, steps: int, rows: int = ROWS // 2) -> None:
    """Random gradients of the first `rows` rows, the same for the same steps."""
    for step in range(first, first + steps):
        gradients = np.random.default_rng(step).standard_normal((rows, LENGTH)).astype(np.float32)
        node.worker(0).push_gradients(np.arange(rows), gradients)
        node.worker(0).advance_clock()


def values(node: adaps.Node) -> npt.NDArray[np.float32]:
    out = np.empty((ROWS, LENGTH), np.float32)
    node.worker(0).pull(np.arange(ROWS), out)
    return out


def fail_to_write(*arguments: Any) -> None:
    """Replaces a call of the disk and fails with an I/O error."""
    raise OSError(errno.EIO, "Input/output error")


def said_by(call: Callable[[], object]) -> str | None:
    """The sentence that a refusal consists of; None without one."""
    try:
        call()
    except adaps.CheckpointError as error:
        return str(error)
    return None
