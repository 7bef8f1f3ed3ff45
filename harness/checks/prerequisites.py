"""Prerequisites of runs on a machine: packages, a compiler, ports, memory."""

import contextlib
import importlib.metadata
import socket
from collections.abc import Iterator
from typing import Any

import psutil
from packaging.requirements import Requirement

from adabench.harness.study.plan import cells_of
from adabench.harness.study.study import Study

PORT_SECONDS = 3.0


def complaints_about(environment: dict[str, Any], study: Study | None) -> list[str]:
    """Return one message per missing prerequisite; memory is checked only for a given study."""
    complaints = [*_packages()]
    if environment["compiler"] is None:
        complaints.append(
            "there is no C++ compiler: the project is built with one (Debian: apt install g++), "
            "or name yours with the environment variable CXX"
        )
    with contextlib.suppress(StopIteration):
        complaints.append(next(_ports()))
    if study is not None:
        complaints += _memory(study)
    return complaints


def _packages() -> Iterator[str]:
    for text in importlib.metadata.requires("adabench") or []:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{needed.name} is not installed: {needed} is needed"
            continue
        if not needed.specifier.contains(version, prereleases=True):
            yield f"{needed.name} is {version}: {needed} is needed"


def _ports() -> Iterator[str]:
    """Check the loopback interface, over which the nodes of a run communicate, by sending one byte."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=PORT_SECONDS) as client,
        ):
            server.settimeout(PORT_SECONDS)
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(PORT_SECONDS)
                client.sendall(b"?")
                if accepted.recv(1) != b"?":
                    yield "a byte sent over the loopback interface does not arrive: something filters it"
    except OSError as error:
        yield (
            f"no connection can be made on the loopback interface ({error}): nodes cannot talk to each other "
            "until a firewall or sandbox allows ports of 127.0.0.1"
        )


def _memory(study: Study) -> Iterator[str]:
    """Check that there is as much memory as this process uses, with torch, for each node and the harness."""
    own = psutil.Process().memory_info().rss
    nodes = max(cell.nodes for cell in cells_of(study))
    needed, there = own * (nodes + 1), psutil.virtual_memory().available
    if needed > there:
        yield (
            f"the study needs at least {needed / 2**30:.1f} GiB for {nodes} nodes, but only "
            f"{there / 2**30:.1f} GiB are available: end other programs, or run fewer nodes"
        )
