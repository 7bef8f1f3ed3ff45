"""``adabench simulate``: costs of a training, or of a study, on clusters that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.estimate_options import TrainingOptions
from adabench.harness.cli.options import (
    SEED,
    CostedResources,
    Data,
    Links,
    Results,
    StepMilliseconds,
    at_least_one,
    results_root,
    shown,
    study_from,
    with_options,
)
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.harness.estimate.simulated_study import SimulatedCell
    from adaps.simulation import Simulation

_TRACED = 5
_MOST_NODES = 4096
_STEPS = 100
_TABLE = ".csv"
"""Ending of a file for the figures of a study."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of `adabench simulate`, by their names.

    Attributes
    ----------
    study, study_name
        Study to simulate.
    usecase, backend, policy, nodes, workers, network, data, seed
        Values that describe a training. They replace the values of a study.
    resources, step, steps, incidents, peer_timeout
        Values that describe the simulations.
    trace, out, json, results
        Values that describe the output.
    """

    study: Annotated[
        Path | None, typer.Argument(help="A study file; all its cells are simulated.", metavar="[STUDY.toml]")
    ] = None
    study_name: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="A study that comes with the project, such as scale."),
    ] = None
    usecase: Annotated[
        str | None,
        typer.Option("--usecase", "-u", metavar="NAME", help="Use case, such as ctr or 'ctr[dim=8]'."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME",
            help="Backend on the parameter server, autoada-automatic by default.",
        ),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            help="Files or builders, such as adaptive,static,'nups[times=50]'; compared with each other."
        ),
    ] = None
    nodes: Annotated[
        str | None, typer.Option(metavar="N[,…]", help="Sizes of clusters; by default as in --resources.")
    ] = None
    workers: Annotated[
        str | None, typer.Option(metavar="N", help="Worker threads per node, 1 by default.")
    ] = None
    network: Links = None
    resources: CostedResources = None
    step: StepMilliseconds = None
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Steps of each worker; {_STEPS} by default, or as in the study."),
    ] = None
    data: Data = None
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
    seed: Annotated[int | None, SEED] = None
    trace: Annotated[
        Path | None, typer.Option(help=f"Write {_TRACED} steps of the last simulation as a Chrome trace.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help=f"Write the figure, as .svg, .png or .pdf, or a study's results as {_TABLE}."
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print a study's results as JSON, for programs.")] = (
        False
    )
    results: Results = None

    @property
    def of_study(self) -> bool:
        """Whether a study is simulated."""
        return self.study is not None or self.study_name is not None

    def check(self) -> None:
        """Refuse wrong values before anything takes long."""
        from adabench.harness.estimate.simulation_report import FORMATS

        at_least_one(**{} if self.steps is None else {"steps": self.steps})
        if self.step is not None and not 0 <= self.step < float("inf"):
            raise UsageError(f"--step {self.step}: give milliseconds, 0 or more")
        if not 0 < self.peer_timeout < float("inf"):
            raise UsageError(f"--peer-timeout {self.peer_timeout}: give seconds, more than 0")
        endings = (*FORMATS, _TABLE) if self.of_study else FORMATS
        if self.out is not None and self.out.suffix not in endings:
            raise UsageError(f"--out {self.out}: give a name that ends in {', '.join(endings)}")
        for file in (self.out, self.trace):
            if file is not None and not file.parent.is_dir():
                raise UsageError(f"{file} cannot be written: there is no folder {file.parent}")
        alone = {"--policy": self.policy, "--incidents": self.incidents, "--trace": self.trace}
        for name, value in alone.items() if self.of_study else ():
            if value is not None:
                raise UsageError(f"{name} {value}: it does not apply to a study; leave it out")
        if self.json and not self.of_study:
            raise UsageError("--json prints the results of a study: also give --study or a study file")

    def training(self) -> TrainingOptions:
        """Return the training that the options describe."""
        if self.usecase is None:
            raise UsageError("nothing to simulate: give a use case, such as -u ctr, or --study scale")
        workers = self.workers or "1"
        if not workers.isdecimal() or int(workers) < 1:
            raise UsageError(f"--workers {workers}: give 1 or more")
        return TrainingOptions(
            usecase=self.usecase,
            backend=self.backend or "autoada-automatic",
            network=self.network,
            resources=self.resources,
            workers=int(workers),
            step=self.step,
            data=self.data,
        )


@with_options("options", SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Simulate a training on any cluster, and print its costs.

    The server's own code runs on simulated machines and links; nothing is trained. With a study, all its
    cells are simulated, and speed-ups over one node are printed. Options replace values of the study and may
    list several. Results are kept in --results, and the same command continues after an interruption.
    """
    options.check()
    if options.of_study:
        _simulate_study(options)
    else:
        _simulate_training(options)


def _simulate_training(options: SimulateOptions) -> None:
    from adabench.harness.estimate.simulate import SimulationSettings, incidents_of, simulated
    from adabench.harness.estimate.simulation_report import draw_simulated, node_table, save_figure, table_of

    training, seed = options.training(), options.seed or 0
    clusters = training.clusters(None if options.nodes is None else _counts(options.nodes), "2,4")
    smallest = min(of.nodes for of in clusters)
    incidents = () if options.incidents is None else incidents_of(options.incidents, smallest)
    usecase, compute, source = training.trained(seed)
    tell(f"{training.usecase}, {training.backend}: {source}")
    settings = SimulationSettings(
        workers=training.workers,
        steps=options.steps or _STEPS,
        compute=compute,
        traced_steps=_TRACED if options.trace is not None else 0,
        seed=seed,
        incidents=incidents,
        peer_timeout=options.peer_timeout,
    )
    found: list[tuple[str, Simulation]] = []
    met: list[str] = []
    for made, cluster, last in simulated(usecase, training.backend, options.policy, clusters, settings):
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


def _simulate_study(options: SimulateOptions) -> None:
    from adabench.harness.estimate.simulated_study import StudySimulation
    from adabench.harness.estimate.simulation_report import speed_up_table, study_tables
    from adabench.harness.study.policies import resources_from

    replaced = {
        "usecases": options.usecase,
        "backends": options.backend,
        "nodes": options.nodes,
        "workers": options.workers,
        "network": options.network,
        "data": None if options.data is None else str(options.data),
        "seed": options.seed,
    }
    simulation = StudySimulation(
        study=study_from(options.study, options.study_name, replaced, None),
        folder=results_root(options.results),
        steps=options.steps,
        step_ms=options.step,
        resources=None if options.resources is None else resources_from(options.resources, None),
        file=options.resources,
    )
    found: list[SimulatedCell] = []
    for block in simulation.results():
        found += block
        for line in [] if options.json else study_tables(block):
            tell(line)
    if options.json:
        import msgspec

        tell(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        for line in speed_up_table(found):
            tell(line)
    if (out := options.out) is not None:
        _write(out, lambda: _save(found, out), quiet=options.json)


def _save(found: Sequence[SimulatedCell], out: Path) -> None:
    """Write the results of a study as a figure or a table."""
    from adabench.harness.estimate.simulation_report import draw_speed_ups, save_figure

    if out.suffix != _TABLE:
        save_figure(draw_speed_ups(found), out)
        return
    import msgspec
    import pandas as pd

    pd.DataFrame([msgspec.structs.asdict(one) for one in found]).to_csv(out, index=False)


def _counts(text: str) -> list[int]:
    counts = []
    for one in text.split(","):
        if not one.strip().isdecimal() or not 1 <= int(one) <= _MOST_NODES:
            raise UsageError(f"--nodes {text}: {one.strip()!r} is no number of nodes from 1 to {_MOST_NODES}")
        counts.append(int(one))
    return counts


def _write(file: Path, write: Callable[[], None], quiet: bool = False) -> None:
    try:
        write()
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {(error.strerror or str(error)).lower()}") from error
    if not quiet:
        tell(shown(file))
