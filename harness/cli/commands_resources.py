"""``adabench resources``: measurements of this cluster, for policy builders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import shown
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.backends.policies.resources import Resources


def resources(
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes on this machine; under torchrun each rank is a node.")
    ] = None,
    network: Annotated[
        str, typer.Option(help="Network: loopback, or such as namespaces:lan, which needs root.")
    ] = "loopback",
    costs: Annotated[
        bool, typer.Option("--costs", help="Also measure the server's CPU time here, for `simulate`.")
    ] = False,
    usecases: Annotated[
        list[str] | None,
        typer.Option("--usecase", "-u", help="Use case whose step time is measured; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file; by default standard output.")
    ] = None,
) -> None:
    """Measure nodes and links, for policies and simulations.

    Each node runs a fixed computation. Each pair of nodes does a ping and a bulk transfer.
    """
    from adabench.analysis.tracking import working
    from adabench.harness.machine.measure_cluster import measure_here, measure_ranks, under_torchrun
    from adabench.harness.machine.namespaces import NamespacesUnavailable, link_of
    from adabench.harness.study.syntax import check_slow_pair, parse_network

    link = link_of(parse_network(network))
    if link is None and network.strip().lower() not in {"loopback", "sockets"}:
        raise UsageError(
            f"--network {network}: only the parameter server delays its messages like this, and "
            f"nothing else can be measured; try namespaces:{network}"
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
        check_slow_pair(parse_network(network), nodes or 1)
        try:
            with working("measuring nodes and links"):
                found = measure_here(nodes or 1, link)
        except NamespacesUnavailable as error:
            raise UsageError(f"--network {network}: {error}") from error
    if costs or usecases:
        found = _with_costs(found, usecases or [])
    if out is None:
        typer.echo(found.text(), nl=False)
        return
    try:
        out.write_text(found.text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    tell(f"{shown(out)}: {found.nodes} node{'s' if found.nodes > 1 else ''}")


def _with_costs(found: Resources, usecases: list[str]) -> Resources:
    import msgspec

    from adabench.analysis.tracking import working
    from adabench.backends.policies.cost_model import measured_costs
    from adabench.harness.estimate.measured_steps import step_seconds

    with working("measuring the costs of the server, for about two minutes"):
        costs = measured_costs(found.node[0].speed)
    steps = {}
    for text in usecases:
        with working(f"measuring a step of {text}"):
            steps[text] = 1e3 * step_seconds(text, costs=costs)
    return msgspec.structs.replace(found, costs=costs, steps=steps)
