"""``adabench resources``: what the cluster at hand is like, for builders of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adabench.harness.cli.options import shown
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

__all__ = ["resources"]


def resources(
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes on this machine; under torchrun each rank is one.")
    ] = None,
    network: Annotated[
        str, typer.Option(help="loopback, or namespaces:lan and the like, which needs root.")
    ] = "loopback",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to; without it to standard output.")
    ] = None,
) -> None:
    """Measure nodes and links, for policies.

    Per node a fixed computation, per pair of nodes a ping and a bulk transfer.
    """
    from adabench.harness.machine.measure_cluster import measure_here, measure_ranks, under_torchrun
    from adabench.harness.machine.namespaces import NamespacesUnavailable, link_of
    from adabench.harness.planning.syntax import parse_network

    link = link_of(parse_network(network))
    if link is None and network.strip().lower() != "loopback":
        raise UsageError(
            f"--network {network}: only the parameter server slows itself down so, and nothing else can be "
            f"measured; try namespaces:{network}"
        )
    if under_torchrun():
        if nodes is not None or link is not None:
            raise UsageError("under torchrun the ranks are the nodes: leave out --nodes and --network")
        found = measure_ranks()
        if found is None:
            return
    else:
        if nodes is not None and nodes < 1:
            raise UsageError(f"--nodes {nodes}: give 1 or more")
        try:
            found = measure_here(nodes or 1, link)
        except NamespacesUnavailable as error:
            raise UsageError(f"--network {network}: {error}") from error
    if out is None:
        typer.echo(found.text(), nl=False)
        return
    try:
        out.write_text(found.text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    tell(f"{shown(out)}: {found.nodes} node{'s' if found.nodes > 1 else ''}")
