"""What hosts of a session tell each other, how nodes are dealt to them, and what is refused."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console

from adabench.harness.errors import UsageError
from adabench.harness.launch.agent import _Forwarder
from adabench.harness.launch.coordinator import differences, places_of
from adabench.harness.launch.framing import Wire, WireLost
from adabench.harness.launch.local import Local
from adabench.harness.launch.messages import Alive, CellPrint, Hello, Message, Said, Stopped, Welcome
from adabench.harness.launch.torchrun import Torchrun
from adabench.harness.machine.interfaces import address_named, interface_of
from adabench.harness.run.spec import RankError
from adabench.harness.session.execute import ResumeOptions, run_session
from adabench.harness.study.study import load_study

SECRET = "f" * 32


@contextmanager
def wires(secrets: tuple[str, str] = (SECRET, SECRET)) -> Iterator[tuple[Wire, Wire, list[socket.socket]]]:
    """The leader's and a follower's side, joined by two sockets that a test can listen to and speak at."""
    pairs = [socket.socketpair(), socket.socketpair()]
    made: list[Wire] = []
    thread = threading.Thread(target=lambda: made.append(Wire(pairs[0][0], secrets[0], leads=True)))
    thread.start()
    # What is between them passes on the numbers with which they begin, as it would everything.
    for one, other in ((0, 1), (1, 0)):
        if one == 1:
            other_side = threading.Thread(target=lambda: made.append(Wire(pairs[1][0], secrets[1], False)))
            other_side.start()
        pairs[other][1].sendall(pairs[one][1].recv(32, socket.MSG_WAITALL))
    thread.join()
    other_side.join()
    leader = next(wire for wire in made if wire._leads)
    follower = next(wire for wire in made if not wire._leads)
    try:
        yield leader, follower, [pair[1] for pair in pairs]
    finally:
        for wire in made:
            wire.close()
        for pair in pairs:
            pair[1].close()


def frame_of(between: socket.socket) -> bytes:
    return between.recv(1 << 16)


def test_messages_come_as_they_were_sent_and_signs_of_life_are_not_told() -> None:
    said: list[Message] = [Welcome(clock=2.5), Said(run=1, error=True, content=b"\xff\0"), Stopped()]
    with wires() as (leader, follower, between):
        for message in said:
            leader.send(Alive())
            leader.send(message)
            between[1].sendall(frame_of(between[0]))
            assert follower.receive(10.0) == message
        assert follower.receive(0.0) is None


def test_what_somebody_else_says_is_no_message() -> None:
    def changed(frame: bytes) -> bytes:
        return frame[:-2] + bytes([frame[-2] ^ 1]) + frame[-1:]

    wrong = "made with another secret, or changed on its way"
    with wires() as (leader, follower, between):
        leader.send(Welcome(clock=1.0))
        between[1].sendall(changed(frame_of(between[0])))
        with pytest.raises(WireLost, match=wrong):
            follower.receive(10.0)
    # The same frame again, and one that is sent back to where it came from.
    with wires() as (leader, follower, between):
        leader.send(Stopped())
        frame = frame_of(between[0])
        between[1].sendall(frame + frame)
        assert follower.receive(10.0) == Stopped()
        with pytest.raises(WireLost, match=wrong):
            follower.receive(10.0)
        between[0].sendall(frame)
        with pytest.raises(WireLost, match=wrong):
            leader.receive(10.0)
    with wires((SECRET, SECRET[:-1])) as (leader, follower, between):
        leader.send(Stopped())
        between[1].sendall(frame_of(between[0]))
        with pytest.raises(WireLost, match=wrong):
            follower.receive(10.0)


def test_another_programs_connection_is_told_as_such() -> None:
    with wires() as (leader, _, between):
        between[0].sendall(b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\nAccept: */*\r\n\r\n")
        with pytest.raises(WireLost, match="is it another program's connection"):
            leader.receive(10.0)
    with wires() as (leader, _, between):
        between[0].close()
        with pytest.raises(WireLost, match="the connection has ended"):
            leader.receive(10.0)


def hello(rank: int, host: str) -> Hello:
    return Hello(
        rank=rank,
        host=host,
        address=f"10.0.0.{rank}",
        interface="eth1",
        machine="a machine",
        cores=2,
        software={},
    )


@pytest.mark.parametrize(
    ("nodes", "hosts", "expected"),
    [
        (2, "ab", [([0], 0, 1), ([1], 0, 1)]),
        (5, "ab", [([0, 1, 2], 0, 3), ([3, 4], 0, 2)]),
        (3, "aab", [([0], 0, 2), ([1], 1, 2), ([2], 0, 1)]),
        (2, "abc", [([0], 0, 1), ([1], 0, 1)]),
        (1, "ab", [([0], 0, 1)]),
    ],
)
def test_nodes_are_dealt_evenly_and_numbered_on_each_host(
    nodes: int, hosts: str, expected: list[tuple[list[int], int, int]]
) -> None:
    places = places_of(nodes, [hello(rank, host) for rank, host in enumerate(hosts)])
    assert [(place.ranks, place.local_rank, place.local_size) for place in places] == expected
    assert {place.address for place in places} == {"10.0.0.0"}
    assert [(place.group, place.groups) for place in places] == [
        (number, len(expected)) for number in range(len(expected))
    ]


def test_what_differs_between_hosts_is_named() -> None:
    own = CellPrint(
        id="1", label="ctr · manual", given={"rows": 10, "nodes": 2}, data="sha256:1", source="s1", policy="p"
    )
    software = {"Python": "3.12.1", "torch": "2.9"}

    def found(its: dict[str, str] = software, **other: object) -> str:
        return str(differences(its, software, [msgspec.structs.replace(own, **other)], [own]))

    assert found() == "None"
    assert found({**software, "torch": "2.8"}).startswith("has torch 2.8, and rank 0 has 2.9: install")
    assert found(id="2", source="s2").startswith("has other sources of ctr · manual than rank 0 (s2 and s1)")
    assert found(id="2", data="sha256:2").startswith("has other data for ctr · manual than rank 0")
    assert found(id="2", policy="q").startswith("makes another policy of ctr · manual than rank 0")
    assert found(id="2").startswith("was given another study than rank 0, with other cells: start every")
    assert found(id="2", data="sha256:2", given={"rows": 20, "nodes": 2}).startswith(
        "was given another study than rank 0, where rows of ctr · manual is 10, and here 20: start every rank"
    )
    assert str(differences(software, software, [own], [])).startswith("was given another study")


class Told:
    """A line that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


class Silent:
    """A group of two ranks of which nothing is known but files."""

    ranks = (2, 3)

    def vanished(self) -> list[int]:
        return [3]


def test_what_ranks_write_is_told_once_with_times_of_the_leaders_clock(tmp_path: Path) -> None:
    told, error = Told(), RankError(rank=2, phase="train", kind="E", message="m", at=10.0)
    (tmp_path / "out").write_bytes(b"some")
    (tmp_path / "err").write_bytes(b"")
    (tmp_path / "rank2.error.json").write_bytes(msgspec.json.encode(error))
    forwarder = _Forwarder(told, 1, tmp_path, Silent(), ahead=100.0)  # type: ignore[arg-type]
    forwarder.forward()
    forwarder.forward()
    with (tmp_path / "out").open("ab") as file:
        file.write(b" more")
    forwarder.forward()
    texts = [message.content for message in told.messages if isinstance(message, Said)]
    assert texts == [b"some", b" more"]
    others = [message for message in told.messages if not isinstance(message, Said)]
    assert [type(message).__name__ for message in others] == ["File", "Vanished"]
    assert (others[0].rank, others[0].kind) == (2, "error")
    assert msgspec.json.decode(others[0].content, type=RankError).at == 110.0


def test_an_interface_or_an_address_is_listened_at_if_it_is_here() -> None:
    assert address_named("lo") == "127.0.0.1"
    assert address_named("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
    for text in ("203.0.113.7", "eth77", "127.0.0.1:80", ""):
        with pytest.raises(UsageError, match=rf"{text!r} is neither an interface nor an address .* lo \("):
            address_named(text)
    assert set(psutil.net_if_addrs()) >= {"lo"}


def study(**given: Any) -> Any:
    return load_study(
        None, "s", {"usecases": "ctr[rows=2000]", "backends": "manual", "repeats": "1", **given}
    )


def test_what_a_launcher_cannot_do_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="torchrun, srun or mpirun started on every host: RANK and WORLD"):
        Torchrun()
    with pytest.raises(UsageError, match="--listen eth0 says where other hosts reach this one, but"):
        Local("eth0")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="is rank 1 of 2, by RANK and WORLD_SIZE: say --launcher torchrun"):
        Local().__enter__()
    with pytest.raises(UsageError, match="MASTER_ADDR is missing"):
        Torchrun()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    alone = Torchrun()
    for given, sentence in (
        ({"interleaved": True}, "--interleaved lets runs of one machine take turns"),
        ({"node_percent": 75}, "--node-percent 75 slows down nodes of one machine"),
        ({"last_node_percent": 25}, "--last-node-percent 25 slows down nodes of one machine"),
        (
            {"network": "namespaces:lan"},
            "network namespaces:lan is made of network namespaces",
        ),
    ):
        with pytest.raises(UsageError, match=sentence):
            run_session(
                study(launcher="torchrun", **given),
                tmp_path,
                ResumeOptions(),
                Console(file=io.StringIO()),
                alone,
            )
