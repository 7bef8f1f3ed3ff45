"""The launcher `local`: all ranks of a run are processes of this machine."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import IO, ClassVar

import msgspec
import psutil

from adabench.harness.errors import UsageError
from adabench.harness.launch.fork_server import ForkServer, ForkServerError
from adabench.harness.launch.launcher import (
    Failure,
    Group,
    Launcher,
    Outcome,
    Supervision,
    Trouble,
    Unlaunchable,
)
from adabench.harness.launch.process_group import failures_file, leftovers_file
from adabench.harness.launch.watch import launch
from adabench.harness.machine.link_probe import probe_link
from adabench.harness.machine.namespaces import NamespacesUnavailable, NodeLinks, link_of
from adabench.harness.machine.quota import Quota, QuotaUnavailable
from adabench.harness.run.spec import (
    NETWORK_VARIABLE,
    RankState,
    RunSpec,
    error_file,
    read_json,
    result_file,
    state_file,
)
from adabench.results.record import Link, RunSettings

__all__ = ["LAUNCHER", "Local", "LocalGroup", "launch_unrecorded"]


class Local(Launcher):
    """All processes on this machine; the runs' ranks are forks of a process that has imported torch."""

    name: ClassVar[str] = "local"

    def __init__(
        self,
        listen: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        job: Sequence[str] = (),
    ) -> None:
        super().__init__(listen, say, job)
        if listen is not None:
            raise UsageError(
                f"--listen {listen} says where other hosts reach this one, but with --launcher local "
                "there are none"
            )
        self.server: ForkServer | None = None
        """What its processes are forks of, once it was made ready."""

    def __enter__(self) -> Launcher:
        rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        if ranks not in ("", "1"):
            raise UsageError(
                f"this process is rank {rank} of {ranks}, by RANK and WORLD_SIZE: say --launcher torchrun to "
                "use all of them, or unset both"
            )
        return self

    def prepare(self, modules: Sequence[str] = ()) -> None:
        if self.server is None:
            self.server = ForkServer(modules)
        self.server.start()

    def obstacle(self, settings: RunSettings) -> str | None:
        cores = len(os.sched_getaffinity(0))
        if settings.pinned and settings.nodes > cores:
            return (
                f"{settings.nodes} nodes with a core each need {settings.nodes} cores: "
                f"this process may use {cores}"
            )
        return None

    def begin(self, spec: RunSpec, folder: Path, out: IO[bytes], err: IO[bytes]) -> Group:
        assert self.server is not None
        link = link_of(spec.network)
        group: LocalGroup
        quotas = ExitStack()
        with ExitStack() as context:
            context.enter_context(quotas)
            try:
                folders = {
                    rank: str(quotas.enter_context(Quota(cores)).folder)
                    for rank, cores in _cores(spec).items()
                }
                spec = msgspec.structs.replace(spec, quotas=folders)
                links = None if link is None else context.enter_context(NodeLinks(link, spec.nodes))
            except (QuotaUnavailable, NamespacesUnavailable) as error:
                raise Unlaunchable(str(error), "skipped") from error
            if links is None:
                group = LocalGroup(self.server, spec, folder, out, err, quotas)
            else:
                group = _LinkedGroup(links, self.server, spec, folder, out, err, quotas)
            context.pop_all()  # it ends them
        return group

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


def launch_unrecorded(server: ForkServer, spec: RunSpec, timeout: float) -> Outcome:
    """Run one cell once, for its outcome only: its output is thrown away."""
    launcher = Local()
    launcher.server = server
    launcher.prepare()
    with tempfile.TemporaryDirectory() as folder:
        return launch(launcher, spec, Path(folder) / "log", Supervision(timeout))


class LocalGroup(Group):
    """Ranks of a run that are processes of this machine: forks of a server of forks.

    Parameters
    ----------
    server : ForkServer
        Started.
    spec, folder, out, err
        As in `Launcher.begin`; a place in the specification says which ranks.
    quotas : context manager, optional
        Those of its nodes; removed at the end.

    Attributes
    ----------
    folder : Path
    ranks : list of int

    Raises
    ------
    Unlaunchable
        If the server of forks is gone.
    """

    def __init__(
        self,
        server: ForkServer,
        spec: RunSpec,
        folder: Path,
        out: IO[bytes],
        err: IO[bytes],
        quotas: AbstractContextManager[object] | None = None,
    ) -> None:
        self.folder = folder
        self._quotas = quotas or nullcontext()
        self.ranks = list(range(spec.nodes)) if spec.place is None else spec.place.ranks
        self._pids: dict[int, int] = {}
        self._oom_kills = _oom_kills()
        self.launched_at = time.monotonic()
        spec = msgspec.structs.replace(spec, folder=str(folder), launched_at=self.launched_at)
        spec_file = folder / "spec.json"
        spec_file.write_bytes(msgspec.json.encode(spec))
        try:
            self._fork = server.fork(
                *(
                    "adabench.harness.launch.process_group:run_group",
                    [str(spec_file)],
                    _environment(spec, folder),
                ),
                *(out.fileno(), err.fileno()),
            )
        except ForkServerError as error:
            raise Unlaunchable(str(error)) from error

    def wait(self, seconds: float) -> int | None:
        return self._fork.wait(seconds)

    def end(self) -> int:
        with self._quotas:
            return self._fork.end()

    def vanished(self) -> list[int]:
        for rank in self.ranks:
            state = read_json(state_file(self.folder, rank), RankState)
            if state is not None:
                self._pids[rank] = state.pid
        return [rank for rank, pid in self._pids.items() if self._has_vanished(rank, pid)]

    def failures(self) -> list[Failure]:
        return read_json(failures_file(self.folder), list[Failure]) or []

    def left(self) -> list[str]:
        commands = read_json(leftovers_file(self.folder), list[str]) or []
        return [f"process {command}" for command in commands]

    def out_of_memory(self, rank: int) -> bool:
        return _oom_kills() > self._oom_kills

    def _has_vanished(self, rank: int, pid: int) -> bool:
        try:
            alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            alive = False
        # The process is looked for first: a rank writes its result before it exits, so a rank that is gone
        # and has not written one never will.
        said = result_file(self.folder, rank).exists() or error_file(self.folder, rank).exists()
        return not alive and not said


class _LinkedGroup(LocalGroup):
    """Ranks in network namespaces of their own, and the links between them."""

    def __init__(
        self,
        links: NodeLinks,
        server: ForkServer,
        spec: RunSpec,
        folder: Path,
        out: IO[bytes],
        err: IO[bytes],
        quotas: AbstractContextManager[object],
    ) -> None:
        self._links = links
        self._failure: str | None = None
        try:
            self._probe = probe_link(links.namespaces)
        except OSError as error:
            raise Unlaunchable(f"the links between the namespaces cannot be measured: {error}") from error
        self._cpu_before = links.cpu_seconds()
        spec = msgspec.structs.replace(spec, namespaces=links.namespaces)
        super().__init__(server, spec, folder, out, err, quotas)

    def end(self) -> int:
        with self._links:
            exit_code = super().end()
            self._failure = self._links.failure
            spent = self._links.cpu_seconds() - self._cpu_before
            self.link = Link(**self._probe._asdict(), relay_cpu_seconds=spent)
        return exit_code

    @property
    def trouble(self) -> Trouble | None:
        return None if self._failure is None else Trouble(self._failure)


def _cores(settings: RunSettings) -> dict[int, float]:
    """What the nodes that get less than an equal part of the cores, one at most, may use: rank -> cores."""
    equal = min(len(os.sched_getaffinity(0)) / settings.nodes, 1.0)
    percents = [float(settings.node_percent)] * settings.nodes
    if settings.nodes > 1:
        percents[-1] *= settings.last_node_percent / 100
    return {rank: equal * percent / 100 for rank, percent in enumerate(percents) if percent < 100}


def _environment(spec: RunSpec, folder: Path) -> Mapping[str, str | None]:
    environment: dict[str, str | None] = {
        "TMPDIR": str(folder / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        # Links between namespaces slow down the transport like any other socket.
        NETWORK_VARIABLE: "loopback" if spec.namespaces else spec.network,
    }
    if spec.place is not None and spec.place.interface is not None:
        # Torch's libraries would look up the name of the host.
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            environment[name] = os.environ.get(name, spec.place.interface)
    if spec.namespaces:
        # Each is a host of its own to the parameter server, whose nodes then have to be given a secret.
        environment["ADAPS_SECRET_FILE"] = None
        environment["ADAPS_SECRET"] = secrets.token_hex(32)
    return environment


def _oom_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory; 0 if it does not say."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except FileNotFoundError:
        return 0
    return int(counts.get("oom_kill", 0))


LAUNCHER = Local
