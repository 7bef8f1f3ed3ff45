"""``adabench simulate``: costs of a training on clusters that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.estimate_options import TrainingOptions, takes_options
from adabench.harness.cli.options import at_least_one, shown
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adaps.simulation import Simulation

__all__ = ["simulate"]

_TRACED = 5
_MOST_NODES = 4096


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(TrainingOptions):
    """Options of `adabench simulate`, by their names.

    Attributes
    ----------
    policy, nodes, steps, incidents, peer_timeout, seed
        Values that describe the simulations.
    trace, out
        Files to write.
    """

    policy: Annotated[
        str | None,
        typer.Option(
            help="Files or builders, such as adaptive,static,'nups[times=50]'; compared with each other."
        ),
    ] = None
    nodes: Annotated[
        str | None, typer.Option(metavar="N[,…]", help="Sizes of clusters; by default as in --resources.")
    ] = None
    steps: Annotated[int, typer.Option(help="Steps of each worker.")] = 100
    incidents: Annotated[
        str | None,
        typer.Option(
            help="Incidents at nodes: 'slow[node=2,speed=0.33,begin=10,end=40],stall[node=1,step=20,ms=50],"
            "lost[node=3,step=60]'."
        ),
    ] = None
    peer_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds after which a silent node is lost.")
    ] = 5.0
    seed: Annotated[int, typer.Option(help="Seed for weights, the data order, and the order of events.")] = 0
    trace: Annotated[
        Path | None, typer.Option(help=f"Write {_TRACED} steps of the last simulation as a Chrome trace.")
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the figure, as .svg, .png or .pdf.")
    ] = None

    def check(self) -> None:
        """Refuse wrong values before anything takes long."""
        from adabench.harness.estimate.simulation_report import FORMATS

        at_least_one(workers=self.workers, steps=self.steps)
        if self.step is not None and not 0 <= self.step < float("inf"):
            raise UsageError(f"--step {self.step}: give milliseconds, 0 or more")
        if not 0 < self.peer_timeout < float("inf"):
            raise UsageError(f"--peer-timeout {self.peer_timeout}: give seconds, more than 0")
        if self.out is not None and self.out.suffix not in FORMATS:
            raise UsageError(f"--out {self.out}: give a name that ends in {', '.join(FORMATS)}")
        for file in (self.out, self.trace):
            if file is not None and not file.parent.is_dir():
                raise UsageError(f"{file} cannot be written: there is no folder {file.parent}")


@takes_options(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Simulate a training on any cluster, and print its costs.

    The server's own code runs on simulated machines and links; nothing is trained.
    """
    from adabench.harness.estimate.simulate import SimulationSettings, incidents_of, simulated
    from adabench.harness.estimate.simulation_report import draw_simulated, node_table, save_figure, table_of

    options.check()
    clusters = options.clusters(None if options.nodes is None else _counts(options.nodes), "2,4")
    smallest = min(of.nodes for of in clusters)
    incidents = () if options.incidents is None else incidents_of(options.incidents, smallest)
    usecase, compute, source = options.trained(options.seed)
    tell(f"{options.usecase}, {options.backend}: {source}")
    settings = SimulationSettings(
        workers=options.workers,
        steps=options.steps,
        compute=compute,
        traced_steps=_TRACED if options.trace is not None else 0,
        seed=options.seed,
        incidents=incidents,
        peer_timeout=options.peer_timeout,
    )
    found: list[tuple[str, Simulation]] = []
    met: list[str] = []
    for made, cluster, last in simulated(usecase, options.backend, options.policy, clusters, settings):
        found.append((made, last))
        if incidents:
            met += ["", f"{made}, {cluster.nodes} nodes"]
            met += node_table(last, {one.node for one in incidents})
    for line in [*table_of(found), *met]:
        tell(line)
    out, trace = options.out, options.trace
    if out is not None:
        _write(out, lambda: save_figure(draw_simulated(found), out))
    if trace is not None:
        _write(trace, lambda: found[-1][1].write_chrome_trace(trace))


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
