"""The cost of a simulation on one core."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from adabench.backends.policies.resources import Resources
from adabench.harness.estimate.simulate import SimulationSettings, clusters_of, simulated_once
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.model_parameters import usecase_from

if TYPE_CHECKING:
    from tests.perf.goals import Goal, Limit

BACKEND = "autoada-automatic"
NODES, STEPS = 64, 100
MOST_SECONDS = 60


def test_64_nodes_of_ctr_are_simulated_within_a_minute(
    request: pytest.FixtureRequest, goal: Goal, limit: Limit, full: bool
) -> None:
    """All that `adabench simulate -u ctr --nodes 64 --network lan` does but for measuring a step.

    It is that large where figures are recorded, and with ``--full``.
    """
    judged = full or request.config.getoption("--record-goals", None) is not None
    nodes, steps = (NODES, STEPS) if judged else (8, 10)
    begun = time.process_time()
    usecase = usecase_from("ctr", None, 0)
    (cluster,) = clusters_of(Resources.alike(1), [nodes], "lan")
    options = load_backend(BACKEND).Options()
    settings = SimulationSettings(workers=1, steps=steps, compute=0.01)
    found = simulated_once(usecase, BACKEND, options, cluster, settings)
    seconds = time.process_time() - begun
    assert found.steps == nodes * steps
    what = f"simulation of {steps} steps of ctr on {nodes} nodes"
    print(f"{what}: {seconds:.1f} s of CPU time")
    if judged:
        goal(what, seconds, at_most=MOST_SECONDS, unit="s of CPU time")
        limit(f"{what}: seconds of CPU time", seconds, MOST_SECONDS)
