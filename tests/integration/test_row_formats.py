"""Lossy formats of rows, on the wire and in memory: fewer bytes, and no rounding error is lost."""

from pathlib import Path
from typing import Any

import pytest

from adaps.policy.fields import WIRES
from tests.conftest import Launch

from .guarantees import wires, without_state

MOST = {"float32": 1.0, "bfloat16": 0.6, "float16": 0.6, "int8": 0.4}
"""Most bytes of a row, as a multiple of its bytes in float32."""

STEPS = 30

EXACT = 3e-5
"""Largest allowed difference between sums in float32 and in float64."""


def test_rows_take_fewer_bytes_and_changes_add_up(launch: Launch, tmp_path: Path) -> None:
    for length in (16, 50):
        ranks = launch(
            wires.main,
            2,
            wires=WIRES,
            length=length,
            steps=STEPS,
            directory=str(tmp_path / str(length)),
        )
        for wire, most in MOST.items():
            check_bytes([rank[wire] for rank in ranks], length, most)
            owner, holder = (rank[wire] for rank in ranks)
            # The rounding error of a change is sent with the next one, so errors do not grow with the steps.
            rounding = {"float32": EXACT, "int8": 0.1 * 2 / 127}.get(wire, 0.1 / 128)
            assert owner["seen"] <= rounding, (wire, owner)
            for exactly in ("saved", "dropped", "restored"):
                assert owner[exactly] <= EXACT, (wire, exactly, owner)
            # Rows of other nodes are rounded on their way to this node: values are below 4.
            copied = {"float32": EXACT, "int8": 4 / 127}.get(wire, 4 / 256)
            for roughly in ("seen", "saved", "dropped", "restored"):
                assert holder[roughly] <= copied + rounding, (wire, roughly, holder)
            assert holder["answered"] == 0.0, wire  # a number that each wire has


def check_bytes(ranks: list[dict[str, Any]], length: int, most: float) -> None:
    for kind in ("refresh", "delta"):
        sent = sum(rank["row_bytes"][kind] for rank in ranks)
        messages = sum(rank["messages"][kind] for rank in ranks)
        assert messages >= STEPS, kind
        assert 0 < sent <= most * 4 * length * messages, kind
    owner = ranks[0]
    for kind in ("setup", "answer"):
        assert owner["messages"][kind] > 0, kind
        assert 0 < owner["row_bytes"][kind] <= most * 4 * length * owner["messages"][kind], kind


def test_rows_without_state_take_half_of_memory_and_bytes(launch: Launch, tmp_path: Path) -> None:
    rows, length, steps, pushed = 200, 128, 20, 0.001
    given = {"rows": rows, "length": length, "steps": steps, "pushed": pushed}
    ranks = launch(without_state.main, 2, directory=str(tmp_path), **given)
    # Each push raises a float by the spacing of bfloat16 at 1, or leaves it unchanged.
    apart = 2**-7
    deviation = (steps * pushed * apart / (rows * length)) ** 0.5
    for technique in ("relocation", "replication"):
        plain = [rank[f"{technique} float32"] for rank in ranks]
        packed = [rank[f"{technique} bfloat16"] for rank in ranks]
        for what in ("bytes", "resident"):
            used, otherwise = (sum(rank[what] for rank in of) for of in (packed, plain))
            assert used <= 0.55 * otherwise, (technique, what, used, otherwise)
        for rank in packed:
            assert rank["halves"], technique
            assert rank["mean"] == pytest.approx(1 + steps * pushed, abs=5 * deviation), technique
            assert rank["own"] == pytest.approx(pushed, abs=5 * deviation), technique
        for rank in (*plain, *packed):
            assert rank["same"], technique
        assert packed[0]["bits"] == packed[1]["bits"], technique
