"""Checkpoints of clusters: written while keys move, restored with other numbers of nodes, and after kills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..checkpoint_files import content, manifest

if TYPE_CHECKING:
    from tests.conftest import Launch

FOLDER = "tests.integration.checkpoints"
TURNS = 12


@pytest.mark.parametrize("technique", ["relocation", "full_replication"])
def test_every_push_is_in_the_files_once_while_keys_move(
    launch: Launch, tmp_path: Path, technique: str
) -> None:
    ranks = launch(
        f"{FOLDER}.moving",
        2,
        directory=str(tmp_path / "saved"),
        technique=technique,
        counts=None,
        turns=TURNS,
    )
    moved = "relocations" if technique == "relocation" else "replicas"
    assert all(rank[moved] > 0 for rank in ranks)


def test_two_nodes_go_on_as_three_and_then_as_one(launch: Launch, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    counts = None
    for number, nodes in enumerate([2, 3, 1], start=1):
        ranks = launch(
            f"{FOLDER}.moving",
            nodes,
            directory=str(directory),
            technique="adaptive",
            counts=counts,
            turns=TURNS,
        )
        counts = ranks[0]["counts"]
        assert manifest(directory)["world_size"] == nodes
        assert manifest(directory)["clocks"] == [[TURNS * number] * 2] * nodes
        assert nodes == 1 or sum(rank["relocations"] + rank["replicas"] for rank in ranks) > 0
    assert counts is not None
    assert sum(counts) == content(directory, "sums").values[:, 0].sum() == TURNS * (2 + 3 + 1) * 2 * 60
