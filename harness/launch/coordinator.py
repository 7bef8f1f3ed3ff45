"""Runs on several hosts, of each of which a process of the harness takes part: the leader asks the followers.

Where the leader is itself on one of the hosts it has the first nodes, and else the first follower has them.
What a follower's ranks write, it sends, and the leader keeps it where the ranks of one machine would have put
it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, TypeVar

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.agent import cell_print
from adabench.harness.launch.connection import IDLE_SECONDS, Line
from adabench.harness.launch.framing import PEER_SECONDS, Wire, WireLost
from adabench.harness.launch.host_rendezvous import host_here
from adabench.harness.launch.launcher import Failure, Group, Launcher, Trouble
from adabench.harness.launch.local import Local, LocalGroup
from adabench.harness.launch.messages import (
    Bye,
    CellPrint,
    End,
    Ended,
    File,
    Hello,
    Message,
    Met,
    Planned,
    Prepare,
    Prepared,
    Probe,
    Probed,
    Refused,
    Said,
    Start,
    Stopped,
    Vanished,
    Welcome,
)
from adabench.harness.launch.process_group import meeting_file
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.interfaces import interface_of
from adabench.harness.run.spec import FILES, Place, RunSpec, read_json
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import Host, RunSettings
from adabench.results.store import write_atomically

__all__ = ["Connected", "ManyHosts", "differences", "hello_here", "places_of", "software_of"]

_PACKAGES = ("adabench", "torch", "numpy")
_PATIENCE = 0.5
"""Seconds between two looks at whether it is still worth waiting for a follower."""

_Answer = TypeVar("_Answer", Planned, Prepared, Probed)


class ManyHosts(Launcher):
    """A launcher whose process leads others, the followers, each on a host.

    Attributes
    ----------
    leader : str
        What a sentence calls the process that leads.
    """

    leader: ClassVar[str] = "rank 0"

    def __init__(
        self,
        listen: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        job: Sequence[str] = (),
    ) -> None:
        super().__init__(listen, say, job)
        self._followers: list[Connected] = []
        self._changed = threading.Condition()
        self._runs = 0
        self._local: Local | None = None
        self._hello: Hello | None = None
        """Both are there if the first nodes of a run are on this host."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        reason = None
        if isinstance(error, UsageError | LauncherError):
            reason = str(error)
        elif isinstance(error, Exception):
            reason = f"{type(error).__name__}: {error}"
        elif error is not None:
            reason = "it was stopped"
        self._end(reason)

    def check(self, study: Study) -> None:
        for settings in study.settings:
            if settings.interleaved:
                raise UsageError(
                    "--interleaved lets runs of one machine take turns: leave it out with --launcher "
                    f"{self.name}"
                )
            for name in ("node_percent", "last_node_percent"):
                if (percent := getattr(settings, name)) < 100:
                    raise UsageError(
                        f"--{name.replace('_', '-')} {percent} slows down nodes of one machine: "
                        f"leave it out with --launcher {self.name}"
                    )
            if settings.network.startswith("namespaces:"):
                raise UsageError(
                    f"network {settings.network} is made of network namespaces of one machine: "
                    f"with --launcher {self.name} say loopback, which leaves the links as they are"
                )

    def agree(self, cells: Sequence[Cell]) -> None:
        software, own = software_of(capture()), [cell_print(cell) for cell in cells]
        for follower in self._followers:
            its = follower.answer(Planned).cells
            found = differences(follower.hello.software, software, its, own, self.leader)
            if found is not None:
                raise UsageError(f"{follower.title} {found}")

    def prepare(self, modules: Sequence[str] = ()) -> None:
        for follower in self._followers:
            follower.line.send(Prepare(modules=list(modules)))
        if self._local is not None:
            self._local.prepare(modules)
        for follower in self._followers:
            follower.answer(Prepared)

    def obstacle(self, settings: RunSettings) -> str | None:
        if not settings.pinned:
            return None
        hellos = self._hellos()
        for hello, place in zip(hellos, self._places(settings.nodes), strict=False):
            if place.local_size > hello.cores:
                return (
                    f"{place.local_size} nodes with a core each need as many cores on the host of rank "
                    f"{hello.rank}, where this job may use {hello.cores}"
                )
        return None

    def begin(self, spec: RunSpec, folder: Path, out: IO[bytes], err: IO[bytes]) -> Group:
        places = self._places(spec.nodes)
        with self._changed:
            self._runs += 1
            number = self._runs
        local = None
        if self._local is not None:
            assert self._local.server is not None
            here = msgspec.structs.replace(spec, place=places.pop(0))
            local = LocalGroup(self._local.server, here, folder, out, err)
        parts = [
            Part(number, follower, place, folder, out, err)
            for follower, place in zip(self._followers, places, strict=False)
        ]
        return HostsGroup(spec, local, parts, self._changed)

    def hosts(self, nodes: int) -> list[Host]:
        return [
            Host(nodes=place.ranks, address=hello.address, interface=hello.interface, machine=hello.machine)
            for hello, place in zip(self._hellos(), self._places(nodes), strict=False)
        ]

    @property
    def gone(self) -> str | None:
        lost = [one for one in self._followers if one.lost is not None]
        return f"{lost[0].title} was lost: {lost[0].lost}" if lost else None

    @property
    def interrupted(self) -> bool:
        return any(follower.stopped for follower in self._followers)

    def close(self) -> None:
        self._end(None)

    def _end(self, reason: str | None) -> None:
        for follower in self._followers:
            follower.line.send(Bye(reason=reason))
        for follower in self._followers:
            follower.line.close()
        self._followers = []
        if self._local is not None:
            self._local.close()

    def _hellos(self) -> list[Hello]:
        own = [] if self._hello is None else [self._hello]
        return [*own, *(follower.hello for follower in self._followers)]

    def _places(self, nodes: int) -> list[Place]:
        return places_of(nodes, self._hellos())

    def _welcome_all(
        self, listener: socket.socket, secret: str, ranks: Iterable[int], look: Callable[[set[int]], None]
    ) -> None:
        """Wait until followers of these ranks have connected and proved that they know the secret.

        Parameters
        ----------
        listener : socket
            Which this closes.
        secret : str
        ranks : iterable of int
        look : callable
            Told again and again who is missing; raises if there is no use in waiting any longer.
        """
        missing = set(ranks)
        with listener:
            listener.settimeout(_PATIENCE)
            while missing:
                look(missing)
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    wire = Wire(connection, secret, leads=True)
                    hello = wire.receive(PEER_SECONDS)
                except WireLost:
                    continue  # somebody else's connection
                if not isinstance(hello, Hello) or hello.rank not in missing:
                    wire.close()
                    continue
                wire.send(Welcome(clock=time.monotonic()))
                missing.remove(hello.rank)
                self._followers.append(Connected(wire, hello, self._changed))
        self._followers.sort(key=lambda one: one.hello.rank)


def places_of(nodes: int, hellos: Sequence[Hello]) -> list[Place]:
    """How the nodes of a run are dealt to processes of the harness: evenly, and in their order.

    Parameters
    ----------
    nodes : int
    hellos : sequence of Hello
        Of all processes; the first of them takes part in every run, the last in those with nodes enough.
    """
    processes = min(nodes, len(hellos))
    host_of = [hellos[node * processes // nodes].host for node in range(nodes)]
    places = []
    for number in range(processes):
        ranks = [node for node in range(nodes) if node * processes // nodes == number]
        host = hellos[number].host
        places.append(
            Place(
                ranks=ranks,
                local_rank=host_of[: ranks[0]].count(host),
                local_size=host_of.count(host),
                group=number,
                groups=processes,
                address=hellos[0].address,
                interface=hellos[number].interface,
            )
        )
    return places


def differences(
    its_software: Mapping[str, str],
    own_software: Mapping[str, str],
    its: Sequence[CellPrint],
    own: Sequence[CellPrint],
    leader: str = "rank 0",
) -> str | None:
    """In words: why a host's runs would not be those that the leader plans; None if they would be."""
    for name, version in own_software.items():
        if its_software.get(name) != version:
            return (
                f"has {name} {its_software.get(name)}, and {leader} has {version}: "
                "install the same on every host"
            )
    for one, other in zip(its, own, strict=False):
        if one.id == other.id:
            continue
        if one.label != other.label:
            break
        for name, value in other.given.items():
            if one.given.get(name) != value:
                return (
                    f"was given another study than {leader}, where {name} of {one.label} is {value}, and "
                    f"here {one.given.get(name)}: start every rank with the same command and study file"
                )
        if one.source != other.source:
            return (
                f"has other sources of {one.label} than {leader} ({one.source} and {other.source}): "
                "install the same build on every host"
            )
        if one.data != other.data:
            return (
                f"has other data for {one.label} than {leader} ({one.data} and {other.data}): "
                "copy the same data to every host"
            )
        if one.policy != other.policy:
            return f"makes another policy of {one.label} than {leader}: give every host the same policy file"
    if [one.id for one in its] != [one.id for one in own]:
        return (
            f"was given another study than {leader}, with other cells: start every rank with the same "
            "command and study file"
        )
    return None


def software_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Version by name of what has to be alike on all hosts."""
    packages = {name: str(environment["packages"][name]) for name in _PACKAGES}
    return {"Python": environment["python"], **packages}


def hello_here(rank: int, address: str) -> Hello:
    """What this process says of itself, where runs listen at `address`."""
    environment = capture()
    return Hello(
        rank=rank,
        host=host_here(),
        address=address,
        interface=interface_of(address),
        machine=machine_name(environment),
        cores=int(environment["cores"]["usable"]),
        software=software_of(environment),
        environment=environment,
    )


class Connected:
    """A follower, as rank 0 sees it."""

    def __init__(self, wire: Wire, hello: Hello, changed: threading.Condition) -> None:
        self.hello = hello
        self.title = f"rank {hello.rank} ({hello.address})"
        self.lost: str | None = None
        self.stopped = False
        self.part: Part | None = None
        self._changed = changed
        self._answers: list[Message] = []
        self.line = Line(wire, self._hear, self._lose)

    def answer(self, kind: type[_Answer]) -> _Answer:
        """Blocks until it has answered with a message of that kind.

        Raises
        ------
        UsageError
            If it cannot take part.
        LauncherError
            If it is lost, or was stopped.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self.lost is not None or self.stopped)
            if not self._answers:
                reason = "was stopped" if self.lost is None else f"was lost: {self.lost}"
                raise LauncherError(f"{self.title} {reason}")
            answer = self._answers.pop(0)
        if isinstance(answer, Refused):
            raise UsageError(f"{self.title} cannot take part: {answer.reason}")
        assert isinstance(answer, kind)
        return answer

    def probed(self) -> Probed | None:
        """What a probe finds on its host; None if it is lost."""
        self.line.send(Probe())
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self.lost is not None)
            if not self._answers:
                return None
            answer = self._answers.pop(0)
        assert isinstance(answer, Probed)
        return answer

    def _hear(self, message: Message) -> None:
        with self._changed:
            if isinstance(message, Stopped):
                self.stopped = True
            elif isinstance(message, Planned | Prepared | Probed | Refused):
                self._answers.append(message)
            elif self.part is not None and getattr(message, "run", None) == self.part.number:
                self.part.hear(message)
            self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        with self._changed:
            self.lost = reason
            self._changed.notify_all()


class Part:
    """The ranks of a run that a follower has to start."""

    def __init__(
        self, number: int, follower: Connected, place: Place, folder: Path, out: IO[bytes], err: IO[bytes]
    ) -> None:
        self.number = number
        self.follower = follower
        self.place = place
        self.vanished: list[int] = []
        self.port: int | None = None
        """Of the store where all ranks of the run meet, if it is here."""
        self.ended: Ended | None = None
        self._folder = folder
        self._out, self._err = out, err

    def start(self, spec: RunSpec, port: int) -> None:
        """Ask for its processes; of port 0, for the store where all meet, too."""
        self.follower.part = self
        self.follower.line.patience = PEER_SECONDS
        place = msgspec.structs.replace(self.place, port=port)
        spec = msgspec.structs.replace(spec, place=place, folder="", data_path=None)
        self.follower.line.send(Start(run=self.number, cell=spec.cell, spec=spec))

    def hear(self, message: Message) -> None:
        if isinstance(message, Said):
            os.write((self._err if message.error else self._out).fileno(), message.content)
        elif isinstance(message, File):
            if message.rank in self.place.ranks and message.kind in FILES:
                write_atomically(FILES[message.kind](self._folder, message.rank), message.content)
        elif isinstance(message, Vanished):
            self.vanished += [rank for rank in message.ranks if rank in self.place.ranks]
        elif isinstance(message, Met):
            self.port = message.port
        elif isinstance(message, Ended):
            self.ended = message

    @property
    def over(self) -> bool:
        return self.ended is not None or self.follower.lost is not None

    @property
    def trouble(self) -> Trouble | None:
        rank = self.place.ranks[0]
        if self.ended is not None:
            if self.ended.reason is None:
                return None
            return Trouble(f"{self.follower.title} cannot start its nodes: {self.ended.reason}", rank)
        if self.follower.lost is None:
            return None
        named = ", ".join(map(str, self.place.ranks))
        nodes = f"node{'s' * (len(self.place.ranks) > 1)} {named}"
        return Trouble(f"the host of {nodes}, {self.follower.title}, was lost: {self.follower.lost}", rank)


class HostsGroup(Group):
    """Ranks of a run on several hosts: some here, perhaps, and the others' at followers.

    The first of these parts holds the store where all meet; the others are started once that is there.
    """

    def __init__(
        self,
        spec: RunSpec,
        local: LocalGroup | None,
        parts: Sequence[Part],
        changed: threading.Condition,
    ) -> None:
        self._spec = spec
        self._local = local
        self._parts = parts
        self._changed = changed
        self._started: list[Part] = []
        self._later = list(parts)
        self._code: int | None = None
        self.launched_at = time.monotonic() if local is None else local.launched_at
        if local is None:
            self._start(self._later.pop(0), 0)

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        if self._local is not None and self._code is None:
            self._code = self._local.wait(seconds)
        if self._later:
            port = self._port(deadline)
            if port is None:
                return self._ended()
            while self._later:
                self._start(self._later.pop(0), port)
        with self._changed:
            if self._local is None or self._code is not None:
                self._changed.wait_for(
                    lambda: all(part.over for part in self._started), max(deadline - time.monotonic(), 0.0)
                )
            return self._ended()

    def end(self) -> int:
        for part in self._started:
            if not part.over:
                part.follower.line.send(End(run=part.number))
        codes = [] if self._local is None else [self._local.end()]
        with self._changed:
            self._changed.wait_for(lambda: all(part.over for part in self._started))
            for part in self._parts:
                part.follower.part = None
                part.follower.line.patience = IDLE_SECONDS
        return self._worst(
            [*codes, *(1 if one.ended is None else one.ended.exit_code for one in self._parts)]
        )

    def vanished(self) -> list[int]:
        here = [] if self._local is None else self._local.vanished()
        return [*here, *(rank for part in self._parts for rank in part.vanished)]

    @property
    def trouble(self) -> Trouble | None:
        return next((part.trouble for part in self._parts if part.trouble is not None), None)

    def failures(self) -> list[Failure]:
        return [
            *([] if self._local is None else self._local.failures()),
            *(one for part in self._parts if part.ended is not None for one in part.ended.failures),
        ]

    def left(self) -> list[str]:
        return [
            *([] if self._local is None else self._local.left()),
            *(one for part in self._parts if part.ended is not None for one in part.ended.left),
        ]

    def out_of_memory(self, rank: int) -> bool:
        if self._local is not None and rank in self._local.ranks:
            return self._local.out_of_memory(rank)
        (part,) = (part for part in self._parts if rank in part.place.ranks)
        return part.ended is not None and part.ended.out_of_memory

    def _start(self, part: Part, port: int) -> None:
        part.start(self._spec, port)
        self._started.append(part)

    def _port(self, deadline: float) -> int | None:
        """Where all ranks meet, if that is known until then."""
        if self._local is not None:
            return read_json(meeting_file(self._local.folder), int)
        first = self._started[0]
        with self._changed:
            self._changed.wait_for(
                lambda: first.port is not None or first.over, max(deadline - time.monotonic(), 0.0)
            )
        return first.port

    def _ended(self) -> int | None:
        """The exit code, if all that was started has ended."""
        codes = [part.ended.exit_code for part in self._started if part.ended is not None]
        if len(codes) < len(self._started) or (self._local is not None and self._code is None):
            return None
        return self._worst(codes if self._code is None else [self._code, *codes])

    @staticmethod
    def _worst(codes: Sequence[int]) -> int:
        return next((code for code in codes if code), 0)
