"""An agent: a process of the harness that starts ranks on its host for the coordinator of a session."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.connection import IDLE_SECONDS, Connection
from adabench.harness.launch.fork_server import ForkServerError
from adabench.harness.launch.framing import PEER_SECONDS, FramedSocket
from adabench.harness.launch.host_rendezvous import CONNECT_SECONDS
from adabench.harness.launch.launcher import Failure, RunFiles, Unlaunchable, run_files
from adabench.harness.launch.local import Local
from adabench.harness.launch.messages import (
    CellFingerprint,
    Hello,
    Interrupted,
    Kill,
    LogChunk,
    Message,
    Prepare,
    Probe,
    Reply,
    RunEnded,
    RunFile,
    Shutdown,
    Start,
    Welcome,
)
from adabench.harness.launch.watch import purpose
from adabench.harness.machine.environment import probe
from adabench.harness.run.spec import GROUP_FILES, RANK_FILES, FileKind, RankError, exchange_file
from adabench.harness.study.cell import Cell

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_CHUNK = 1 << 20


def fingerprint(cell: Cell) -> CellFingerprint:
    """The properties of a cell that must be equal on all hosts."""
    given = {**cell.settings(), **cell.recorded_params}
    return CellFingerprint(
        id=cell.id,
        label=cell.label,
        given=msgspec.json.decode(msgspec.json.encode(given)),  # In a received message, tuples are lists.
        data=cell.data,
        source=cell.source,
        policy=cell.policy,
    )


def connect_agent(coordinator: tuple[str, int], secret: str, hello: Hello, title: str) -> Agent:
    """Connect to the coordinator and introduce this host.

    Parameters
    ----------
    coordinator : tuple of str and int
        Address and port where the coordinator waits.
    secret : str
        Secret that this host shares with the coordinator.
    hello : Hello
        Introduction of this host.
    title : str
        Name of the coordinator in messages.

    Raises
    ------
    LauncherError
        If it cannot be reached, or does not answer.
    """
    where = f"{title} at {coordinator[0]}"
    deadline = time.monotonic() + CONNECT_SECONDS
    try:
        connection = socket.create_connection(coordinator, CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framed = FramedSocket(connection, secret, coordinates=False)
        framed.send(hello)
        welcome = framed.receive(max(deadline - time.monotonic(), 0.0))
    except OSError as error:
        raise LauncherError(f"{where} cannot be reached: {error}") from error
    if not isinstance(welcome, Welcome):
        raise LauncherError(f"{where} does not answer")
    agent = Agent(framed, welcome.clock - time.monotonic(), title)
    agent.start()
    return agent


class Agent(Connection):
    """A process that starts ranks for the coordinator.

    Parameters
    ----------
    framed : FramedSocket
        Connection to the coordinator, which has sent its welcome.
    ahead : float
        Seconds by which the coordinator's monotonic clock is ahead of this machine's.
    title : str
        Name of the coordinator in messages.
    """

    def __init__(self, framed: FramedSocket, ahead: float, title: str) -> None:
        super().__init__(framed)
        self._ahead = ahead
        self._title = title
        self._requests: queue.Queue[Message] = queue.Queue()
        self._local = Local()
        self._cells: dict[str, Cell] = {}
        self._stopped: Callable[[], bool] = lambda: False
        self._interrupted = False

    def receive(self, message: Message) -> None:
        self._requests.put(message)

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        """Execute the coordinator's requests until it needs nothing more.

        Parameters and result are as in `Launcher.serve`.

        Raises
        ------
        UsageError
            If this process cannot take part.
        LauncherError
            If the coordinator is gone, or has ended with an error.
        """
        self._stopped = stopped
        try:
            self._cells = {cell.id: cell for cell in plan()}
        except UsageError as error:
            self.send(Reply(refusal=str(error)))
            raise
        self.send(Reply(cells=[fingerprint(cell) for cell in self._cells.values()]))
        while True:
            request = self._next(_LOOK_SECONDS)
            if isinstance(request, Prepare):
                self.send(self._prepare(request))
            elif isinstance(request, Probe):
                self.send(Reply(probe=probe()))
            elif isinstance(request, Start):
                self.patience = PEER_SECONDS
                self._run(request)
                self.patience = IDLE_SECONDS
            elif isinstance(request, Shutdown):
                if request.reason is not None:
                    raise LauncherError(f"{self._title} has ended: {request.reason}")
                return self._interrupted

    def close(self) -> None:
        """End all processes, and the connection."""
        self._local.close()
        super().close()

    def _next(self, seconds: float) -> Message | None:
        """The coordinator's next request, if one arrives within `seconds`; reports an interruption."""
        if self._stopped() and not self._interrupted:
            self._interrupted = True
            self.send(Interrupted())
        try:
            return self._requests.get(timeout=seconds)
        except queue.Empty:
            if self.lost is not None:
                raise LauncherError(f"{self._title} is gone: {self.lost}") from None
            return None

    def _prepare(self, request: Prepare) -> Reply:
        try:
            self._local.prepare(request.modules)
        except ForkServerError as error:
            return Reply(refusal=str(error))
        return Reply()

    def _run(self, request: Start) -> None:
        """Start this host's ranks of a run, report their progress, and end them."""
        spec = msgspec.structs.replace(request.spec, data_path=self._cells[request.spec.cell].data_path)
        with run_files(purpose(spec)) as files:
            try:
                group = self._local.begin(spec, files)
            except Unlaunchable as error:
                self.send(RunEnded(run=request.run, exit_code=1, refusal=str(error)))
                return
            reporter = RunReporter(self, request, files, self._ahead)
            try:
                while group.wait(_POLL_SECONDS) is None:
                    reporter.report()
                    if isinstance(self._next(0.0), Kill | Shutdown):
                        break
            finally:
                exit_code = group.end()
            reporter.report()
            self.send(RunEnded(run=request.run, exit_code=exit_code))


class RunReporter:
    """Sends the coordinator all output and files of a run that are new since the last report."""

    def __init__(self, agent: Connection, start: Start, files: RunFiles, ahead: float) -> None:
        place = start.spec.place
        assert place is not None
        self._agent = agent
        self._run = start.run
        self._files = files
        self._ahead = ahead
        self._kinds = [(kind, rank) for rank in place.ranks for kind in RANK_FILES]
        self._kinds += [(kind, place.group) for kind in GROUP_FILES]
        self._reported: dict[Path, bytes] = {}
        self._bytes_sent = {False: 0, True: 0}

    def report(self) -> None:
        self._report_output(self._files.out.name, error=False)
        self._report_output(self._files.err.name, error=True)
        for kind, number in self._kinds:
            self._report_file(kind, number)

    def _report_output(self, name: str, error: bool) -> None:
        with open(name, "rb") as file:
            file.seek(self._bytes_sent[error])
            while content := file.read(_CHUNK):
                self._bytes_sent[error] += len(content)
                self._agent.send(LogChunk(run=self._run, error=error, content=content))

    def _report_file(self, kind: FileKind, number: int) -> None:
        path = exchange_file(self._files.folder, kind, number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        if self._reported.get(path) == content:
            return
        self._reported[path] = content
        if kind == "error":
            error = msgspec.json.decode(content, type=RankError)
            content = msgspec.json.encode(msgspec.structs.replace(error, at=error.at + self._ahead))
        elif kind == "failures":
            failures = msgspec.json.decode(content, type=list[Failure])
            content = msgspec.json.encode(
                [msgspec.structs.replace(one, time=one.time + self._ahead) for one in failures]
            )
        self._agent.send(RunFile(run=self._run, kind=kind, number=number, content=content))
