"""The matrix of faults: what happens to the others when a node fails, in every phase of a job."""

from __future__ import annotations

import json
import os
from itertools import product

import pytest

from tests.conftest import Python

from .faults.cell import FAULTS, Cell
from .faults.rank import PHASES, TURNS
from .faults.report import markdown


def test_every_fault_in_every_phase(full: bool, request: pytest.FixtureRequest, python: Python) -> None:
    """Of two nodes; at the full size of four as well. Without root the cables stay whole."""
    nodes = [2, 4] if full else [2]
    done = python(
        *("-m", "tests.integration.faults.matrix", json.dumps({"nodes": nodes, "runners": 2})),
        environment={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    outcomes = result["outcomes"]
    cells = [Cell(*names) for names in product(FAULTS, PHASES, nodes)]
    assert len(outcomes) == sum(result["without"] is None or not cell.needs_cable for cell in cells)
    print(f"{len(outcomes)} cells in {result['seconds']:.0f} s")
    record = request.config.getoption("--record-faults", None)
    if record is not None:
        record.write_text(markdown(outcomes, TURNS))
    broken = [one for one in outcomes if one["problems"]]
    assert not broken, json.dumps(broken, indent=1)
    if result["without"] is not None:
        pytest.skip(f"without the cables: {result['without']}; the other {len(outcomes)} cells are right")
