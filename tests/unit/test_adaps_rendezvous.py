"""What the environment says about the cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import adaps
from adaps import rendezvous

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_no_environment_means_a_cluster_of_one() -> None:
    assert rendezvous.place_in_environment({}) is None
    assert rendezvous.place_in_environment({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None
    # These two alone are set on many clusters, without torchrun.
    assert rendezvous.place_in_environment({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}) is None


def test_torchruns_environment_is_read() -> None:
    place = rendezvous.place_in_environment(TORCHRUN)
    assert place is not None
    assert (place.rank, place.world_size, place.host, place.port) == (1, 3, "127.0.0.1", 29500)
    assert not place.hosted
    restarted = rendezvous.place_in_environment(
        {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert restarted is not None
    assert restarted.hosted
    assert restarted.prefix != place.prefix


@pytest.mark.parametrize("name", TORCHRUN)
def test_a_missing_variable_is_named(name: str) -> None:
    environment = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(adaps.RendezvousError, match=f"environment variable {name} is missing"):
        rendezvous.place_in_environment(environment)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "first"}, "RANK is 'first'; it must be an integer"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is missing"),
        ({"RANK": "3"}, "RANK=3 and WORLD_SIZE=3 do not fit"),
        ({"RANK": "-1"}, "RANK=-1 and WORLD_SIZE=3 do not fit"),
        ({"WORLD_SIZE": "0"}, "RANK=1 and WORLD_SIZE=0 do not fit"),
        ({"WORLD_SIZE": "5000"}, "at most 4096"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(adaps.RendezvousError, match=message):
        rendezvous.place_in_environment({**TORCHRUN, **change})


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, port: int, host: str = "127.0.0.1") -> None:
    for name, value in {**TORCHRUN, "RANK": str(rank), "MASTER_ADDR": host, "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)


def make_node() -> None:
    with adaps.Node([adaps.Table("emb", 10, 4)], connect_timeout=1.0):
        pass


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch, used_port: int) -> None:
    as_rank(monkeypatch, 0, used_port)
    with pytest.raises(
        adaps.RendezvousError, match=f"cannot be opened at 127.0.0.1:{used_port}: the port is in use"
    ):
        make_node()


def test_a_missing_rank_0_is_named(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    as_rank(monkeypatch, 1, free_port)
    with pytest.raises(adaps.RendezvousError, match=rf"127.0.0.1:{free_port} in time \(rank 0 is missing\)"):
        make_node()


def test_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    as_rank(monkeypatch, 0, free_port)
    with pytest.raises(adaps.RendezvousError, match="ranks 1, 2 of 3 nodes did not come in time"):
        make_node()


def test_an_address_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1, 29500, "no-such-host.invalid")
    with pytest.raises(
        adaps.RendezvousError, match=r"'no-such-host.invalid' of the rendezvous cannot be resolved"
    ):
        make_node()
