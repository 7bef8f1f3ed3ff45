"""Two agents in two network namespaces, one of which fails repeatedly: completed work is kept."""

import json
import os

import pytest

from tests.conftest import Python

from .faults import network
from .faults.agents import FAULTS
from .faults.report import record_agents

HOUR = 3600


def test_two_hosts_recover_from_every_fault_with_exact_sums(
    full: bool, request: pytest.FixtureRequest, python: Python
) -> None:
    """An hour at the full size; sums are compared after every checkpoint and every restore."""
    reason = network.reason_without()
    if reason is not None:
        pytest.skip(reason)
    seed = int.from_bytes(os.urandom(4), "little") if full else 1
    given = {"seconds": HOUR if full else 20, "longest_life": 6.0 if full else 1.0, "seed": seed}
    done = python(
        *("-m", "tests.integration.faults.agents", json.dumps(given)),
        environment={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        timeout=given["seconds"] + 1200,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(f"seed {seed}: {result}")
    record = request.config.getoption("--record-agents", None)
    if record is not None:
        record_agents(record, result, seed)
    assert result["problems"] == []
    assert result["ends"]["done"] == 2
    assert result["faults"]
    assert all(fault["recovered"] > 0 for fault in result["faults"])
    if full:
        assert {fault["kind"] for fault in result["faults"]} == set(FAULTS)
