"""Nodes of one host exchange frames through shared memory unless that was asked not to be."""

import pytest

from tests.conftest import Launch


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
    ranks = launch("tests.integration.guarantees.shared_memory", 2, network=network, frame_mac=frame_mac)
    assert [rank["shared"] for rank in ranks] == [shared, shared]
    assert all(rank["same"] for rank in ranks)
    assert all(rank["sent"] > 16e6 for rank in ranks)
