"""What a process of the harness does that follows another one: start the processes that its leader wants."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.connection import IDLE_SECONDS, Line
from adabench.harness.launch.fork_server import ForkServer, ForkServerError
from adabench.harness.launch.framing import PEER_SECONDS, Wire
from adabench.harness.launch.host_rendezvous import CONNECT_SECONDS
from adabench.harness.launch.launcher import Unlaunchable
from adabench.harness.launch.local import LocalGroup
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
from adabench.harness.launch.watch import purpose
from adabench.harness.machine.environment import probe
from adabench.harness.machine.scratch import scratch_folder
from adabench.harness.run.spec import FILES, RankError, read_told
from adabench.harness.study.cell import Cell

__all__ = ["Follower", "cell_print", "joined"]

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_CHUNK = 1 << 20


def cell_print(cell: Cell) -> CellPrint:
    """What has to be alike of a cell on all hosts."""
    given = {**cell.settings(), **cell.recorded_params}
    return CellPrint(
        id=cell.id,
        label=cell.label,
        given=msgspec.json.decode(msgspec.json.encode(given)),  # as it arrives: a tuple is a list there
        data=cell.data,
        source=cell.source,
        policy=cell.policy,
    )


def joined(leader: tuple[str, int], secret: str, hello: Hello, title: str) -> Follower:
    """Connect to the leader, and say who this is.

    Parameters
    ----------
    leader : tuple of str and int
        Where it waits.
    secret : str
        That it has to know, too.
    hello : Hello
    title : str
        What a sentence calls it.

    Raises
    ------
    LauncherError
        If it cannot be reached, or does not answer.
    """
    where = f"{title} at {leader[0]}"
    deadline = time.monotonic() + CONNECT_SECONDS
    try:
        connection = socket.create_connection(leader, CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(connection, secret, leads=False)
        wire.send(hello)
        welcome = wire.receive(max(deadline - time.monotonic(), 0.0))
    except OSError as error:
        raise LauncherError(f"{where} cannot be reached: {error}") from error
    if not isinstance(welcome, Welcome):
        raise LauncherError(f"{where} does not answer")
    return Follower(wire, welcome.clock - time.monotonic(), title)


class Follower:
    """This process, which works for the leader.

    Parameters
    ----------
    wire : Wire
        To the leader, which has said welcome.
    ahead : float
        Seconds by which the leader's monotonic clock is ahead of this machine's.
    title : str
        What a sentence calls the leader.
    """

    def __init__(self, wire: Wire, ahead: float, title: str) -> None:
        self._ahead = ahead
        self._title = title
        self._asked: queue.Queue[Message] = queue.Queue()
        self._lost: str | None = None
        self._server: ForkServer | None = None
        self._line = Line(wire, self._asked.put, self._lose)

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        """Do what the leader asks until it needs nothing more.

        Parameters
        ----------
        plan : callable
            Makes the cells of the study that this process was given, too.
        stopped : callable
            Whether the user wants to end it.

        Returns
        -------
        bool
            Whether the user did.

        Raises
        ------
        UsageError
            If this process cannot take part.
        LauncherError
            If the leader is gone, or has found something wrong.
        """
        try:
            cells = {cell.id: cell for cell in plan()}
        except UsageError as error:
            self._line.send(Refused(reason=str(error)))
            raise
        self._line.send(Planned(cells=[cell_print(cell) for cell in cells.values()]))
        told = False
        while True:
            if stopped() and not told:
                told = True
                self._line.send(Stopped())
            asked = self._next(_LOOK_SECONDS)
            if isinstance(asked, Bye):
                if asked.reason is not None:
                    raise LauncherError(f"{self._title} has ended: {asked.reason}")
                return told
            if isinstance(asked, Prepare):
                self._prepare(asked)
            elif isinstance(asked, Probe):
                load, seconds = probe()
                self._line.send(Probed(load=load, seconds=seconds))
            elif isinstance(asked, Start):
                self._line.patience = PEER_SECONDS
                told = self._run(asked, cells, stopped, told)
                self._line.patience = IDLE_SECONDS

    def close(self) -> None:
        """End all processes, and the connection."""
        if self._server is not None:
            self._server.close()
        self._line.close()

    def _lose(self, reason: str) -> None:
        self._lost = reason

    def _next(self, seconds: float) -> Message | None:
        """What the leader asks for next, within so many seconds."""
        try:
            return self._asked.get(timeout=seconds)
        except queue.Empty:
            if self._lost is not None:
                raise LauncherError(f"{self._title} is gone: {self._lost}") from None
            return None

    def _prepare(self, asked: Prepare) -> None:
        if self._server is None:
            self._server = ForkServer(asked.modules)
        try:
            self._server.start()
        except ForkServerError as error:
            self._line.send(Refused(reason=str(error)))
        else:
            self._line.send(Prepared())

    def _run(self, asked: Start, cells: Mapping[str, Cell], stopped: Callable[[], bool], told: bool) -> bool:
        """One run; gives whether the leader was told that the user wants to end."""
        assert self._server is not None
        spec = msgspec.structs.replace(asked.spec, data=cells[asked.cell].data_path)
        with (
            scratch_folder(purpose(spec)) as folder,
            (folder / "out").open("ab") as out,
            (folder / "err").open("ab") as err,
        ):
            (folder / "tmp").mkdir()
            try:
                group = LocalGroup(self._server, spec, folder, out, err)
            except Unlaunchable as error:
                self._line.send(Ended(run=asked.run, exit_code=1, reason=str(error)))
                return told
            forwarder = _Forwarder(self._line, asked.run, folder, group, self._ahead)
            try:
                while group.wait(_POLL_SECONDS) is None:
                    forwarder.forward()
                    if stopped() and not told:
                        told = True
                        self._line.send(Stopped())
                    if isinstance(self._next(0.0), End | Bye):
                        break
            finally:
                exit_code = group.end()
            forwarder.forward()
            spec_ranks = group.ranks
            self._line.send(
                Ended(
                    run=asked.run,
                    exit_code=exit_code,
                    failures=[
                        msgspec.structs.replace(one, time=one.time + self._ahead) for one in group.failures()
                    ],
                    left=[*group.left(), *(f"file {path.name}" for path in (folder / "tmp").iterdir())],
                    out_of_memory=group.out_of_memory(spec_ranks[0]),
                )
            )
        return told


class _Forwarder:
    """Tells the leader what the ranks of a run have written since it was last told."""

    def __init__(self, line: Line, run: int, folder: Path, group: LocalGroup, ahead: float) -> None:
        self._line = line
        self._run = run
        self._folder = folder
        self._group = group
        self._ahead = ahead
        self._told: dict[Path, bytes] = {}
        self._vanished: set[int] = set()
        self._port: int | None = None
        self._read = {"out": 0, "err": 0}

    def forward(self) -> None:
        for name in self._read:
            self._forward_text(name)
        if self._port is None:
            self._port = read_told(meeting_file(self._folder), int)
            if self._port is not None:
                self._line.send(Met(run=self._run, port=self._port))
        # Looked for first: what a rank wrote before it ended is then told before that.
        vanished = set(self._group.vanished()) - self._vanished
        for rank in self._group.ranks:
            for kind, place in FILES.items():
                self._forward_file(rank, kind, place(self._folder, rank))
        if vanished:
            self._vanished |= vanished
            self._line.send(Vanished(run=self._run, ranks=sorted(vanished)))

    def _forward_text(self, name: str) -> None:
        with (self._folder / name).open("rb") as file:
            file.seek(self._read[name])
            while content := file.read(_CHUNK):
                self._read[name] += len(content)
                self._line.send(Said(run=self._run, error=name == "err", content=content))

    def _forward_file(self, rank: int, kind: str, file: Path) -> None:
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return
        if self._told.get(file) == content:
            return
        self._told[file] = content
        if kind == "error":
            error = msgspec.json.decode(content, type=RankError)
            content = msgspec.json.encode(msgspec.structs.replace(error, at=error.at + self._ahead))
        self._line.send(File(run=self._run, rank=rank, kind=kind, content=content))
