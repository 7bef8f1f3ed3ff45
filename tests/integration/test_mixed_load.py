"""Mixed load on four nodes, one of which fails repeatedly: sums are exact and nothing leaks."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from .faults.mixed import LEAST_FAULTS

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 30
GROWTH = 32e-3
"""Allowed average growth in MB from one node to the next; a leaked node takes several times that."""


def test_sums_are_exact_and_nothing_leaks(full: bool) -> None:
    """Sums are compared after every checkpoint; half an hour at the full size."""
    result = mixed(seconds=MINUTES * 60 if full else 10, longest_life=6.0 if full else 1.0, seed=8)
    resources = result.pop("resources")
    print(result)
    print({rank: [one["megabytes"] for one in resources if one["rank"] == rank][::5] for rank in (0, 1)})
    assert sum(result["faults"].values()) == result["lives"] - 1 >= LEAST_FAULTS
    assert result["checkpoints"] >= 1
    for rank in (0, 1):
        nodes = [one for one in resources if one["rank"] == rank]
        assert [one["measured"] for one in nodes] == list(range(result["lives"]))
        # The first life loads what stays: the connection to the rendezvous store, and late imports.
        assert {one["threads"] for one in nodes} == {1}
        assert len({one["descriptors"] for one in nodes[1:]}) == 1
        if full:
            assert growth([one["megabytes"] for one in nodes]) <= GROWTH


def growth(megabytes: list[float]) -> float:
    """By how much a process grew from one node to the next: the median in the later half of its nodes.

    Allocators take memory in steps of megabytes now and then, and processes reach their size only after a
    while; what leaks is lost with every node.
    """
    late = megabytes[len(megabytes) // 2 :]
    return median(after - before for before, after in pairwise(late))


def mixed(**given: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.faults.mixed", json.dumps(given)],
        cwd=ROOT,
        # With one arena for all threads, which come and go with each node, free memory can be given back.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=given["seconds"] + 240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
