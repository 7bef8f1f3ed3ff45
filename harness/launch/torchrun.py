"""The launcher `torchrun`: the harness itself was started on every host, by torchrun, srun or mpirun.

Rank 0 plans, records and asks the others, the followers, to start their part of each run. What a follower's
ranks write, it sends, and rank 0 keeps it where the ranks of one machine would have put it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.following import Follower, cell_print
from adabench.harness.launch.group import meeting_file
from adabench.harness.launch.launcher import Failure, Group, Launcher, Trouble
from adabench.harness.launch.line import IDLE_SECONDS, Line
from adabench.harness.launch.local import Local, LocalGroup
from adabench.harness.launch.meeting import (
    CONNECT_SECONDS,
    Meeting,
    host_here,
    listen_where,
    meet,
    place_here,
)
from adabench.harness.launch.messages import (
    Bye,
    CellPrint,
    End,
    Ended,
    File,
    Hello,
    Message,
    Planned,
    Prepare,
    Prepared,
    Refused,
    Said,
    Start,
    Stopped,
    Vanished,
    Welcome,
)
from adabench.harness.launch.wire import PEER_SECONDS, Wire, WireLost
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.interfaces import interface_of
from adabench.harness.planning.cell import Cell
from adabench.harness.planning.study import Study
from adabench.harness.trial.spec import FILES, Place, TrialSpec, read_told
from adabench.results.record import Host, RunSettings
from adabench.results.store import write_atomically

__all__ = ["LAUNCHER", "Torchrun", "differences", "places_of"]

_PACKAGES = ("adabench", "torch", "numpy")


class Torchrun(Launcher):
    """The harness itself is started on every host, by torchrun, srun or mpirun; rank 0 asks the others."""

    name: ClassVar[str] = "torchrun"

    def __init__(self, listen: str | None = None, say: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(listen, say)
        self._place = place_here()
        self._followers: list[_Connected] = []
        self._changed = threading.Condition()
        self._runs = 0
        self._local = Local()
        self._follower: Follower | None = None
        self._address, why = "127.0.0.1", ""
        if self._place is not None:
            self._address, why = listen_where(self._place, listen)
            # What runs here listens there, too.
            os.environ["ADAPS_LISTEN"] = self._address
            say(
                f"rank {self._place.rank} of {self._place.world_size} listens at {self._address} "
                f"({interface_of(self._address)}): {why}; --listen names another interface or address"
            )
        self._hello = _hello(0 if self._place is None else self._place.rank, self._address)

    def __enter__(self) -> Launcher:
        if self._place is None:
            return self
        meeting = meet(self._place, self._address)
        if self._place.rank == 0:
            try:
                self._welcome_all(meeting)
            except BaseException:
                self.close()
                raise
        else:
            self._follower = _joined(meeting, self._hello)
        return self

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

    @property
    def follows(self) -> bool:
        return self._follower is not None

    def follow(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        assert self._follower is not None
        return self._follower.follow(plan, stopped)

    def check(self, study: Study) -> None:
        for settings in study.settings:
            if settings.interleaved:
                raise UsageError(
                    "--interleaved lets runs of one machine take turns: leave it out with --launcher torchrun"
                )
            if settings.network.startswith("namespaces:"):
                raise UsageError(
                    f"network {settings.network} is made of network namespaces of one machine: "
                    "with --launcher torchrun say loopback, which leaves the links as they are"
                )

    def agree(self, cells: Sequence[Cell]) -> None:
        own = [cell_print(cell) for cell in cells]
        for follower in self._followers:
            answer = follower.answer(Planned, self._changed)
            assert isinstance(answer, Planned)
            found = differences(follower.hello.software, self._hello.software, answer.cells, own)
            if found is not None:
                raise UsageError(f"{follower.title} {found}")

    def prepare(self, modules: Sequence[str] = ()) -> None:
        for follower in self._followers:
            follower.line.send(Prepare(modules=list(modules)))
        self._local.prepare(modules)
        for follower in self._followers:
            follower.answer(Prepared, self._changed)

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

    def begin(self, spec: TrialSpec, folder: Path, out: IO[bytes], err: IO[bytes]) -> Group:
        places = self._places(spec.nodes)
        with self._changed:
            self._runs += 1
            number = self._runs
        assert self._local.server is not None
        local = LocalGroup(
            self._local.server, msgspec.structs.replace(spec, place=places[0]), folder, out, err
        )
        parts = [
            _Part(number, follower, place, folder, out, err)
            for follower, place in zip(self._followers, places[1:], strict=False)
        ]
        return _HostsGroup(spec, local, places[0], parts, self._changed)

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
        if self._follower is not None:
            self._follower.close()
        self._followers, self._follower = [], None
        self._local.close()

    def _hellos(self) -> list[Hello]:
        return [self._hello, *(follower.hello for follower in self._followers)]

    def _places(self, nodes: int) -> list[Place]:
        return places_of(nodes, self._hellos())

    def _welcome_all(self, meeting: Meeting) -> None:
        """Wait until all other ranks have connected and proved that they know the secret."""
        assert meeting.listener is not None
        missing = set(range(1, meeting.place.world_size))
        deadline = time.monotonic() + CONNECT_SECONDS
        with meeting.listener as listener:
            while missing:
                listener.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    ranks = ", ".join(map(str, sorted(missing)))
                    raise LauncherError(f"rank {ranks} met the others and did not connect") from None
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    wire = Wire(connection, meeting.secret, leads=True)
                    hello = wire.receive(PEER_SECONDS)
                except WireLost:
                    continue  # somebody else's connection
                if not isinstance(hello, Hello) or hello.rank not in missing:
                    wire.close()
                    continue
                wire.send(Welcome(clock=time.monotonic()))
                missing.remove(hello.rank)
                self._followers.append(_Connected(wire, hello, self._changed))
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
) -> str | None:
    """In words: why a host's runs would not be those of rank 0; None if they would be."""
    for name, version in own_software.items():
        if its_software.get(name) != version:
            return (
                f"has {name} {its_software.get(name)}, and rank 0 has {version}: "
                "install the same on every host"
            )
    for one, other in zip(its, own, strict=False):
        if one.id == other.id:
            continue
        if one.label != other.label:
            break
        if one.source != other.source:
            return (
                f"has other sources of {one.label} than rank 0 ({one.source} and {other.source}): "
                "install the same build on every host"
            )
        if one.data != other.data:
            return (
                f"has other data for {one.label} than rank 0 ({one.data} and {other.data}): "
                "copy the same data to every host"
            )
        if one.policy != other.policy:
            return f"makes another policy of {one.label} than rank 0: give every host the same policy file"
    if [one.id for one in its] != [one.id for one in own]:
        return "was given another study than rank 0: start every rank with the same command"
    return None


def _hello(rank: int, address: str) -> Hello:
    environment = capture()
    packages = {name: str(environment["packages"][name]) for name in _PACKAGES}
    return Hello(
        rank=rank,
        host=host_here(),
        address=address,
        interface=interface_of(address),
        machine=machine_name(environment),
        cores=int(environment["cores"]["usable"]),
        software={"Python": environment["python"], **packages},
    )


def _joined(meeting: Meeting, hello: Hello) -> Follower:
    where = f"rank 0 at {meeting.leader[0]}"
    deadline = time.monotonic() + CONNECT_SECONDS
    try:
        connection = socket.create_connection(meeting.leader, CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(connection, meeting.secret, leads=False)
        wire.send(hello)
        welcome = wire.receive(max(deadline - time.monotonic(), 0.0))
    except OSError as error:
        raise LauncherError(f"{where} cannot be reached: {error}") from error
    if not isinstance(welcome, Welcome):
        raise LauncherError(f"{where} does not answer")
    return Follower(wire, welcome.clock - time.monotonic())


class _Connected:
    """A follower, as rank 0 sees it."""

    def __init__(self, wire: Wire, hello: Hello, changed: threading.Condition) -> None:
        self.hello = hello
        self.title = f"rank {hello.rank} ({hello.address})"
        self.lost: str | None = None
        self.stopped = False
        self.part: _Part | None = None
        self._changed = changed
        self._answers: list[Message] = []
        self.line = Line(wire, self._hear, self._lose)

    def answer(self, kind: type[Message], changed: threading.Condition) -> Message:
        """Blocks until it has answered with a message of that kind.

        Raises
        ------
        UsageError
            If it cannot take part.
        LauncherError
            If it is lost, or was stopped.
        """
        with changed:
            changed.wait_for(lambda: self._answers or self.lost is not None or self.stopped)
            if not self._answers:
                reason = "was stopped" if self.lost is None else f"was lost: {self.lost}"
                raise LauncherError(f"{self.title} {reason}")
            answer = self._answers.pop(0)
        if isinstance(answer, Refused):
            raise UsageError(f"{self.title} cannot take part: {answer.reason}")
        assert isinstance(answer, kind)
        return answer

    def _hear(self, message: Message) -> None:
        with self._changed:
            if isinstance(message, Stopped):
                self.stopped = True
            elif isinstance(message, Planned | Prepared | Refused):
                self._answers.append(message)
            elif self.part is not None and getattr(message, "run", None) == self.part.number:
                self.part.hear(message)
            self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        with self._changed:
            self.lost = reason
            self._changed.notify_all()


class _Part:
    """The ranks of a run that a follower has to start."""

    def __init__(
        self, number: int, follower: _Connected, place: Place, folder: Path, out: IO[bytes], err: IO[bytes]
    ) -> None:
        self.number = number
        self.follower = follower
        self.place = place
        self.vanished: list[int] = []
        self.ended: Ended | None = None
        self._folder = folder
        self._out, self._err = out, err

    def start(self, spec: TrialSpec, port: int) -> None:
        self.follower.part = self
        self.follower.line.patience = PEER_SECONDS
        place = msgspec.structs.replace(self.place, port=port)
        spec = msgspec.structs.replace(spec, place=place, folder="", data=None)
        self.follower.line.send(Start(run=self.number, cell=spec.cell, spec=spec))

    def hear(self, message: Message) -> None:
        if isinstance(message, Said):
            os.write((self._err if message.error else self._out).fileno(), message.content)
        elif isinstance(message, File):
            if message.rank in self.place.ranks and message.kind in FILES:
                write_atomically(FILES[message.kind](self._folder, message.rank), message.content)
        elif isinstance(message, Vanished):
            self.vanished += [rank for rank in message.ranks if rank in self.place.ranks]
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


class _HostsGroup(Group):
    """Ranks of a run on several hosts: some here, with the store where all meet, the others' at followers."""

    def __init__(
        self,
        spec: TrialSpec,
        local: LocalGroup,
        place: Place,
        parts: Sequence[_Part],
        changed: threading.Condition,
    ) -> None:
        self._spec = spec
        self._local = local
        self._place = place
        self._parts = parts
        self._changed = changed
        self._started = False
        self._code: int | None = None
        self.launched_at = local.launched_at

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        if self._code is None:
            self._code = self._local.wait(seconds)
        if not self._started:
            port = read_told(meeting_file(self._local.folder), int)
            if port is None:
                return self._code
            for part in self._parts:
                part.start(self._spec, port)
            self._started = True
        with self._changed:
            if self._code is not None:
                self._changed.wait_for(
                    lambda: all(part.over for part in self._parts), max(deadline - time.monotonic(), 0.0)
                )
            ended = [part.ended.exit_code for part in self._parts if part.ended is not None]
        if self._code is None or len(ended) < len(self._parts):
            return None
        return self._worst([self._code, *ended])

    def end(self) -> int:
        if self._started:
            for part in self._parts:
                if not part.over:
                    part.follower.line.send(End(run=part.number))
        code = self._local.end()
        with self._changed:
            if self._started:
                self._changed.wait_for(lambda: all(part.over for part in self._parts))
            for part in self._parts:
                part.follower.part = None
                part.follower.line.patience = IDLE_SECONDS
        others = [1 if part.ended is None else part.ended.exit_code for part in self._parts]
        return self._worst([code, *others])

    def vanished(self) -> list[int]:
        return [*self._local.vanished(), *(rank for part in self._parts for rank in part.vanished)]

    @property
    def trouble(self) -> Trouble | None:
        return next((part.trouble for part in self._parts if part.trouble is not None), None)

    def failures(self) -> list[Failure]:
        return [
            *self._local.failures(),
            *(one for part in self._parts if part.ended is not None for one in part.ended.failures),
        ]

    def left(self) -> list[str]:
        return [
            *self._local.left(),
            *(one for part in self._parts if part.ended is not None for one in part.ended.left),
        ]

    def out_of_memory(self, rank: int) -> bool:
        if rank in self._place.ranks:
            return self._local.out_of_memory(rank)
        (part,) = (part for part in self._parts if rank in part.place.ranks)
        return part.ended is not None and part.ended.out_of_memory

    @staticmethod
    def _worst(codes: Sequence[int]) -> int:
        return next((code for code in codes if code), 0)


LAUNCHER = Torchrun
