"""Examines the machine: what it is, and how much its times vary without a reason."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from typing import Any

import msgspec

from adabench.analysis.statistics import median_interval
from adabench.harness import leftovers
from adabench.harness.environment import capture, machine_name, probe
from adabench.harness.errors import UsageError
from adabench.harness.fork_server import ForkServer
from adabench.harness.launch import launch_unrecorded
from adabench.harness.prerequisites import complaints_about
from adabench.harness.registry import load_usecase
from adabench.harness.spec import TrialSpec
from adabench.harness.study import Study

__all__ = ["examine", "noise_complaints", "noise_floor"]

PROBES = 30
BUSY_LOAD = 0.5
NOISY_SPREAD = 0.05
PAIRS = 6


def examine(study: Study | None = None, clean: bool = False) -> tuple[list[str], list[str]]:
    """Describe the machine and probe its noise for about a second.

    Parameters
    ----------
    study : Study, optional
        Say as well whether there is memory for it.
    clean : bool
        Remove what crashed runs left: processes and scratch folders.

    Returns
    -------
    list of str, list of str
        What was seen, and what would make measurements worse than they need be.
    """
    left = leftovers.find()
    if clean:
        leftovers.clean(left)
    environment = capture()
    load, median, spread, noisy = _noise(environment)
    torch = environment["torch"]["version"]
    lines = [
        f"machine     {machine_name(environment)}",
        f"software    Python {environment['python']}, torch {torch}, {environment['compiler'] or '-'}",
        f"governor    {environment['governor'] or 'not known'}",
        f"load        {load:.2f} over the last minute",
        f"probe       {median * 1000:.2f} ms, its ninth decile {spread:.1%} above the least of {PROBES}",
        f"memory      {environment['memory_available_gib']:g} of {environment['memory_gib']:g} GiB available",
    ]
    complaints = complaints_about(environment, study)
    if left.processes or left.folders:
        found = (
            f"{len(left.processes)} processes and {len(left.folders)} scratch folders of runs that crashed"
        )
        kept = leftovers.find() if clean else left
        if clean:
            lines.append(f"removed     {found}")
        if clean and (kept.processes or kept.folders):
            named = [f"process {one.pid}" for one in kept.processes] + [str(one) for one in kept.folders]
            complaints.append(f"what crashed runs left cannot be removed: {', '.join(named)}")
        elif not clean:
            complaints.append(f"there are {found}: 'adabench doctor --clean' removes them")
    if left.shared_files:
        files = " ".join(str(file) for file in left.shared_files)
        complaints.append(
            "torch left memory behind that a process shared which is gone; whether a run's or another "
            f"program's cannot be told: if none needs it, say: rm {files}"
        )
    return lines, complaints + noisy


def noise_complaints(environment: dict[str, Any]) -> list[str]:
    """What disturbs measurements right now, a sentence each; probes for about a second."""
    return _noise(environment)[-1]


def noise_floor(say: Callable[[str], None]) -> str:
    """Run the same thing in pairs and compare it with itself: the ratio of a pair would be 1 without noise.

    Parameters
    ----------
    say : callable
        Told what happens meanwhile.

    Returns
    -------
    str
        The least difference that this machine can show with as many blocks.
    """
    say(f"A/A: {2 * PAIRS} runs of ctr in plain PyTorch")
    seconds = []
    with ForkServer() as server:
        for number in range(2 * PAIRS):
            seconds.append(_train(server, seed=1 + number // 2))
            say(f"  run {number + 1}: {seconds[-1]:.3f} s training")
    # Which of a pair comes first alternates, as it does between backends.
    ratios = [
        math.log(seconds[2 * pair + pair % 2] / seconds[2 * pair + 1 - pair % 2]) for pair in range(PAIRS)
    ]
    interval = median_interval(ratios)
    low, high = math.exp(interval.low), math.exp(interval.high)
    floor = max(high, 1 / low) - 1
    return (
        f"A/A         ratio {math.exp(interval.median):.3f} [{low:.3f}, {high:.3f}] in {PAIRS} pairs: "
        f"with {PAIRS} blocks, differences below {floor:.1%} cannot be told from noise here"
    )


def _noise(environment: dict[str, Any]) -> tuple[float, float, float, list[str]]:
    """The load, a probe's median seconds, how far probes vary, and what is wrong with that."""
    load = os.getloadavg()[0]
    seconds = [probe()[1] for _ in range(PROBES)]
    median = statistics.median(seconds)
    spread = (statistics.quantiles(seconds, n=10)[-1] - min(seconds)) / median
    complaints = []
    if load > BUSY_LOAD * environment["cores"]["usable"]:
        complaints.append(
            f"the load is {load:.2f} on {environment['cores']['usable']} cores: wait until nothing else runs"
        )
    if environment["governor"] not in (None, "performance"):
        complaints.append(
            f"the governor is {environment['governor']!r}: 'performance' keeps the clock steady"
        )
    if spread > NOISY_SPREAD:
        complaints.append(f"a fixed computation varies by {spread:.1%}: differences of that size are noise")
    return load, median, spread, complaints


def _train(server: ForkServer, seed: int) -> float:
    params = msgspec.to_builtins(load_usecase("ctr").Params(epochs=1))
    spec = TrialSpec(usecase="ctr", params=params, backend="single", options={}, seed=seed)
    outcome = launch_unrecorded(server, spec, 300)
    if outcome.status != "ok":
        raise UsageError(f"the noise floor cannot be measured, because a run ended badly: {outcome.reason}")
    return outcome.results[0].train_seconds
