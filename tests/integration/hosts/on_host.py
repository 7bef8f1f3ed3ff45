"""Programs on one of several hosts, which are the network namespaces that ``TEST_NAMESPACE`` names."""

import os

from tests.integration.faults.network import enter
from tests.warm import run_adabench, run_seeded

RUN_ON_HOST = "tests.integration.hosts.on_host:run_on_host"
"""Target for a `ForkServer`: ``adabench ARGUMENTS``."""
RUN_TASK = "tests.integration.hosts.on_host:run_task"
"""Target for a `ForkServer`: ``python ARGUMENTS``, as a task of a job."""


def run_on_host(folder: str, *arguments: str) -> int:
    enter(os.environ.pop("TEST_NAMESPACE"))
    return run_adabench(folder, *arguments)


def run_task(folder: str, *arguments: str) -> int:
    enter(os.environ.pop("TEST_NAMESPACE"))
    return run_seeded(folder, *arguments)
