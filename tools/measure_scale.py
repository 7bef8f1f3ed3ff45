"""Measures how cost grows with nodes: records what trainings access and replays it on simulated clusters.

``python tools/measure_scale.py [--data FOLDER] [--nodes 2,4,…]``, or ``make scale``. For each use case
and number of nodes the batches come from the use case's own loaders, for as many workers as there are nodes;
what they access is replayed, under every technique, by the parameter server's real code on a simulated
network (csrc/tests/scale). Writes ``results/reference/scale/scale.csv`` and the figures beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pandas as pd

from adabench.analysis.scale import TECHNIQUES, save_figures
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adabench.usecases.gcn.task import GcnParams, GcnUseCase
from adabench.usecases.protocol import DataError, Placed, UseCase
from autoada.layout import layout_of

__all__ = ["main", "measure", "record_stream", "replay", "use_cases"]

ROOT = Path(__file__).resolve().parents[1]
SIMULATOR = ROOT / "build" / "release" / "csrc" / "tests" / "scale"

NODES = (2, 4, 8, 16, 32, 64, 128, 256)
LOOKAHEAD, WARM_UP, COUNTED = 10, 5, 6
STEPS = WARM_UP + COUNTED + LOOKAHEAD
"""Batches of a node: the last `LOOKAHEAD` are announced only."""

MOST_COPIES = 7_000_000
"""Rows that all nodes together may hold under full replication, for memory and time."""

MAGIC = 0x31537041
SEED = 1
BATCH, DIM = 16, 8
ROWS = max(NODES) * STEPS * BATCH * 7 // 5 + 7
"""Of data: the training split is five sevenths of them."""


def use_cases(data: Path) -> dict[str, UseCase]:
    """What is trained; `data` holds the graph."""
    ctr = CtrParams(batch=BATCH, dim=DIM, wide=False, vocabulary=1000, rows=ROWS)
    gcn = GcnParams(batch=BATCH, dim=DIM, graph="arxiv_like", fanout=5)
    return {"ctr": CtrUseCase(ctr, None, SEED), "gcn": GcnUseCase(gcn, data, SEED)}


def steps_of(loader: Iterable[Any], usecase: UseCase, first_keys: dict[str, int]) -> Iterator[np.ndarray]:
    """The distinct keys of each batch, ascending, epoch after epoch, without end."""
    while True:
        for batch in loader:
            rows = usecase.keys(batch)
            yield np.concatenate([np.unique(ids.numpy()) + first_keys[name] for name, ids in rows.items()])


def record_stream(usecase: UseCase, nodes: int, steps: int, file: Path) -> None:
    """Write what each of `nodes` workers accesses in its first steps, as csrc/tests/scale/stream.h says."""
    model = usecase.model()
    layout = layout_of(model, usecase.optimizer(model))
    tables = layout.server_tables()
    first_keys = dict(
        zip((table.name for table in tables), np.cumsum([0, *(table.rows for table in tables)]), strict=False)
    )
    with file.open("wb") as out:
        out.write(pack("<4I", MAGIC, nodes, steps, len(tables)))
        for table in tables:
            out.write(pack("<Q2I", table.rows, table.length, table.name not in layout.tables))
        for rank in range(nodes):
            placed = usecase.home_rows(rank, nodes) if isinstance(usecase, Placed) else {}
            _write(out, [ids.numpy() + first_keys[name] for name, ids in placed.items()])
            train = usecase.loaders(rank, nodes).train
            for keys in islice(steps_of(train, usecase, first_keys), steps):
                _write(out, [keys])


def _write(out: Any, keys: list[np.ndarray]) -> None:
    joined = np.concatenate(keys) if keys else np.empty(0)
    out.write(pack("<I", len(joined)))
    out.write(joined.astype("<u4").tobytes())


def replay(stream: Path, technique: str) -> dict[str, float]:
    """What the simulator counted; see csrc/tests/scale/replay.h."""
    command = [str(SIMULATOR), str(stream), technique, str(LOOKAHEAD), str(WARM_UP)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[1:])}: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )
    counted: dict[str, float] = json.loads(done.stdout)
    return counted


def weight(technique: str, nodes: int) -> float:
    """How long a replay takes, in proportion; for the remaining time only."""
    return nodes**2 / 8 if technique == "full_replication" else nodes * (1 if technique == "static" else 4)


class Progress:
    """A line per replay, with the time that is left if what is to come goes on as fast as what is done."""

    def __init__(self, total: float) -> None:
        self._total, self._done, self._began = total, 0.0, time.monotonic()

    def ended(self, what: str, share: float, seconds: float) -> None:
        self._done += share
        spent = time.monotonic() - self._began
        left = spent * (self._total - self._done) / self._done
        print(
            f"{what}: {seconds:.1f} s; {spent / 60:.1f} min so far, about {left / 60:.1f} min to go",
            flush=True,
        )


def measure(data: Path, nodes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """A row for each use case, number of nodes and technique."""
    cases = use_cases(data)
    plan = [
        (count, name, technique)
        for count in nodes
        for name, case in cases.items()
        for technique in TECHNIQUES
        if technique != "full_replication" or _rows(case) * count <= MOST_COPIES
    ]
    progress = Progress(sum(weight(technique, count) for count, _, technique in plan))
    with tempfile.TemporaryDirectory() as folder:
        for count, name in dict.fromkeys((count, name) for count, name, _ in plan):
            stream = Path(folder) / "stream"
            record_stream(cases[name], count, STEPS, stream)
            for technique in (own for *at, own in plan if at == [count, name]):
                began = time.monotonic()
                counted = replay(stream, technique)
                what = f"{name} {technique} on {count} nodes"
                progress.ended(what, weight(technique, count), time.monotonic() - began)
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
        if not SIMULATOR.is_file():
            raise DataError(f"{SIMULATOR} is not built: say make scale, which builds it")
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
