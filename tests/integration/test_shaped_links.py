"""Links that the transport shapes take the time that their latency and bandwidth say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Launch

TOLERANCE = 1.1


@pytest.mark.parametrize(("latency", "bandwidth"), [(20e-3, 200e6), (50e-3, 400e6)])
def test_a_ping_and_a_bulk_transfer_take_what_the_link_says(
    launch: Launch, latency: float, bandwidth: float
) -> None:
    network = f"{1e3 * latency:g}ms,{bandwidth / 1e6:g}mbit"
    ours, free = (
        launch("tests.perf.server.shaped_links", 2, network=links, length=256, pings=10, transfers=5)[0]
        for links in (network, "loopback")
    )
    print(network, ours, free)
    # What else the machine does can only make them longer.
    assert 2 * latency <= min(ours["pings"]) <= TOLERANCE * 2 * latency
    # At least the answer's bytes, at most those of the request before them, and a latency each way. What the
    # nodes do for a transfer, which links that cost nothing show, need not be beside the link's time.
    assert ours["received"] > 10e6
    least = 2 * latency + 8 * ours["received"] / bandwidth
    most = least + 8 * ours["sent"] / bandwidth + max(free["transfers"])
    assert least / TOLERANCE <= min(ours["transfers"]) <= TOLERANCE * most
