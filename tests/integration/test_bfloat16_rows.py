"""Rows that are bfloat16 in memory take half of it, and half the bytes between nodes."""

from pathlib import Path

import pytest

from tests.conftest import Launch

ROWS, LENGTH = 200, 128
STEPS = 20
PUSHED = 0.001


def test_rows_without_state_take_half_of_memory_and_bytes(launch: Launch, tmp_path: Path) -> None:
    ranks = launch(
        "tests.integration.guarantees.packed",
        2,
        directory=str(tmp_path),
        rows=ROWS,
        length=LENGTH,
        steps=STEPS,
        pushed=PUSHED,
    )
    # Each push raises a float by the spacing of bfloat16 at 1, or leaves it unchanged.
    apart = 2**-7
    deviation = (STEPS * PUSHED * apart / (ROWS * LENGTH)) ** 0.5
    for technique in ("relocation", "replication"):
        plain = [rank[f"{technique} float32"] for rank in ranks]
        packed = [rank[f"{technique} bfloat16"] for rank in ranks]
        for what in ("bytes", "resident"):
            used, otherwise = (sum(rank[what] for rank in of) for of in (packed, plain))
            assert used <= 0.55 * otherwise, (technique, what, used, otherwise)
        for rank in packed:
            assert rank["halves"], technique
            assert rank["mean"] == pytest.approx(1 + STEPS * PUSHED, abs=5 * deviation), technique
            assert rank["own"] == pytest.approx(PUSHED, abs=5 * deviation), technique
        for rank in (*plain, *packed):
            assert rank["same"], technique
        assert packed[0]["bits"] == packed[1]["bits"], technique
