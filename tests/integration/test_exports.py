"""Exports of clusters: of one moment while keys move, bit for bit."""

from pathlib import Path

import pytest

from tests.conftest import Launch

from .exports import moving

TURNS = 24


@pytest.mark.parametrize(
    ("nodes", "technique"), [(2, "relocation"), (2, "full_replication"), (2, "adaptive"), (4, "adaptive")]
)
def test_what_was_told_by_and_by_is_what_is_told_at_once_while_keys_move(
    launch: Launch, tmp_path: Path, nodes: int, technique: str
) -> None:
    ranks = launch(moving.main, nodes, directory=str(tmp_path), technique=technique, turns=TURNS)
    moved = "replicas" if technique == "full_replication" else "relocations"
    assert sum(rank[moved] for rank in ranks) > 0
    parts = ranks[0]["parts"]
    assert len(parts) == TURNS // 3
    rows = 4 * 4000
    assert all(part[0] == rows for part in parts)
    deltas = [count for part in parts for count in part[1:]]
    assert deltas
    assert all(0 < count < rows / 2 for count in deltas)
