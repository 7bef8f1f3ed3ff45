"""Measures the growth of costs with nodes: records accesses of trainings, and replays them in simulations.

Usage: ``python tools/measure_scale.py [--data FOLDER] [--nodes 2,4,…]``, or ``make scale``. For each use case
and number of nodes, the batches come from the use case's loaders, with one worker per node. `adaps.simulate`
replays their accesses with every technique. The program writes ``results/reference/scale/scale.csv`` and
figures in the same folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import adaps
from adabench.analysis.scale import TECHNIQUES, save_figures
from adabench.backends.strategies._simulate import streams_of
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adabench.usecases.gcn.task import GcnParams, GcnUseCase
from adabench.usecases.interface import DataError, UseCase
from autoada.parameters.layout import layout_of

__all__ = ["main", "measure", "replay", "row_of", "use_cases"]

ROOT = Path(__file__).resolve().parents[1]

NODES = (2, 4, 8, 16, 32, 64, 128, 256)
LOOKAHEAD, WARM_UP, COUNTED = 10, 5, 6
STEPS = WARM_UP + COUNTED + LOOKAHEAD
"""Number of batches of a node. The last `LOOKAHEAD` are only announced."""

MOST_COPIES = 7_000_000
"""Maximum number of rows on all nodes together under full replication, to limit memory and time."""

LINE = adaps.NetworkLink(latency_ms=0.25, gbit_per_second=10.0)
MACHINE = adaps.Machine(cores=2, gbit_per_second=10.0 * max(NODES))
"""The network card is fast enough that links never wait for it."""
COSTS = adaps.Costs(
    call=20.0,
    wake=0.0,
    resume=0.0,
    key=0.0,
    value=0.0,
    copy=0.0,
    intent=0.0,
    message=0.0,
    upkeep=0.0,
    frame=0.0,
    byte=0.0,
)
"""Equal processors, so that figures show differences between techniques only."""

SEED = 1
BATCH, DIM = 16, 8
ROWS = max(NODES) * STEPS * BATCH * 7 // 5 + 7
"""Number of samples. The training split is five sevenths of them."""


def use_cases(data: Path) -> dict[str, UseCase]:
    """Return the use cases to train. The folder `data` contains the graph."""
    ctr = CtrParams(batch=BATCH, dim=DIM, wide=False, vocabulary=1000, rows=ROWS)
    gcn = GcnParams(batch=BATCH, dim=DIM, graph="arxiv_like", fanout=5)
    return {"ctr": CtrUseCase(ctr, None, SEED), "gcn": GcnUseCase(gcn, data, SEED)}


def replay(usecase: UseCase, streams: list[adaps.Stream], technique: Any) -> dict[str, float]:
    """Return the simulator's counts, with the names of `row_of`."""
    model = usecase.model()
    layout = layout_of(model, usecase.optimizer(model))
    dense = [blocks.table for blocks in layout.dense]
    found = adaps.simulate(
        streams,
        technique,
        adaps.Cluster((MACHINE,) * len(streams), LINE, costs=COSTS),
        tables=layout.server_tables(),
        dense=dense,
        lookahead=LOOKAHEAD,
        warm_up=WARM_UP,
        seed=SEED,
    )
    return row_of(found, dense)


def row_of(found: adaps.Simulation, dense: list[str]) -> dict[str, float]:
    """Return sums over all nodes in the counted steps, with separate sums of `dense` tables."""
    rows, blocks = Counter[str](), Counter[str]()
    counters = Counter[str]()
    for node in found.nodes:
        counters.update(node.counters)
        for name, table in node.tables.items():
            (blocks if name in dense else rows).update(table)
    sent = [name for name in rows if "_sent_" in name]

    def total(of: Counter[str], what: str) -> int:
        return int(sum(of[name] for name in sent if name.startswith(what)))

    return {
        "nodes": len(found.nodes),
        "node_steps": found.steps,
        "elapsed_micros": round(1e6 * found.seconds),
        "waited_micros": round(1e6 * sum(node.waiting for node in found.nodes)),
        **{name: int(rows[name]) for name in ("pulled_local", "pulled_replica", "pulled_remote")},
        "relocations": int(counters["relocations"]),
        "replicas_set_up": int(counters["replicas"]),
        "replicas_dropped": int(counters["replicas_dropped"]),
        "frames": int(counters["frames_sent"]),
        **{f"{what}_rows": total(rows, what) for what in ("messages", "bytes")},
        **{f"{what}_dense": total(blocks, what) for what in ("messages", "bytes")},
        "resident_bytes": int(max(node.counters["resident_bytes"] for node in found.nodes)),
        **{name.replace("_sent_", "_"): int(rows[name] + blocks[name]) for name in sent},
    }


def measure(data: Path, nodes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each use case, number of nodes and technique."""
    cases = use_cases(data)
    for count in nodes:
        for name, case in cases.items():
            streams = streams_of(case, count, STEPS)
            for technique in TECHNIQUES:
                if technique == "full_replication" and _rows(case) * count > MOST_COPIES:
                    continue
                began = time.monotonic()
                counted = replay(case, streams, technique)
                seconds = time.monotonic() - began
                print(f"{name} {technique} on {count} nodes: {seconds:.1f} s", flush=True)
                yield {"usecase": name, "technique": technique, **counted}


def _rows(case: UseCase) -> int:
    return sum(parameter.shape[0] for parameter in layout_of(case.model()).tables.values())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="measure_scale.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "arxiv_like")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reference" / "scale")
    given = parser.parse_args(arguments)
    try:
        nodes = [_node_count(text) for text in given.nodes.split(",")]
        given.out.mkdir(exist_ok=True)
        found = []
        for row in measure(given.data, nodes):
            found.append(row)
            frame = pd.DataFrame(found)
            frame.to_csv(given.out / "scale.csv", index=False)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for file in save_figures(frame, given.out):
        print(file)
    return 0


def _node_count(text: str) -> int:
    if text.isdigit() and 2 <= int(text) <= max(NODES):
        return int(text)
    raise DataError(f"--nodes {text!r} is no number of nodes from 2 to {max(NODES)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
