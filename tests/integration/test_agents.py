"""Jobs on several hosts, as torchrun starts them anew: each host's agent counts its restarts for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from adabench.harness.launch.fork_server import ForkServer

from .agents.trial import SCENARIOS, trial

QUICK = [
    "c10d, rank 1 dies working, the other lingers",
    "c10d, an agent joins later and rank 0 dies",
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_job_of_two_agents_goes_on_with_exact_sums(
    tmp_path: Path, full: bool, warm: ForkServer, scenario: str
) -> None:
    if scenario not in QUICK and not full:
        pytest.skip("one of the scenarios for --full")
    trial(warm, scenario, tmp_path)
