"""``adabench simulate``: what a training costs on clusters that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from adabench.harness.cli.options import shown
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

__all__ = ["simulate"]

_TRACED = 5
_MOST_NODES = 4096


def simulate(
    usecase: Annotated[
        str, typer.Option("--usecase", "-u", help="What to train, such as ctr or 'ctr[dim=8]'.")
    ],
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="How: one on the parameter server.")
    ] = "autoada-automatic",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Files or builders, such as adaptive,static,'nups[times=50]'; compared with each other."
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N[,…]", help="Sizes of clusters; by default that of --resources.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="lan, slow, or such as 0.5ms,2gbit; by default that of --resources.")
    ] = None,
    resources: Annotated[
        Path | None, typer.Option(help="The cluster, as `adabench resources --costs` writes it.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker threads per node.")] = 1,
    steps: Annotated[int, typer.Option(help="Of each worker.")] = 100,
    step: Annotated[
        float | None,
        typer.Option("--step", metavar="MS", help="What a step computes for, in milliseconds of a core."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder or file of the use case's data.")] = None,
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
    from adabench.analysis.simulated import FORMATS, Row, draw_simulated, save_figure, table_of
    from adabench.harness.planning.catalogue import usecase_from
    from adabench.harness.planning.policies import resources_from
    from adabench.harness.planning.simulated import clusters_of, simulated, step_seconds

    for name, value in (("--workers", workers), ("--steps", steps)):
        if value < 1:
            raise UsageError(f"{name} {value}: give 1 or more")
    if step is not None and not 0 <= step < float("inf"):
        raise UsageError(f"--step {step}: give milliseconds, 0 or more")
    if nodes is None and resources is None:
        raise UsageError(
            "for how many nodes? Give --nodes 2,4, or --resources with a file of `adabench resources`"
        )
    if out is not None and out.suffix not in FORMATS:
        raise UsageError(f"--out {out}: give a name that ends in {', '.join(FORMATS)}")
    cluster = None if resources is None else resources_from(resources, None)
    clusters = clusters_of(cluster, None if nodes is None else _counts(nodes), network)
    trained = usecase_from(usecase, data, seed)
    if step is None and cluster is not None and usecase in cluster.steps:
        compute = 1e-3 * cluster.steps[usecase]
        said = f"as {resources} says"
    elif step is None:
        compute = step_seconds(trained)
        said = f"measured here; --step {1e3 * compute:.3g} repeats it"
    else:
        compute, said = 1e-3 * step, "as given"
    tell(f"{usecase}, {backend}: a step computes for {1e3 * compute:.3g} ms, {said}")
    rows: list[Row] = []
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
    for line in table_of(rows):
        tell(line)
    if out is not None:
        _write(out, lambda: save_figure(draw_simulated(rows), out))
    if trace is not None and last is not None:
        _write(trace, lambda: last.write_chrome_trace(trace))


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
