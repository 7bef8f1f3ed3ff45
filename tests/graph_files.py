"""Small graphs in every layout that the use case gcn reads."""

import gzip
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

EDGES = [(0, 1), (1, 2), (2, 0), (1, 0), (3, 3)]
"""A triangle with one edge in both directions, and node 3 with a loop only."""
LABELS = [1, 0, 2, 1]


def write_musae(folder: Path, edges: list[Any] = EDGES, labels: list[Any] = LABELS) -> Path:
    lines = [f"{a},{b}" for a, b in edges]
    (folder / "git_edges.csv").write_text("\n".join(["id_1,id_2", *lines, ""]))
    rows = [f"{node},someone,{label}" for node, label in enumerate(labels)]
    (folder / "git_target.csv").write_text("\n".join(["id,name,ml_target", *rows, ""]))
    return folder


def write_ogb(folder: Path, edges: list[Any] = EDGES, labels: list[Any] = LABELS, **parts: list[int]) -> Path:
    files = {
        "raw/edge": [f"{a},{b}" for a, b in edges],
        "raw/node-label": labels,
        "raw/num-node-list": [len(labels)],
        "raw/num-edge-list": [len(edges)],
        "split/time/train": [0, 1],
        "split/time/valid": [2],
        "split/time/test": [3],
    } | {f"split/time/{part}": nodes for part, nodes in parts.items()}
    for name, rows in files.items():
        file = folder / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))
    return folder


def write_planetoid(folder: Path, **replaced: Any) -> Path:
    adjacency = defaultdict(list, {0: [1, 2], 1: [0, 2], 2: [1, 0], 3: [3]})
    one_hot = np.eye(3, dtype=np.int32)
    parts = {"graph": adjacency, "ally": one_hot[[1, 0]], "ty": one_hot[[1, 2]]} | replaced
    for part, content in parts.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(content, protocol=4))
    (folder / "ind.cora.test.index").write_text("3\n2\n")
    return folder


def write_npz(folder: Path, **arrays: Any) -> Path:
    named: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez(folder / "mine.npz", **named)
    return folder
