"""Links that the transport shapes take at least the time that their latency and bandwidth imply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Launch

TOLERANCE = 1.1
"""Largest allowed ratio of the counted bytes to the bytes of one transfer."""


@pytest.mark.parametrize(("latency", "bandwidth"), [(20e-3, 200e6), (50e-3, 400e6)])
def test_a_ping_and_a_bulk_transfer_take_what_the_link_says(
    launch: Launch, latency: float, bandwidth: float
) -> None:
    network = f"{1e3 * latency:g}ms,{bandwidth / 1e6:g}mbit"
    ours = launch("tests.perf.server.shaped_links", 2, network=network, length=256, pings=10, transfers=5)[0]
    print(network, ours)
    # Other work on the machine can only make them slower.
    assert 2 * latency <= min(ours["pings"])
    # A latency each way, and the answer's bytes.
    assert ours["received"] > 10e6
    assert (2 * latency + 8 * ours["received"] / bandwidth) / TOLERANCE <= min(ours["transfers"])
