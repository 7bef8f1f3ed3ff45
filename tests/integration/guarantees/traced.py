"""Nodes that want the same keys one after the other, or at the same time; every node writes its trace."""

from pathlib import Path
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK

STEPS = 56
LENGTH = 4

# When node r wants each of four keys: at separate times, with an overlap, all at once, and repeatedly.
WANTED = [
    [(4 + 14 * RANK, 14 + 14 * RANK)],
    [(4 + 8 * RANK, 20 + 8 * RANK)],
    [(6, 40 + 2 * RANK)],
    [(12 * i + 4 * RANK, 12 * i + 4 * RANK + 4) for i in range(4)],
]


def main(folder: str) -> dict[str, Any]:
    with adaps.Node(
        [adaps.Table("emb", rows=4, length=LENGTH)], timing=False, max_rounds_per_second=1e6
    ) as node:
        keys = np.arange(node.num_keys)
        node.trace(keys)
        kv = node.worker(0)
        kv.begin_setup()
        kv.end_setup()
        for step in range(STEPS):
            for key, spans in enumerate(WANTED):
                for start, end in spans:
                    if start == step:
                        kv.intent([key], start, end)
            kv.push(keys, np.ones((len(keys), LENGTH), dtype=np.float32))
            kv.advance_clock()
            kv.end_setup()
    adaps.trace_frame(node).to_csv(Path(folder) / f"{RANK}.csv", index=False)
    adaps.write_chrome_trace(node, Path(folder) / f"{RANK}.json")
    return {name: node.stats()[name] for name in ("relocations", "replicas")}
