"""The launcher `local`: all ranks of a run are processes of this machine."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.launch.fork_server import ForkServer, ForkServerError
from adabench.harness.launch.launcher import (
    Group,
    Launcher,
    LauncherOptions,
    Outcome,
    RunFiles,
    Supervision,
    Trouble,
    Unlaunchable,
)
from adabench.harness.launch.watch import launch
from adabench.harness.machine.link_probe import probe_link
from adabench.harness.machine.namespaces import NamespacesUnavailable, NodeLinks, link_of
from adabench.harness.machine.quota import Quota, QuotaUnavailable
from adabench.harness.run.spec import NETWORK_VARIABLE, RunSpec
from adabench.results.record import Link
from adabench.results.run_settings import RunSettings


class Local(Launcher):
    """All processes on this machine; the runs' ranks are forks of a process that has imported torch."""

    name: ClassVar[str] = "local"

    def __init__(self, options: LauncherOptions | None = None) -> None:
        super().__init__(options)
        if self.options.listen is not None:
            raise UsageError(
                f"--listen {self.options.listen} names where other hosts reach this one, but with "
                "--launcher local there are none: leave it out"
            )
        self.server: ForkServer | None = None
        """Parent of all its processes, once it is prepared."""

    def __enter__(self) -> Launcher:
        rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        if ranks not in ("", "1"):
            raise UsageError(
                f"this process is rank {rank} of {ranks}, by RANK and WORLD_SIZE: use --launcher torchrun to "
                "run on all of them, or unset both"
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

    def begin(self, spec: RunSpec, files: RunFiles) -> LocalGroup:
        assert self.server is not None
        link = link_of(spec.network)
        with ExitStack() as resources:
            try:
                quotas = {
                    rank: str(resources.enter_context(Quota(cores)).folder)
                    for rank, cores in _cores(spec).items()
                }
                links = None if link is None else resources.enter_context(NodeLinks(link, spec.nodes))
            except (QuotaUnavailable, NamespacesUnavailable) as error:
                raise Unlaunchable(str(error), "skipped") from error
            spec = msgspec.structs.replace(spec, quotas=quotas)
            group = LocalGroup(self.server, spec, files, links)
            group.resources = resources.pop_all()
        return group

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


def launch_unrecorded(server: ForkServer, spec: RunSpec, timeout: float) -> Outcome:
    """Run one cell once, for its outcome only; its output is discarded."""
    launcher = Local()
    launcher.server = server
    launcher.prepare()
    return launch(launcher, spec, None, Supervision(timeout))


class LocalGroup(Group):
    """Ranks of a run that are processes of this machine, forked by a server.

    Parameters
    ----------
    server : ForkServer
        Started fork server.
    spec : RunSpec
        Specification of the run. Its place, if any, lists the ranks of this machine.
    files : RunFiles
        Files of the run.
    links : NodeLinks, optional
        Links between the ranks, which are measured before the start.

    Attributes
    ----------
    resources : ExitStack
        Resources of the group, which are released at its end.

    Raises
    ------
    Unlaunchable
        If the links cannot be measured or the server is gone.
    """

    def __init__(
        self, server: ForkServer, spec: RunSpec, files: RunFiles, links: NodeLinks | None = None
    ) -> None:
        self.resources = ExitStack()
        self._links = links
        self._link_failure: str | None = None
        if links is not None:
            try:
                self._probe = probe_link(links.namespaces)
            except OSError as error:
                raise Unlaunchable(f"the links between the namespaces cannot be measured: {error}") from error
            self._relay_before = links.cpu_seconds()
            spec = msgspec.structs.replace(spec, namespaces=links.namespaces)
        self.launched_at = time.monotonic()
        spec = msgspec.structs.replace(spec, folder=str(files.folder), launched_at=self.launched_at)
        spec_file = files.folder / "spec.json"
        spec_file.write_bytes(msgspec.json.encode(spec))
        try:
            self._fork = server.fork(
                "adabench.harness.launch.process_group:run_group",
                [str(spec_file)],
                _environment(spec, files.folder),
                files.out.fileno(),
                files.err.fileno(),
            )
        except ForkServerError as error:
            raise Unlaunchable(str(error)) from error

    def wait(self, seconds: float) -> int | None:
        return self._fork.wait(seconds)

    def end(self) -> int:
        with self.resources:
            exit_code = self._fork.end()
            if self._links is not None:
                self._link_failure = self._links.failure
                spent = self._links.cpu_seconds() - self._relay_before
                self.link = Link(**self._probe._asdict(), relay_cpu_seconds=spent)
        return exit_code

    @property
    def trouble(self) -> Trouble | None:
        return None if self._link_failure is None else Trouble(self._link_failure)


def _cores(settings: RunSettings) -> dict[int, float]:
    """Cores of each node that gets less than an equal part of all cores, at most one: rank -> cores."""
    equal = min(len(os.sched_getaffinity(0)) / settings.nodes, 1.0)
    percents = [float(settings.node_percent)] * settings.nodes
    if settings.nodes > 1:
        percents[-1] *= settings.last_node_percent / 100
    return {rank: equal * percent / 100 for rank, percent in enumerate(percents) if percent < 100}


def _environment(spec: RunSpec, folder: Path) -> Mapping[str, str | None]:
    environment: dict[str, str | None] = {
        "TMPDIR": str(folder / "tmp"),
        "ADAPS_PATH": os.environ.get("ADAPS_PATH", str(folder / "tmp")),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        # Links between namespaces slow down the transport like any other socket.
        NETWORK_VARIABLE: "loopback" if spec.namespaces else spec.network,
    }
    if spec.place is not None and spec.place.interface is not None:
        # Otherwise torch's libraries would look up the name of the host.
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            environment[name] = os.environ.get(name, spec.place.interface)
    if spec.namespaces:
        # To the parameter server each namespace is another host, and nodes on several hosts need a secret.
        environment["ADAPS_SECRET_FILE"] = None
        environment["ADAPS_SECRET"] = secrets.token_hex(32)
    return environment


LAUNCHER = Local
