"""A task of a job, on one of its hosts, which are network namespaces: a target of forks."""

from __future__ import annotations

import os

from tests.integration.faults.network import enter
from tests.warm import run_seeded

__all__ = ["RUN_TASK", "run_task"]

RUN_TASK = "tests.integration.slurm.task:run_task"


def run_task(folder: str, *arguments: str) -> int:
    """What ``python ARGUMENTS`` does in the namespace that the environment names."""
    enter(os.environ.pop("TEST_NAMESPACE"))
    return run_seeded(folder, *arguments)
