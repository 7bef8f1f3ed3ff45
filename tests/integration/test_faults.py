"""The matrix of faults: what happens to the others when a node fails, in every phase of a job."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Python

from .faults import network
from .faults.cell import FAULTS, Cell
from .faults.rank import PHASES
from .faults.report import record_faults


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """Outcomes of all cells, which are recorded at the end if the command line asks for it."""
    found: list[dict[str, Any]] = []
    yield found
    record = request.config.getoption("--record-faults", None)
    if record is not None:
        record_faults(record, found)


@pytest.fixture(scope="module")
def without_cables() -> str | None:
    return network.reason_without()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_in_every_phase(
    fault: str,
    phase: str,
    full: bool,
    without_cables: str | None,
    outcomes: list[dict[str, Any]],
    python: Python,
) -> None:
    """Two nodes; at the full size four nodes as well."""
    for nodes in [2, 4] if full else [2]:
        if Cell(fault, phase, nodes).needs_cable and without_cables is not None:
            pytest.skip(without_cables)
        done = python(
            *("-m", "tests.integration.faults.cell", fault, phase, f"{nodes}"),
            environment={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr
        outcomes.append(json.loads(done.stdout))
        assert not outcomes[-1]["problems"], outcomes[-1]
