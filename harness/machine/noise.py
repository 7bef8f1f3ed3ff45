"""The noise of this machine's times, and its likely causes."""

import os
import statistics
from typing import Any

from adabench.harness.machine.environment import probe

PROBES = 30
BUSY_LOAD = 0.5
NOISY_SPREAD = 0.05


def noise_complaints(environment: dict[str, Any]) -> list[str]:
    """Return a message for each likely cause of noise at present; probes for about a second."""
    return noise(environment)[-1]


def noise(environment: dict[str, Any]) -> tuple[float, float, float, list[str]]:
    """The load, the median seconds of a probe, the spread of probes, and complaints about them."""
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
