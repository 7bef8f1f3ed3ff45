"""Exports of clusters: of one moment while keys move, bit for bit, and whole after kills."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch, Python

FOLDER = "tests.integration.exports"
TURNS = 24
TOLD_BY_TORCH = re.compile(r"\[W.*TCPStore|Exception raised from \w{4}Bytes|frame #|<omitting python|$")
"""Messages of PyTorch when rank 0 dies, and its store too, during another node's request."""


@pytest.mark.parametrize(
    ("nodes", "technique"), [(2, "relocation"), (2, "full_replication"), (2, "adaptive"), (4, "adaptive")]
)
def test_what_was_told_by_and_by_is_what_is_told_at_once_while_keys_move(
    launch: Launch, tmp_path: Path, nodes: int, technique: str
) -> None:
    ranks = launch(f"{FOLDER}.moving", nodes, directory=str(tmp_path), technique=technique, turns=TURNS)
    moved = "replicas" if technique == "full_replication" else "relocations"
    assert sum(rank[moved] for rank in ranks) > 0
    parts = ranks[0]["parts"]
    assert len(parts) == TURNS // 3
    rows = 4 * 4000
    assert all(part[0] == rows for part in parts)
    deltas = [count for part in parts for count in part[1:]]
    assert deltas
    assert all(0 < count < rows / 2 for count in deltas)


@pytest.mark.parametrize(("nodes", "kills"), [(1, 25), (2, 8)])
def test_a_kill_at_any_call_leaves_an_export_of_the_last_acknowledged_step(
    tmp_path: Path, full: bool, python: Python, nodes: int, kills: int
) -> None:
    given: dict[str, Any] = {
        "kills": 500 if full else kills,
        "seed": 5 * nodes,
        "nodes": nodes,
        "folder": str(tmp_path),
    }
    done = python("-m", f"{FOLDER}.kills", json.dumps(given), timeout=3600 if full else 600)
    said = [line for line in done.stderr.splitlines() if not TOLD_BY_TORCH.match(line)]
    assert (done.returncode, said) == (0, [])
    result = json.loads(done.stdout)
    assert result["kills"] == given["kills"]
    assert result["acknowledged"] > given["kills"] // 4
    assert list(tmp_path.iterdir()) == []
