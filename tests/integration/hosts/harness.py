"""The command line on one of two hosts, which are network namespaces: a target of forks."""

from __future__ import annotations

import os

from tests.integration.faults.network import enter
from tests.warm import run_adabench

__all__ = ["RUN_ON_HOST", "run_on_host"]

RUN_ON_HOST = "tests.integration.hosts.harness:run_on_host"


def run_on_host(folder: str, *arguments: str) -> int:
    """What ``adabench ARGUMENTS`` does in the namespace that the environment names."""
    enter(os.environ.pop("TEST_NAMESPACE"))
    return run_adabench(folder, *arguments)
