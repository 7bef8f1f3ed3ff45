"""Gradients from all nodes to rows that all nodes hold: the optimizer state moves along with the value.

In the first part, the nodes apply their gradients one after the other, and the result must equal that of a
single node that applies them all. In the second part, all nodes apply gradients at once, and the accumulators
on every node must be the sums of all squares.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import (
    FOREVER,
    RANK,
    Floats,
    own_lives,
    pulled,
    random_generator,
)

ROWS = 40
LENGTH = 5
TURNS = 12
GRADIENTS = 200
OPTIMIZERS: dict[str, adaps.SGD | adaps.Adagrad | adaps.RowAdagrad | adaps.Adam] = {
    "sgd": adaps.SGD(lr=0.1),
    "momentum": adaps.SGD(lr=0.1, momentum=0.9),
    "adagrad": adaps.Adagrad(lr=0.1, initial_accumulator=0.5),
    "row_adagrad": adaps.RowAdagrad(lr=0.1),
    "adam": adaps.Adam(lr=0.1),
}


def main(lives: Sequence[Any]) -> dict[str, Any]:
    tables = [
        adaps.Table(name, rows=ROWS, length=LENGTH, optimizer=optimizer, init=adaps.Uniform(-1, 1, seed=3))
        for name, optimizer in OPTIMIZERS.items()
    ]
    largest: dict[str, float] = {}
    replica_gradients = 0.0
    for _, technique in own_lives(lives):
        with adaps.Node(tables, techniques=technique, max_rounds_per_second=4000) as node:
            kv = node.worker(0)
            kv.intent(np.arange(node.num_keys), 0, FOREVER)
            kv.end_setup()
            for name in OPTIMIZERS:
                error = in_turns(node, kv, name)
                largest[name] = max(largest.get(name, 0.0), error)
            error = at_once(node, kv)
            largest["accumulator"] = max(largest.get("accumulator", 0.0), error)
        replica_gradients += node.stats()["pushed_replica"]
    return {"largest": largest, "replica_gradients": replica_gradients}


def in_turns(node: adaps.Node, kv: adaps.Worker, name: str) -> float:
    """The largest difference from a cluster of one; values are of the order of 1."""
    keys = node.table(name).first_key + np.arange(ROWS)
    rng = random_generator(len(name))
    gradients = rng.normal(size=(TURNS, ROWS, LENGTH)).astype(np.float32)
    for turn, gradient in enumerate(gradients):
        if turn % node.world_size == RANK:
            kv.push_gradients(keys, gradient)
        kv.end_setup()
    return float(np.abs(pulled(kv, keys, LENGTH) - alone(name, gradients)).max())


def alone(name: str, gradients: Floats) -> Floats:
    """The result of applying the gradients in one place with the core."""
    from adaps import _core

    table = adaps.Table(
        name, rows=ROWS, length=LENGTH, optimizer=OPTIMIZERS[name], init=adaps.Uniform(-1, 1, seed=3)
    )
    node = _core.Node(
        [table.spec()],
        rank=0,
        world_size=1,
        workers=1,
        channels=1,
        technique=_core.Technique.STATIC,
        timing=True,
        max_rounds_per_second=500.0,
    )
    kv = node.worker(0)
    for gradient in gradients:
        kv.push_gradients(np.arange(ROWS), gradient)
    values = pulled(kv, np.arange(ROWS), LENGTH)
    node.close()
    return values


def at_once(node: adaps.Node, kv: adaps.Worker) -> float:
    """The largest relative error of Adagrad's accumulators after concurrent gradients."""
    table = node.table("adagrad")
    keys = table.first_key + np.arange(ROWS)
    sums = np.full((ROWS, LENGTH), 0.5)
    rng = random_generator(len("adagrad"))
    for gradient in rng.normal(size=(TURNS, ROWS, LENGTH)).astype(np.float32):
        sums += gradient.astype(np.float64) ** 2  # the sums of the earlier turns
    for rank in range(node.world_size):
        gradients = random_generator(rank).normal(size=(GRADIENTS, ROWS, LENGTH)).astype(np.float32)
        sums += (gradients.astype(np.float64) ** 2).sum(axis=0)
        if rank == RANK:
            for gradient in gradients:
                kv.push_gradients(keys, gradient)
    kv.end_setup()
    largest = 0.0
    for rank in range(node.world_size):  # every node looks at its own copy of the state
        if rank == RANK:
            error = np.abs(accumulators(kv, keys) / sums - 1.0)
            largest = float(error.max())
        sums += PROBE**2
        kv.end_setup()
    return largest


PROBE = 30.0


def accumulators(kv: adaps.Worker, keys: np.ndarray) -> np.ndarray:
    """Derive the accumulators from one step: Adagrad moves a value by lr·g/√(accumulator + g²)."""
    kv.set(keys, np.zeros((ROWS, LENGTH), dtype=np.float32))
    kv.push_gradients(keys, np.full((ROWS, LENGTH), PROBE, dtype=np.float32))
    moved = pulled(kv, keys, LENGTH).astype(np.float64)
    return (0.1 * PROBE / moved) ** 2 - PROBE**2
