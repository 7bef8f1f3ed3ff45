"""Reading the cluster's description from the environment."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

import adaps
from adaps import rendezvous
from tests.conftest import free_port

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

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


def test_a_missing_rank_0_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1, port := free_port())
    with pytest.raises(adaps.RendezvousError, match=rf"127.0.0.1:{port} in time \(rank 0 is missing\)"):
        make_node()


def test_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 0, free_port())
    with pytest.raises(adaps.RendezvousError, match="ranks 1, 2 of 3 nodes did not come in time"):
        make_node()


def test_an_address_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1, 29500, "no-such-host.invalid")
    with pytest.raises(
        adaps.RendezvousError, match=r"'no-such-host.invalid' of the rendezvous cannot be resolved"
    ):
        make_node()


# Meetings in a store that outlives those who meet

SOON, LATE = 0.3, 60.0


class Hourglass(rendezvous.Clock):
    """A clock that a test can set to the end of the time."""

    def __init__(self) -> None:
        self.up = False

    def now(self) -> float:
        return float("inf") if self.up else 0.0


@pytest.fixture
def start() -> Iterator[Callable[..., Future[rendezvous.RendezvousResult]]]:
    """Have a process, played by a thread, meet the others; ``start(store, rank, address, …)``."""
    clocks: list[Hourglass] = []
    with ThreadPoolExecutor(16) as threads:

        def meet(
            store: Store, rank: int, address: str, world: int = 2, seconds: float = LATE, clock: Any = None
        ) -> Any:
            clocks.extend([clock] if clock is not None else [])
            place = rendezvous.Rendezvous(store, rank, world, "test", clock=clock)
            return threads.submit(place.meet, address, time.monotonic() + seconds)

        yield meet
        for clock in clocks:  # releases ranks that still wait if the test has failed
            clock.up = True


def await_key(store: Store, key: str, world: int = 2) -> None:
    assert rendezvous.wait_for(store, [f"test/of {world}/{key}"], time.monotonic() + LATE), key


def test_all_get_the_same_addresses_and_secret_and_the_next_meeting_has_another(start: Any) -> None:
    store = HashStore()
    secrets = set()
    for life in range(3):
        came = [start(store, rank, f"{rank} of life {life}", world=3) for rank in (2, 0, 1)]
        (meeting,) = {(tuple(m.addresses), m.secret) for m in (future.result() for future in came)}
        assert meeting[0] == tuple(f"{rank} of life {life}" for rank in range(3))
        secrets.add(meeting[1])
    assert len(secrets) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_addresses_of_the_last_life_are_not_read_however_late_the_others_come(start: Any, first: int) -> None:
    store = HashStore()
    [future.result() for future in [start(store, rank, "old") for rank in range(2)]]
    early = start(store, first, "new")
    with pytest.raises(TimeoutError):
        early.result(timeout=SOON)
    late = start(store, 1 - first, "new")
    assert early.result().addresses == late.result().addresses == ["new", "new"]


def test_what_ranks_left_that_died_before_they_met_is_not_read(start: Any) -> None:
    store = HashStore()
    dead = start(store, 0, "dead", seconds=SOON)
    with pytest.raises(adaps.RendezvousError, match=r"^rank 1 of 2 nodes did not come in time$"):
        dead.result()
    dead = start(store, 1, "dead", seconds=SOON)
    with pytest.raises(adaps.RendezvousError, match=r"^rank 0 of 2 nodes did not come in time$"):
        dead.result()
    new = [start(store, rank, "new") for rank in range(2)]
    assert [future.result().addresses for future in new] == [["new", "new"]] * 2


def test_one_that_waits_joins_whoever_comes_as_rank_0_next(start: Any) -> None:
    store = HashStore()
    time_of_gone = Hourglass()
    gone = start(store, 0, "gone", world=3, clock=time_of_gone)
    waits = start(store, 1, "1", world=3)
    await_key(store, "1/member/1", world=3)
    time_of_gone.up = True
    with pytest.raises(adaps.RendezvousError, match=r"^rank 2 of 3 nodes did not come in time$"):
        gone.result()
    others = [start(store, rank, str(rank), world=3) for rank in (0, 2)]
    assert waits.result().addresses == ["0", "1", "2"]
    assert {future.result().secret for future in others} == {waits.result().secret}


def test_an_old_rank_0_that_is_still_there_gives_way(start: Any) -> None:
    store = HashStore()
    old = start(store, 0, "old")
    await_key(store, "1/member/0")
    new = start(store, 0, "new")
    with pytest.raises(adaps.RendezvousError, match="another process has come as rank 0 after this one"):
        old.result()
    assert start(store, 1, "1").result().addresses == new.result().addresses == ["new", "1"]


def test_an_old_rank_1_that_is_still_there_meets_nobody_without_being_met(start: Any) -> None:
    store = HashStore()
    time_of_old = Hourglass()
    old = start(store, 1, "old", world=3, clock=time_of_old)
    leader = start(store, 0, "0", world=3)
    await_key(store, "1/member/1", world=3)
    joined = store.get("test/of 3/1/member/1")
    new = start(store, 1, "new", world=3)
    deadline = time.monotonic() + LATE
    while store.get("test/of 3/1/member/1") == joined and time.monotonic() < deadline:
        time.sleep(0.01)
    last = start(store, 2, "2", world=3)
    assert new.result().addresses == leader.result().addresses == last.result().addresses == ["0", "new", "2"]
    time_of_old.up = True
    with pytest.raises(adaps.RendezvousError, match=r"^rank 0 of 3 nodes did not come in time$"):
        old.result()


def test_clusters_of_another_size_do_not_meet_and_name_the_other_size(start: Any) -> None:
    store = HashStore()
    old = start(store, 1, "old", world=3, seconds=2 * SOON)
    new = [start(store, rank, "new") for rank in range(2)]
    assert [future.result().addresses for future in new] == [["new", "new"]] * 2
    with pytest.raises(
        adaps.RendezvousError,
        match=r"^rank 0 of 3 nodes did not come in time: a process came as rank 0 with WORLD_SIZE=2, and "
        r"rank 1 has WORLD_SIZE=3\. Start all processes with the same WORLD_SIZE$",
    ):
        old.result()


class BrokenStore:
    """A store whose process has ended."""

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe\nwith a stack")


def test_a_store_of_the_last_start_that_ends_is_replaced_by_the_next_one() -> None:
    store, opened = HashStore(), threading.Event()

    def reopen(deadline: float) -> Store:
        opened.set()
        return store

    late = rendezvous.Rendezvous(BrokenStore(), 1, 2, "test", reopen=reopen)  # type: ignore[arg-type]
    deadline = time.monotonic() + LATE
    with ThreadPoolExecutor(1) as threads:
        meeting = threads.submit(rendezvous.Rendezvous(store, 0, 2, "test").meet, "0", deadline)
        assert late.meet("1", deadline).addresses == meeting.result().addresses == ["0", "1"]
    assert opened.is_set()
    with pytest.raises(adaps.RendezvousError, match=r"^the rendezvous store was lost: Broken pipe$"):
        rendezvous.Rendezvous(BrokenStore(), 0, 2, "test").meet("0", deadline)  # type: ignore[arg-type]
