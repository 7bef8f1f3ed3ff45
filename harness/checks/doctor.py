"""Examines the machine and its noise."""

import math
from collections.abc import Callable

import msgspec

from adabench.analysis.statistics import median_interval
from adabench.harness.checks.prerequisites import complaints_about
from adabench.harness.errors import UsageError
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.local import launch_unrecorded
from adabench.harness.machine import orphans
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.noise import PROBES, noise
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.run.spec import RunSpec
from adabench.harness.study.study import Study

PAIRS = 6


def examine(study: Study | None = None, clean: bool = False) -> tuple[list[str], list[str]]:
    """Describe the machine and probe its noise for about a second.

    With a study, its memory is examined as well. `clean` removes processes and scratch folders of crashed
    runs. Returns a description, and reasons why measurements are worse than they could be.
    """
    left = orphans.find()
    if clean:
        orphans.clean(left)
    environment = capture()
    load, median, spread, noisy = noise(environment)
    torch = environment["torch"]["version"]
    lines = [
        f"machine     {machine_name(environment)}",
        f"software    Python {environment['python']}, torch {torch}",
        f"compiler    {environment['compiler'] or 'none'}",
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
        kept = orphans.find() if clean else left
        if clean:
            lines.append(f"removed     {found}")
        if clean and (kept.processes or kept.folders):
            named = [f"process {one.pid}" for one in kept.processes] + [str(one) for one in kept.folders]
            complaints.append(f"remains of crashed runs cannot be removed: {', '.join(named)}")
        elif not clean:
            complaints.append(f"there are {found}: 'adabench doctor --clean' removes them")
    if left.shared_files:
        files = " ".join(str(file) for file in left.shared_files)
        complaints.append(
            "shared memory of torch remains from a process that has ended, perhaps of another program: if "
            f"no program needs it, remove it: rm {files}"
        )
    return lines, complaints + noisy


def noise_floor(say: Callable[[str], None]) -> str:
    """Run one cell in pairs and compare it with itself; without noise the ratio of a pair is 1.

    Returns a line with the smallest difference that this machine can show with that number of blocks. Each
    run's time is passed to `say`.
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
        f"with {PAIRS} blocks, differences below {floor:.1%} cannot be distinguished from noise here"
    )


def _train(server: ForkServer, seed: int) -> float:
    params = msgspec.to_builtins(load_usecase("ctr").Params(epochs=1))
    spec = RunSpec(
        usecase="ctr",
        params=params,
        backend="single",
        options={},
        nodes=1,
        workers=1,
        network="loopback",
        seed=seed,
    )
    outcome = launch_unrecorded(server, spec, 300)
    if outcome.status != "ok":
        raise UsageError(f"the noise floor cannot be measured, because a run ended badly: {outcome.reason}")
    return outcome.results[0].train_seconds
