"""Messages between the hosts of a session, the distribution of nodes, and refused options."""

import io
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console

from adabench.harness.errors import UsageError
from adabench.harness.launch.agent import RunReporter
from adabench.harness.launch.coordinator import differences, places_of
from adabench.harness.launch.framing import ConnectionLost, FramedSocket
from adabench.harness.launch.launcher import Failure, LauncherOptions, run_files
from adabench.harness.launch.local import Local
from adabench.harness.launch.messages import (
    Alive,
    CellFingerprint,
    Hello,
    Interrupted,
    LogChunk,
    Message,
    Start,
    Welcome,
)
from adabench.harness.launch.torchrun import Torchrun
from adabench.harness.machine.interfaces import address_named, interface_of
from adabench.harness.run.spec import Place, RankError, RunSpec, exchange_file
from adabench.harness.session.execute import run_session
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.study import load_study

SECRET = "f" * 32


Sockets = tuple[FramedSocket, FramedSocket, list[socket.socket]]


@contextmanager
def framed(secrets: tuple[str, str] = (SECRET, SECRET)) -> Iterator[Sockets]:
    """The coordinator's and an agent's side, joined by two sockets that a test can read and write."""
    (near, between_near), (far, between_far) = socket.socketpair(), socket.socketpair()
    with ThreadPoolExecutor(2) as threads:
        sides = [
            threads.submit(FramedSocket, near, secrets[0], coordinates=True),
            threads.submit(FramedSocket, far, secrets[1], coordinates=False),
        ]
        for source, sink in ((between_near, between_far), (between_far, between_near)):
            sink.sendall(source.recv(32, socket.MSG_WAITALL))
        coordinator, agent = (side.result() for side in sides)
    try:
        yield coordinator, agent, [between_near, between_far]
    finally:
        for each in (coordinator, agent, between_near, between_far):
            each.close()


def test_messages_arrive_as_they_were_sent_and_heartbeats_are_dropped() -> None:
    sent: list[Message] = [Welcome(clock=2.5), LogChunk(run=1, error=True, content=b"\xff\0"), Interrupted()]
    with framed() as (coordinator, agent, between):
        for message in sent:
            coordinator.send(Alive())
            coordinator.send(message)
            between[1].sendall(between[0].recv(1 << 16))
            assert agent.receive(10.0) == message
        assert agent.receive(0.0) is None


WRONG = "made with another secret, or was changed on the network"


def flipped(frame: bytes) -> bytes:
    return frame[:-2] + bytes([frame[-2] ^ 1]) + frame[-1:]


@pytest.mark.parametrize(
    ("secrets", "forged", "good"),
    [
        ((SECRET, SECRET), flipped, 0),
        ((SECRET, SECRET), lambda frame: frame + frame, 1),
        ((SECRET, SECRET[:-1]), lambda frame: frame, 0),
    ],
    ids=["changed", "repeated", "another secret"],
)
def test_a_forged_frame_is_refused(
    secrets: tuple[str, str], forged: Callable[[bytes], bytes], good: int
) -> None:
    with framed(secrets) as (coordinator, agent, between):
        coordinator.send(Interrupted())
        between[1].sendall(forged(between[0].recv(1 << 16)))
        for _ in range(good):
            assert agent.receive(10.0) == Interrupted()
        with pytest.raises(ConnectionLost, match=WRONG):
            agent.receive(10.0)


def test_a_frame_that_is_sent_back_is_refused() -> None:
    with framed() as (coordinator, _, between):
        coordinator.send(Interrupted())
        between[0].sendall(between[0].recv(1 << 16))
        with pytest.raises(ConnectionLost, match=WRONG):
            coordinator.receive(10.0)


def test_another_programs_connection_is_reported_as_such() -> None:
    with framed() as (coordinator, _, between):
        between[0].sendall(b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\nAccept: */*\r\n\r\n")
        with pytest.raises(ConnectionLost, match="is it the connection of another program"):
            coordinator.receive(10.0)
    with framed() as (coordinator, _, between):
        between[0].close()
        with pytest.raises(ConnectionLost, match="the connection has ended"):
            coordinator.receive(10.0)


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
    own = CellFingerprint(
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


class Recorder:
    """A connection that records the messages that are sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


def test_output_and_files_of_ranks_are_reported_once_with_times_of_the_coordinators_clock() -> None:
    place = Place(ranks=[2, 3], local_rank=0, local_size=2, group=1, groups=2, address="10.0.0.0")
    settings: Any = {"usecase": "u", "params": {}, "backend": "b", "options": {}, "place": place}
    start = Start(run=1, spec=RunSpec(nodes=4, workers=1, network="loopback", **settings))
    recorder, error = Recorder(), RankError(rank=2, phase="train", kind="E", message="m", at=10.0)
    failure = Failure(rank=3, pid=7, exit_code=-9, time=11.0)
    with run_files("a test") as files:
        files.out.write(b"some")
        files.out.flush()
        exchange_file(files.folder, "error", 2).write_bytes(msgspec.json.encode(error))
        exchange_file(files.folder, "failures", 1).write_bytes(msgspec.json.encode([failure]))
        reporter = RunReporter(recorder, start, files, ahead=100.0)  # type: ignore[arg-type]
        reporter.report()
        reporter.report()
        files.out.write(b" more")
        files.out.flush()
        reporter.report()
    first, *reported, last = recorder.messages
    assert [first.content, last.content] == [b"some", b" more"]
    assert [(file.kind, file.number) for file in reported] == [("error", 2), ("failures", 1)]
    assert msgspec.json.decode(reported[0].content, type=RankError).at == 110.0
    assert msgspec.json.decode(reported[1].content, type=list[Failure])[0].time == 111.0


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
    with pytest.raises(UsageError, match="--listen eth0 names where other hosts reach this one, but"):
        Local(LauncherOptions("eth0"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="is rank 1 of 2, by RANK and WORLD_SIZE: use --launcher torchrun"):
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
        ({"network": "namespaces:lan"}, "network namespaces:lan is made of network namespaces"),
    ):
        with pytest.raises(UsageError, match=sentence):
            run_session(
                study(launcher="torchrun", **given),
                tmp_path,
                ResumeOptions(),
                Console(file=io.StringIO()),
                alone,
            )
