"""What the other ranks than 0 do under the launcher `torchrun`: start the processes that rank 0 asks for."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.launch.fork_server import ForkServer, ForkServerError
from adabench.harness.launch.launcher import Unlaunchable
from adabench.harness.launch.line import IDLE_SECONDS, Line
from adabench.harness.launch.local import LocalGroup
from adabench.harness.launch.messages import (
    Bye,
    CellPrint,
    End,
    Ended,
    File,
    Message,
    Planned,
    Prepare,
    Prepared,
    Refused,
    Said,
    Start,
    Stopped,
    Vanished,
)
from adabench.harness.launch.watch import purpose
from adabench.harness.launch.wire import PEER_SECONDS, Wire
from adabench.harness.machine.scratch import scratch_folder
from adabench.harness.planning.cell import Cell
from adabench.harness.trial.spec import FILES, RankError

__all__ = ["Follower", "cell_print"]

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_CHUNK = 1 << 20


def cell_print(cell: Cell) -> CellPrint:
    """What has to be alike of a cell on all hosts."""
    return CellPrint(id=cell.id, label=cell.label, data=cell.data, source=cell.source, policy=cell.policy)


class Follower:
    """This process, which works for rank 0.

    Parameters
    ----------
    wire : Wire
        To the leader, which has said welcome.
    ahead : float
        Seconds by which the leader's monotonic clock is ahead of this machine's.
    """

    def __init__(self, wire: Wire, ahead: float) -> None:
        self._ahead = ahead
        self._asked: queue.Queue[Message] = queue.Queue()
        self._lost: str | None = None
        self._server: ForkServer | None = None
        self._line = Line(wire, self._asked.put, self._lose)

    def follow(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
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
                    raise LauncherError(f"rank 0 has ended: {asked.reason}")
                return told
            if isinstance(asked, Prepare):
                self._prepare(asked)
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
                raise LauncherError(f"rank 0 is gone: {self._lost}") from None
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
        self._read = {"out": 0, "err": 0}

    def forward(self) -> None:
        for name in self._read:
            self._forward_text(name)
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
