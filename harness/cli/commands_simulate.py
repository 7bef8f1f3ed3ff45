"""``adabench simulate``: what a training costs on clusters that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import (
    CostedResources,
    Data,
    Links,
    OneUseCase,
    ServerBackend,
    StepMilliseconds,
    Workers,
    at_least_one,
    shown,
)
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.analysis.simulated import NodeRow
    from adaps.simulation import Simulation

__all__ = ["simulate"]

_TRACED = 5
_MOST_NODES = 4096


def simulate(
    usecase: OneUseCase,
    backend: ServerBackend = "autoada-automatic",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Files or builders, such as adaptive,static,'nups[times=50]'; compared with each other."
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N[,…]", help="Sizes of clusters; by default that of --resources.")
    ] = None,
    network: Links = None,
    resources: CostedResources = None,
    workers: Workers = 1,
    steps: Annotated[int, typer.Option(help="Of each worker.")] = 100,
    step: StepMilliseconds = None,
    incidents: Annotated[
        str | None,
        typer.Option(
            help="What befalls nodes: 'slow[node=2,speed=0.33,begin=10,end=40],stall[node=1,step=20,ms=50],"
            "lost[node=3,step=60]'."
        ),
    ] = None,
    peer_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds after which a node that says nothing is lost.")
    ] = 5.0,
    data: Data = None,
    seed: Annotated[int, typer.Option(help="Of weights, order of the data, and what happens when.")] = 0,
    trace: Annotated[
        Path | None, typer.Option(help=f"Write {_TRACED} steps of the last simulation as a Chrome trace.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the figure, as .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Say what a training would cost on clusters that are not there.

    The server's own code runs on simulated machines and links; nothing is trained.
    """
    from adabench.analysis.simulated import FORMATS, Row, draw_simulated, node_table, save_figure, table_of
    from adabench.harness.estimate.measured_steps import compute_of
    from adabench.harness.estimate.simulate import clusters_of, incidents_of, simulated
    from adabench.harness.study.model_parameters import usecase_from
    from adabench.harness.study.policies import resources_from

    at_least_one(workers=workers, steps=steps)
    if step is not None and not 0 <= step < float("inf"):
        raise UsageError(f"--step {step}: give milliseconds, 0 or more")
    if nodes is None and resources is None:
        raise UsageError(
            "for how many nodes? Give --nodes 2,4, or --resources with a file of `adabench resources`"
        )
    if not 0 < peer_timeout < float("inf"):
        raise UsageError(f"--peer-timeout {peer_timeout}: give seconds, more than 0")
    if out is not None and out.suffix not in FORMATS:
        raise UsageError(f"--out {out}: give a name that ends in {', '.join(FORMATS)}")
    cluster = None if resources is None else resources_from(resources, None)
    clusters = clusters_of(cluster, None if nodes is None else _counts(nodes), network)
    smallest = min(of.nodes for of in clusters)
    happening = () if incidents is None else incidents_of(incidents, smallest)
    trained = usecase_from(usecase, data, seed)
    compute, said = compute_of(usecase, backend, step, resources, cluster, data, seed)
    tell(f"{usecase}, {backend}: a step computes for {1e3 * compute:.3g} ms, {said}")
    rows: list[Row] = []
    met: list[str] = []
    traced = _TRACED if trace is not None else 0
    last = None
    for made, of, last in simulated(
        trained,
        backend,
        policy,
        clusters,
        workers=workers,
        steps=steps,
        compute=compute,
        traced_steps=traced,
        seed=seed,
        incidents=happening,
        peer_timeout=peer_timeout,
    ):
        rows.append(
            Row(
                policy=made,
                nodes=of.nodes,
                milliseconds=1e3 * last.seconds_per_step,
                shares=last.shares(),
                local=last.local_share(),
                kilobytes=1e-3 * last.bytes_per_step,
                messages=last.messages_per_step,
            )
        )
        if happening:
            met += [
                "",
                f"{made}, {of.nodes} nodes",
                *node_table(_node_rows(last), {one.node for one in happening}),
            ]
    for line in [*table_of(rows), *met]:
        tell(line)
    if out is not None:
        _write(out, lambda: save_figure(draw_simulated(rows), out))
    if trace is not None and last is not None:
        _write(trace, lambda: last.write_chrome_trace(trace))


def _node_rows(found: Simulation) -> list[NodeRow]:
    from adabench.analysis.simulated import NodeRow

    return [
        NodeRow(
            steps=node.steps,
            seconds=node.seconds,
            milliseconds=1e3 * node.seconds * found.workers / max(node.steps, 1),
            shares=node.shares(),
            lost_at=node.lost_at,
            peer_lost=node.peer_lost,
            peer_lost_at=node.peer_lost_at,
        )
        for node in found.nodes
    ]


def _counts(text: str) -> list[int]:
    counts = []
    for one in text.split(","):
        if not one.strip().isdecimal() or not 1 <= int(one) <= _MOST_NODES:
            raise UsageError(f"--nodes {text}: {one.strip()!r} is no number of nodes from 1 to {_MOST_NODES}")
        counts.append(int(one))
    return counts


def _write(file: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {(error.strerror or str(error)).lower()}") from error
    tell(shown(file))
