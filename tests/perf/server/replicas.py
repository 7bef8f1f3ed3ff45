"""CPU seconds of nodes that share replicas, for rounds with some changed keys and for idling."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import FOREVER, RANK, own_lives, random_generator

LENGTH = 16
FIRST_KEYS = 10_000  # the changing keys, for tables of every size: only the number of replicas differs


def main(cases: Sequence[Any], seconds: float) -> dict[str, Any]:
    found = []
    for _, rows, changing in own_lives(cases):
        with adaps.Node([adaps.Table("t", rows=rows, length=LENGTH)], max_rounds_per_second=1e6) as node:
            kv = node.worker(0)
            kv.intent(np.arange(rows), 0, FOREVER)
            replicate(node, kv)
            measure = rounds_of if changing else idleness_of
            found.append(measure(node, kv, changing, seconds))
    return {"cases": found}


def replicate(node: adaps.Node, kv: adaps.Worker) -> None:
    """Wait until every node reads every key locally."""
    rows = node.num_keys
    out = np.empty((rows, LENGTH), dtype=np.float32)
    remote = -1.0
    while remote != (remote := node.stats()["pulled_remote"]):
        kv.pull(np.arange(rows), out)
        kv.wait_sync()  # no barrier: one node may take more turns than another
    kv.end_setup()


def rounds_of(node: adaps.Node, kv: adaps.Worker, changing: int, seconds: float) -> dict[str, float]:
    """A round: every node pushes to `changing` of the first keys and waits until its changes are applied."""
    rng = random_generator(RANK)
    choices = [rng.choice(FIRST_KEYS, changing, replace=False) for _ in range(16)]
    deltas = np.ones((changing, LENGTH), dtype=np.float32)
    count = 0
    kv.barrier()
    before = node.stats()
    cpu, wall = time.process_time(), time.monotonic()
    while not count or time.monotonic() < wall + seconds:
        kv.push(choices[count % len(choices)], deltas)
        kv.wait_sync()
        count += 1
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    after = node.stats()
    kv.barrier()
    return {
        "rounds": count,
        "rounds_per_second": count / wall,
        "cpu": cpu,
        "deltas": after["deltas_sent"] - before["deltas_sent"],
        "refreshes": after["refreshes_sent"] - before["refreshes_sent"],
    }


def idleness_of(node: adaps.Node, kv: adaps.Worker, changing: int, seconds: float) -> dict[str, float]:
    kv.wait_sync()  # the last messages of the set-up have been handled
    kv.barrier()
    cpu, sent = time.process_time(), bytes_sent(node)
    time.sleep(seconds)
    cpu, sent = time.process_time() - cpu, bytes_sent(node) - sent
    kv.barrier()
    return {"cpu_share": cpu / seconds, "bytes_sent": sent, "replicas": node.stats()["replicas"]}


def bytes_sent(node: adaps.Node) -> float:
    """The bytes of all messages but those that end a barrier, which node 0 may still be sending after it."""
    kinds = {name: sent for name, sent in node.stats().items() if name.startswith("bytes_sent_")}
    return sum(kinds.values()) - kinds["bytes_sent_release"]
