"""Links between nodes: shared memory on one host, a node that is slow, and shaped links."""

import pytest

from tests.conftest import Launch
from tests.perf.server import shaped_links

from .guarantees import shared_memory, slow_node

UNSENT = 4 << 20
"""Maximum number of unsent bytes of a node."""
TOLERANCE = 1.1
"""Largest allowed ratio of the counted bytes to the bytes of one transfer."""


@pytest.mark.parametrize(
    ("network", "frame_mac", "shared"),
    [
        ("loopback", False, True),
        ("sockets", False, False),
        ("0s,10gbit", False, False),  # an imitated network takes the kernel's time as well
        ("loopback", True, False),
    ],
)
def test_nodes_of_one_host_share_memory(
    launch: Launch, network: str, *, frame_mac: bool, shared: bool
) -> None:
    ranks = launch(shared_memory.main, 2, network=network, frame_mac=frame_mac)
    assert [rank["shared"] for rank in ranks] == [shared, shared]
    assert all(rank["same"] for rank in ranks)
    assert all(rank["sent"] > 16e6 for rank in ranks)


def test_rows_for_a_node_that_takes_nothing_stay_where_they_are(launch: Launch) -> None:
    fast, slow = launch(slow_node.main, 2, rows=1024, limit=UNSENT, seconds=0)
    assert fast["right"]
    assert slow["right"]
    # All rows that the other node holds, half of which it owns, take 32 MB.
    assert fast["grown"] < UNSENT + (16 << 20)
    assert fast["stats"]["unsent_full_micros"] > 0
    assert fast["stats"]["refreshes_held_back"] > 0


def test_memory_stays_within_the_limits_while_another_node_runs_a_tenth_of_the_time(
    launch: Launch, full: bool
) -> None:
    seconds = 600 if full else 2
    fast, slow = launch(slow_node.main, 2, seconds + 240, rows=1024, limit=UNSENT, seconds=seconds)
    assert fast["right"]
    assert slow["right"]
    assert min(fast["pushed"]) > 0
    assert fast["grown"] < 2 * UNSENT + (64 << 20)


@pytest.mark.parametrize(("latency", "bandwidth"), [(20e-3, 200e6), (50e-3, 400e6)])
def test_a_ping_and_a_bulk_transfer_take_what_the_link_says(
    launch: Launch, latency: float, bandwidth: float
) -> None:
    network = f"{1e3 * latency:g}ms,{bandwidth / 1e6:g}mbit"
    ours = launch(shaped_links.main, 2, network=network, length=256, pings=10, transfers=5)[0]
    print(network, ours)
    # Other work on the machine can only make them slower.
    assert 2 * latency <= min(ours["pings"])
    # A latency each way, and the answer's bytes.
    assert ours["received"] > 10e6
    assert (2 * latency + 8 * ours["received"] / bandwidth) / TOLERANCE <= min(ours["transfers"])
