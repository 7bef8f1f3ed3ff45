"""Where a node listens, and what several hosts need."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

import adaps
from adaps import rendezvous
from adaps.node_options import listening_address
from adaps.rendezvous import host_addresses, membership, node_rendezvous, timed_store
from adaps.rendezvous.job_secret import take_secret
from tests.conftest import free_port

SECRET = "lMe6iY1fC9Q0Vd3n"
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("host:80", ("host", 80)),
        ("fd00::1", ("fd00::1", 0)),
        ("[fd00::1]", ("fd00::1", 0)),
        ("[fd00::1]:80", ("fd00::1", 80)),
    ],
)
def test_listen_is_a_host_or_host_and_port(given: str, expected: tuple[str, int]) -> None:
    assert listening_address(given) == expected


def test_listen_goes_before_the_variable_which_goes_before_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert listening_address(None) is None
    monkeypatch.setenv("ADAPS_LISTEN", "10.0.0.2")
    assert listening_address(None) == ("10.0.0.2", 0)
    assert listening_address("10.0.0.1") == ("10.0.0.1", 0)
    monkeypatch.setenv("ADAPS_LISTEN", "host:port")
    with pytest.raises(ValueError, match="ADAPS_LISTEN is 'host:port'; it must be host or host:port"):
        listening_address(None)


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "::1"])
def test_jobs_of_this_host_listen_at_loopback_only(master: str) -> None:
    place = rendezvous.place_in_environment({**TORCHRUN, "MASTER_ADDR": master})
    assert place is not None
    assert host_addresses.is_loopback(place.interface())


def test_torchrun_says_when_all_nodes_are_on_this_host() -> None:
    place = rendezvous.place_in_environment({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"})
    assert place is not None
    assert place.interface() == "127.0.0.1"


def lead_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Every route of this host begins at an interface with this address."""

    class Probe:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def connect(self, where: tuple[str, int]) -> None:
            if not address:
                raise OSError(101, "Network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return address, 1

    monkeypatch.setattr(socket, "socket", Probe)


def test_other_jobs_listen_at_the_interface_to_the_master_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lead_to(monkeypatch, "192.0.2.7")
    with caplog.at_level(logging.INFO, "adaps"):
        for _ in range(2):
            place = rendezvous.place_in_environment({**TORCHRUN, "LOCAL_WORLD_SIZE": "1"})
            assert place is not None
            assert place.interface() == "192.0.2.7"
    (message,) = caplog.messages
    assert message.startswith("this node listens at 192.0.2.7, the interface by which MASTER_ADDR=192.0.2.1")
    assert "ADAPS_LISTEN" in message


@pytest.mark.parametrize(("route", "expected"), [("192.0.2.8", "192.0.2.8"), ("", "127.0.0.1")])
def test_a_host_whose_name_means_loopback_listens_at_the_default_route_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, route: str, expected: str
) -> None:
    monkeypatch.setattr(
        host_addresses, "_resolve", lambda host, port: [(socket.AF_INET, ("127.0.1.1", port))]
    )
    lead_to(monkeypatch, route)
    assert host_addresses.address_towards("this-host", 1) == expected


def test_no_interface_is_looked_for_where_one_is_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    for name, value in {**TORCHRUN, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ADAPS_LISTEN", "127.0.0.3")
    monkeypatch.setattr(rendezvous.Place, "interface", lambda place: pytest.fail("nobody asked for it"))
    with (
        caplog.at_level(logging.INFO, "adaps"),
        pytest.raises(adaps.RendezvousError, match="rank 1 of 2 nodes did not come in time"),
    ):
        adaps.Node([adaps.Table("emb", 10, 4)], connect_timeout=0.1)
    assert not [message for message in caplog.messages if "this node listens" in message]


def test_no_way_to_the_master_names_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    lead_to(monkeypatch, "")
    with pytest.raises(
        adaps.RendezvousError, match=r"leads to MASTER_ADDR=192.0.2.1 .*unreach.*ADAPS_LISTEN"
    ):
        host_addresses.address_towards("192.0.2.1", 1)


class Watched:
    """A store that records everything written to it."""

    def __init__(self) -> None:
        self.store, self.written = HashStore(), ""

    def set(self, key: str, value: str) -> None:
        self.written += f"{key} {value}\n"
        self.store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


Meet = Callable[[str], list[Any]]


@pytest.fixture
def meet() -> Callable[..., list[Any]]:
    """``meet(store, addresses)``: what came of a meeting of two processes, played by threads."""

    def run(store: Any, *addresses: str) -> list[Any]:
        def one(rank: int) -> Any:
            try:
                place = rendezvous.Rendezvous(store, rank, 2, "test")
                return place.meet(addresses[rank], time.monotonic() + 60)
            except adaps.RendezvousError as error:
                return str(error)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(one, range(2)))

    return run


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, lock = itertools.cycle(["here", "there"]), threading.Lock()

    def identity() -> str:
        with lock:
            return next(hosts)

    monkeypatch.setattr(host_addresses, "identity", identity)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"every": "1"}, {"every": "2"}, "rank 1 has every = 2 and rank 0 has 1"),
        ({"every": "1"}, {}, "rank 1 has every = none and rank 0 has 1"),
        ({}, {"technique of a": "allreduce"}, "rank 1 has technique of a = allreduce and rank 0 has none"),
        ({"lookahead of a": "3"}, {"lookahead of a": "3"}, None),
    ],
)
def test_nodes_that_do_not_agree_are_told_in_what(
    first: dict[str, str], second: dict[str, str], said: str | None
) -> None:
    store = HashStore()

    def one(rank: int, agreement: dict[str, str]) -> Any:
        place = rendezvous.Rendezvous(store, rank, 2, "test", agreement=agreement)
        return place.meet("127.0.0.1 1 a", time.monotonic() + 60)

    with ThreadPoolExecutor(2) as threads:
        for meeting in [threads.submit(one, rank, agreed) for rank, agreed in enumerate((first, second))]:
            if said is None:
                assert len(meeting.result().addresses) == 2
            else:
                with pytest.raises(adaps.RendezvousError, match=f"{said}: give every node the same policy"):
                    meeting.result()


@pytest.mark.usefixtures("two_hosts")
def test_nodes_of_two_hosts_need_a_secret_and_are_told_how_to_make_one(meet: Any) -> None:
    for said in meet(HashStore(), "192.0.2.1 1 a", "192.0.2.2 1 b"):
        assert "another host than rank 0" in said
        assert "head -c 32 /dev/urandom | base64" in said
        assert "ADAPS_SECRET_FILE" in said
        assert "\n" not in said


@pytest.mark.usefixtures("two_hosts")
def test_with_a_secret_they_meet_and_every_meeting_has_a_key_of_its_own(
    meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPS_SECRET", SECRET)
    store = Watched()
    keys = []
    for _ in range(2):
        first, second = meet(store, "192.0.2.1 1 a", "192.0.2.2 1 b")
        assert first == second
        assert first.addresses == ["192.0.2.1 1 a", "192.0.2.2 1 b"]
        keys.append(first.secret)
    assert len({SECRET, *keys}) == 3
    assert not any(key in store.written for key in (SECRET, *keys))


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_loopback_address_on_two_hosts_is_named_with_the_cure(
    meet: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ADAPS_SECRET", SECRET)
    for said in meet(HashStore(), "192.0.2.1 1 a", f"{address} 1 b"):
        assert said.startswith(f"rank 1 listens at {address}, which nodes on other hosts cannot reach")
        assert "listen=" in said
        assert "ADAPS_LISTEN" in said


def test_a_secret_on_some_nodes_only_is_named(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given, lock = itertools.cycle([SECRET, None]), threading.Lock()

    def secret() -> str | None:
        with lock:
            return next(given)

    monkeypatch.setattr(node_rendezvous, "secret_in_environment", secret)
    for said in meet(HashStore(), "a", "b"):
        assert said.endswith("which the others have: every node needs the same")


def test_on_one_host_nothing_has_to_be_set_up_and_nothing_secret_is_in_the_store(meet: Any) -> None:
    store = Watched()
    first, second = meet(store, "127.0.0.1 1 a", "127.0.0.1 2 b")
    assert first == second
    assert first.secret not in store.written
    (members,) = [line for line in store.written.splitlines() if "/members " in line]
    told = json.loads(members.partition("/members ")[2])
    assert sorted(told) == ["members", "offer"]
    # The list of members names a socket, which hands the secret to processes of this user only.
    with pytest.raises(adaps.RendezvousError, match="may have ended"):
        take_secret(told["offer"], time.monotonic() + 60)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"members": [1], "offer": ""}', '{"members": 3, "offer": ""}', "\ud83d\xff"]
)
def test_an_invalid_list_of_members_is_refused(text: str) -> None:
    with pytest.raises(adaps.RendezvousError, match="as the list of all nodes"):
        membership.read_member_list(text)


@pytest.mark.parametrize(
    "member",
    [
        *("x", "x {}", 'x {"address": "a", "host": "h", "has_secret": true}'),
        'x {"address": 1, "host": "h", "has_secret": true, "agreement": {}}',
        'x {"address": "a", "host": "h", "has_secret": true, "agreement": {"every": 1}}',
        'x {"address": "a", "host": "h", "has_secret": true, "agreement": []}',
    ],
)
def test_an_invalid_member_is_refused(member: str) -> None:
    with pytest.raises(adaps.RendezvousError, match="as rank 0"):
        membership.read_members(membership.MemberList([member], ""))


def test_a_store_is_not_waited_for_at_the_address_of_another_host() -> None:
    """Rank 0 itself should open the store; the address is reserved for documentation."""
    with pytest.raises(
        adaps.RendezvousError, match=r"^MASTER_ADDR=203.0.113.7 is not an address of this host"
    ):
        rendezvous.open_store("203.0.113.7", free_port(), hosts=True, deadline=time.monotonic())


HOLDS_A_STORE = """
import sys, time
from adaps.rendezvous import open_store
store = open_store("127.0.0.1", int(sys.argv[1]), hosts=True, deadline=time.monotonic() + 60)
print("open", flush=True)
sys.stdin.read()
"""


def stop(child: int) -> None:
    """Stop a child; returns when it has stopped, which takes a while on a busy machine."""
    os.kill(child, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])


@pytest.mark.parametrize("rank", [1, 2])
def test_a_store_that_is_stopped_is_told_at_the_deadline(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Before it is connected to, and after."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_STORE, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "open\n"
            place = rendezvous.Place(rank, 3, "127.0.0.1", port, hosted=True, one_host=True)
            deadline = time.monotonic() + 60
            if rank == 1:
                where = rendezvous.rendezvous_at(place, deadline)
                stop(holder.pid)
                where.store = timed_store.TimedStore(where.store, time.monotonic(), lambda: None)
                with pytest.raises(
                    adaps.RendezvousError, match=r"^the rendezvous store does not answer: .*stopped"
                ):
                    where.meet("a", deadline)
            else:
                stop(holder.pid)
                monkeypatch.setattr(timed_store, "_LEAST", 0.5)
                with pytest.raises(
                    adaps.RendezvousError, match=rf"^the rendezvous store at 127.0.0.1:{port} does n"
                ):
                    rendezvous.rendezvous_at(place, time.monotonic())
        finally:
            holder.kill()


GIVES_UP = """
import atexit, os, threading, time
from adaps.rendezvous import timed_store

reading, writing = os.pipe()


def call() -> None:
    os.read(reading, 1)
    for _ in range(10**6):
        pass
    os.write(1, b"returned")


store = timed_store.TimedStore(None, time.monotonic(), lambda: None)
try:
    store._ask(call)
except timed_store.RendezvousError:
    atexit.register(os.write, writing, b"!")  # The call returns when the process begins to end.
"""


def test_a_process_ends_after_the_calls_of_a_store_that_it_has_given_up() -> None:
    """A thread that returned from the store's C++ code during the shutdown would abort the process."""
    assert subprocess.check_output([sys.executable, "-c", GIVES_UP], text=True) == "returned"
