"""The coordinator of runs on several hosts: it asks an agent on each other host to start its ranks.

The hosts have the nodes of a run in their order. If the coordinator is itself on one of the hosts, it has the
first nodes. The output and the files of an agent's ranks are stored where the ranks of one machine would have
put them.
"""

from __future__ import annotations

import os
import socket
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.agent import fingerprint
from adabench.harness.launch.connection import IDLE_SECONDS, Connection
from adabench.harness.launch.framing import PEER_SECONDS, ConnectionLost, FramedSocket
from adabench.harness.launch.host_rendezvous import host_here
from adabench.harness.launch.launcher import Group, Launcher, LauncherOptions, RunFiles, Trouble
from adabench.harness.launch.local import Local, LocalGroup
from adabench.harness.launch.messages import (
    CellFingerprint,
    Hello,
    Interrupted,
    Kill,
    LogChunk,
    Message,
    Prepare,
    Reply,
    RunEnded,
    RunFile,
    RunMessage,
    Shutdown,
    Start,
    Welcome,
)
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.interfaces import interface_of
from adabench.harness.run.spec import GROUP_FILES, Place, RunSpec, exchange_file, read_json
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import Host
from adabench.results.run_settings import RunSettings
from adabench.results.store import write_atomically

_PACKAGES = ("adabench", "torch", "numpy")
_LOOK_SECONDS = 0.5
"""Interval at which a coordinator checks whether the missing agents can still connect."""


class Coordinator(Launcher):
    """A launcher that coordinates agents, one on each other host.

    Attributes
    ----------
    title : str
        Name of the coordinator in messages.
    """

    title: ClassVar[str] = "rank 0"

    def __init__(self, options: LauncherOptions | None = None) -> None:
        super().__init__(options)
        self.agents: list[AgentConnection] = []
        self._local: Local | None = None
        self._hello: Hello | None = None
        """Both are set if the first nodes of a run are on this host."""

    def __exit__(self, *exception: object) -> None:
        error, reason = exception[1], None
        if isinstance(error, UsageError | LauncherError):
            reason = str(error)
        elif isinstance(error, Exception):
            reason = f"{type(error).__name__}: {error}"
        elif error is not None:
            reason = "it was stopped"
        self._end(reason)

    @abstractmethod
    def check_missing(self, missing: set[int]) -> None:
        """Raise if agents of these ranks cannot connect any more; called repeatedly during the wait."""

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
                    f"with --launcher {self.name} use loopback, which leaves the links as they are"
                )

    def agree(self, cells: Sequence[Cell]) -> None:
        software, own = software_of(capture()), [fingerprint(cell) for cell in cells]
        for agent in self.agents:
            its = agent.reply().cells
            found = differences(agent.hello.software, software, its, own, self.title)
            if found is not None:
                raise UsageError(f"{agent.title} {found}")

    def prepare(self, modules: Sequence[str] = ()) -> None:
        for agent in self.agents:
            agent.send(Prepare(modules=list(modules)))
        if self._local is not None:
            self._local.prepare(modules)
        for agent in self.agents:
            agent.reply()

    def obstacle(self, settings: RunSettings) -> str | None:
        if not settings.pinned:
            return None
        hellos = self.hellos()
        for hello, place in zip(hellos, places_of(settings.nodes, hellos), strict=False):
            if place.local_size > hello.cores:
                return (
                    f"{place.local_size} nodes with a core each need as many cores on the host of rank "
                    f"{hello.rank}, where this job may use {hello.cores}"
                )
        return None

    def begin(self, spec: RunSpec, files: RunFiles) -> Group:
        hosts: list[Local | AgentConnection] = [] if self._local is None else [self._local]
        hosts += self.agents
        places = places_of(spec.nodes, self.hellos())
        return MultiHostGroup(spec, files, list(zip(hosts, places, strict=False)))

    def hosts(self, nodes: int) -> list[Host]:
        hellos = self.hellos()
        return [
            Host(nodes=place.ranks, address=hello.address, interface=hello.interface, machine=hello.machine)
            for hello, place in zip(hellos, places_of(nodes, hellos), strict=False)
        ]

    @property
    def gone(self) -> str | None:
        lost = [agent for agent in self.agents if agent.lost is not None]
        return f"{lost[0].title} was lost: {lost[0].lost}" if lost else None

    @property
    def interrupted(self) -> bool:
        return any(agent.interrupted for agent in self.agents)

    def close(self) -> None:
        self._end(None)

    def hellos(self) -> list[Hello]:
        """Descriptions of all hosts that take part in runs, in the order of their nodes."""
        own = [] if self._hello is None else [self._hello]
        return [*own, *(agent.hello for agent in self.agents)]

    def _end(self, reason: str | None) -> None:
        for agent in self.agents:
            agent.send(Shutdown(reason=reason))
        for agent in self.agents:
            agent.close()
        self.agents = []
        if self._local is not None:
            self._local.close()

    def _accept(self, listener: socket.socket, secret: str, ranks: Iterable[int]) -> None:
        """Wait until agents of these ranks have connected and proved that they have the secret.

        The listener is closed at the end.
        """
        missing = set(ranks)
        with listener:
            listener.settimeout(_LOOK_SECONDS)
            while missing:
                self.check_missing(missing)
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    framed = FramedSocket(connection, secret, coordinates=True)
                    hello = framed.receive(PEER_SECONDS)
                except ConnectionLost:
                    continue  # another program's connection
                if not isinstance(hello, Hello) or hello.rank not in missing:
                    framed.close()
                    continue
                framed.send(Welcome(clock=time.monotonic()))
                missing.remove(hello.rank)
                agent = AgentConnection(framed, hello)
                agent.start()
                self.agents.append(agent)
        self.agents.sort(key=lambda one: one.hello.rank)


class AgentConnection(Connection):
    """An agent, as the coordinator sees it."""

    def __init__(self, framed: FramedSocket, hello: Hello) -> None:
        super().__init__(framed)
        self.hello = hello
        self.title = f"rank {hello.rank} ({hello.address})"
        self.interrupted = False
        self.group: RemoteGroup | None = None
        self._replies: list[Reply] = []
        self._runs = 0

    def receive(self, message: Message) -> None:
        if isinstance(message, Interrupted):
            self.interrupted = True
        elif isinstance(message, Reply):
            self._replies.append(message)
        elif isinstance(message, RunMessage) and self.group is not None and message.run == self.group.run:
            self.group.receive(message)

    def reply(self) -> Reply:
        """Wait for the agent's next reply.

        Raises
        ------
        UsageError
            If the agent cannot take part.
        LauncherError
            If it is lost.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._replies or self.lost is not None)
            if not self._replies:
                raise LauncherError(f"{self.title} was lost: {self.lost}")
            reply = self._replies.pop(0)
        if reply.refusal is not None:
            raise UsageError(f"{self.title} cannot take part: {reply.refusal}")
        return reply

    def begin(self, spec: RunSpec, files: RunFiles) -> RemoteGroup:
        """Have the agent start the ranks that the specification's place lists."""
        self._runs += 1
        self.group = RemoteGroup(self, self._runs, spec, files)
        self.patience = PEER_SECONDS
        self.send(Start(run=self._runs, spec=msgspec.structs.replace(spec, folder="", data=None)))
        return self.group


class RemoteGroup(Group):
    """Ranks of a run that an agent starts.

    Attributes
    ----------
    run : int
        Number of the run in messages.
    """

    def __init__(self, agent: AgentConnection, run: int, spec: RunSpec, files: RunFiles) -> None:
        assert spec.place is not None
        self.run = run
        self.launched_at = time.monotonic()
        self._place = spec.place
        self._agent = agent
        self._files = files
        self._ended: RunEnded | None = None

    def receive(self, message: RunMessage) -> None:
        if isinstance(message, LogChunk):
            os.write((self._files.err if message.error else self._files.out).fileno(), message.content)
        elif isinstance(message, RunFile):
            of_group = message.kind in GROUP_FILES
            if message.number in ([self._place.group] if of_group else self._place.ranks):
                file = exchange_file(self._files.folder, message.kind, message.number)
                write_atomically(file, message.content)
        else:
            self._ended = message

    def wait(self, seconds: float | None) -> int | None:
        """As in `Group`; None also if the agent is lost. Without `seconds`, waits until either."""
        with self._agent.changed:
            self._agent.changed.wait_for(lambda: self._over, seconds)
        return None if self._ended is None else self._ended.exit_code

    def kill(self) -> None:
        """Have the agent kill all that has not ended; does not wait for that."""
        if not self._over:
            self._agent.send(Kill(run=self.run))

    def end(self) -> int:
        self.kill()
        exit_code = self.wait(None)
        self._agent.group = None
        self._agent.patience = IDLE_SECONDS
        return 1 if exit_code is None else exit_code

    @property
    def trouble(self) -> Trouble | None:
        title, ranks = self._agent.title, self._place.ranks
        if self._ended is not None:
            if self._ended.refusal is None:
                return None
            return Trouble(f"{title} cannot start its nodes: {self._ended.refusal}", ranks[0])
        if self._agent.lost is None:
            return None
        nodes = f"node{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return Trouble(f"the host of {nodes}, {title}, was lost: {self._agent.lost}", ranks[0])

    @property
    def _over(self) -> bool:
        return self._ended is not None or self._agent.lost is not None


class MultiHostGroup(Group):
    """Ranks of a run on several hosts, a part of them on each.

    The first part opens the store of the rendezvous. The other parts are started once its port is known.
    """

    def __init__(
        self, spec: RunSpec, files: RunFiles, hosts: Sequence[tuple[Local | AgentConnection, Place]]
    ) -> None:
        self._spec = spec
        self._files = files
        self._parts: list[LocalGroup | RemoteGroup] = []
        self._waiting = list(hosts)
        self._start_next(port=0)
        self.launched_at = self._parts[0].launched_at

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        codes = [part.wait(max(deadline - time.monotonic(), 0.0)) for part in self._parts]
        port = read_json(exchange_file(self._files.folder, "rendezvous", 0), int) if self._waiting else None
        if port is not None:
            while self._waiting:
                self._start_next(port)
            return None
        return None if None in codes else self._worst(codes)

    def end(self) -> int:
        for part in self._parts:
            if isinstance(part, RemoteGroup):
                part.kill()
        return self._worst([*(part.end() for part in self._parts), *(1 for _ in self._waiting)])

    @property
    def trouble(self) -> Trouble | None:
        return next((trouble for part in self._parts if (trouble := part.trouble) is not None), None)

    def _start_next(self, port: int) -> None:
        host, place = self._waiting.pop(0)
        place = msgspec.structs.replace(place, port=port)
        self._parts.append(host.begin(msgspec.structs.replace(self._spec, place=place), self._files))

    @staticmethod
    def _worst(codes: Sequence[int | None]) -> int:
        return next((code for code in codes if code), 0)


def places_of(nodes: int, hellos: Sequence[Hello]) -> list[Place]:
    """Places of the processes of the harness that have nodes of a run, which are distributed evenly in order.

    Parameters
    ----------
    nodes : int
        Number of nodes of the run.
    hellos : sequence of Hello
        Descriptions of all processes. The first process takes part in every run, the last one in runs with
        enough nodes.
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
    its: Sequence[CellFingerprint],
    own: Sequence[CellFingerprint],
    title: str = "rank 0",
) -> str | None:
    """The reason why a host cannot run the cells that the coordinator plans; None if it can."""
    study = f"was given another study than {title}"
    same_study = "start every rank with the same command and study file"
    for name, version in own_software.items():
        if its_software.get(name) != version:
            return (
                f"has {name} {its_software.get(name)}, and {title} has {version}: "
                "install the same on every host"
            )
    for one, other in zip(its, own, strict=False):
        if one.id == other.id:
            continue
        if one.label != other.label:
            break
        for name, value in other.given.items():
            if one.given.get(name) != value:
                here = f"where {name} of {one.label} is {value}, and here {one.given.get(name)}"
                return f"{study}, {here}: {same_study}"
        for kind, found, expected, remedy in (
            ("sources of", one.source, other.source, "install the same build on"),
            ("data for", one.data, other.data, "copy the same data to"),
        ):
            if found != expected:
                values = f"({found} and {expected})"
                return f"has other {kind} {one.label} than {title} {values}: {remedy} every host"
        if one.policy != other.policy:
            return f"makes another policy of {one.label} than {title}: give every host the same policy file"
    if [one.id for one in its] != [one.id for one in own]:
        return f"{study}, with other cells: {same_study}"
    return None


def software_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Versions, by name, of the software that must be equal on all hosts."""
    packages = {name: str(environment["packages"][name]) for name in _PACKAGES}
    return {"Python": environment["python"], **packages}


def introduction(rank: int, address: str) -> Hello:
    """Description of this host, where runs listen at `address`."""
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
