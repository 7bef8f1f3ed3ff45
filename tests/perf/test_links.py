"""`adabench resources` measures links whose properties are known."""

import pytest

from adabench.harness.machine import measure_cluster
from adabench.harness.machine.namespaces import NamespacesUnavailable

from .goals import Limit

LATENCY_MS, GBIT_PER_SECOND = 5.0, 0.1
WITHIN = 0.1
"""Allowed deviation, as a share of the value that a link is shaped to."""


def test_links_between_namespaces_are_measured_as_they_are_shaped(
    monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    """A machine with other work may be slower than the link, never quicker."""
    monkeypatch.setattr(measure_cluster, "_SECONDS", 0.01)
    try:
        found = measure_cluster.measure_here(2, "5ms,100mbit").links
    except NamespacesUnavailable as error:
        pytest.skip(str(error))
    assert found.latency_ms > LATENCY_MS * (1 - WITHIN)
    assert 0 < found.gbit_per_second < GBIT_PER_SECOND * (1 + WITHIN)
    limit("latency measured, in that of the link", found.latency_ms / LATENCY_MS, 1 + WITHIN)
    limit("link's rate, in what was measured", GBIT_PER_SECOND / found.gbit_per_second, 1 / (1 - WITHIN))
