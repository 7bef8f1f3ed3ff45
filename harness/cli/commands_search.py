"""``adabench search``: finds a policy by prediction and confirms it by trial runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.estimate_options import TrainingOptions
from adabench.harness.cli.options import Results, Seed, at_least_one, results_root, shown, with_options
from adabench.harness.cli.terminal import plain, tell
from adabench.harness.errors import UsageError, unknown

if TYPE_CHECKING:
    from adabench.backends.policies.resources import Resources
    from adabench.harness.estimate.search.candidates import Candidate, Evidence, SearchProblem

_OBJECTIVES = ("time", "bytes")
_WIRES = ("float32", "bfloat16", "float16", "int8")
_MEBI = 2**20


@dataclass(frozen=True, kw_only=True)
class SearchOptions(TrainingOptions):
    """Options of `adabench search`, by their names.

    Attributes
    ----------
    nodes, objective, memory, solver, effort, wires, builders, steps, seed, allreduce
        Values that describe the search.
    trials, blocks, results, dry_run, out
        Values that describe trial runs and the result.
    """

    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes, if they are equal; by default as in --resources.")
    ] = None
    objective: Annotated[str, typer.Option(help="Quantity to minimise: time of a step, or bytes.")] = "time"
    memory: Annotated[
        float | None, typer.Option(metavar="MIB", help="Memory limit for rows on each node, in MiB.")
    ] = None
    solver: Annotated[str, typer.Option(help="auto, exact, annealing or differentiable.")] = "auto"
    effort: Annotated[
        float, typer.Option(help="Solver effort: 1 takes about one second per thousand tables.")
    ] = 1.0
    wires: Annotated[
        str,
        typer.Option(
            metavar="NAME[,…]", help="Number formats of rows on the network; all except float32 round."
        ),
    ] = "float32"
    builders: Annotated[
        str,
        typer.Option(
            metavar="POLICY[,…]",
            help="Policies to compare the search with, as files or names of builders; '' for none.",
        ),
    ] = "adaptive,static,lapse,nups"
    steps: Annotated[int, typer.Option(help="Simulated steps of each worker.")] = 60
    seed: Seed = 0
    allreduce: Annotated[
        bool, typer.Option("--allreduce", help="Also consider all-reduce for dense parameters.")
    ] = False
    trials: Annotated[
        int, typer.Option(help="Number of candidates to train with, in addition to a builder's policy.")
    ] = 4
    blocks: Annotated[
        int, typer.Option(help="Paired runs of the last two policies; an interval needs at least 6.")
    ] = 8
    results: Results = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the candidates with predictions; train nothing.")
    ] = False
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the best policy to this file, with its evidence."),
    ] = None

    @property
    def policies(self) -> Path:
        """Folder of the candidates' policies in trial runs."""
        return results_root(self.results) / "search-policies"

    def check(self) -> tuple[str, ...]:
        """Refuse wrong values, and make the folder of policies; returns the wire types."""
        from adabench.harness.estimate.search.solvers import SOLVERS
        from adabench.results.store import make_results_folder

        at_least_one(workers=self.workers, steps=self.steps, trials=self.trials, blocks=self.blocks)
        for name, number, unit in (("--step", self.step, "milliseconds"), ("--memory", self.memory, "MiB")):
            if number is not None and not 0 < number < float("inf"):
                raise UsageError(f"{name} {number}: give {unit}, more than 0")
        if not 0 < self.effort <= 1000:
            raise UsageError(f"--effort {self.effort}: give a number above 0, and at most 1000")
        _one_of("--objective", self.objective, _OBJECTIVES)
        wires = dict.fromkeys(_one_of("--wires", one.strip(), _WIRES) for one in self.wires.split(","))
        if self.solver not in SOLVERS:
            raise unknown("solver", self.solver, SOLVERS)
        if self.allreduce and self.workers > 1:
            raise UsageError(f"--allreduce takes one worker per node, not --workers {self.workers}")
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes}: give 1 or more")
        if not self.dry_run:
            make_results_folder(self.policies)
        return tuple(wires)

    def problem(self) -> SearchProblem:
        """Return the problem that the options describe, and print its compute time."""
        from adabench.harness.estimate.search.candidates import SearchProblem, memory_limits
        from adabench.harness.estimate.search.options import Space
        from adabench.harness.estimate.search.table_costs import Situation

        wires = self.check()
        (where,) = self.clusters(None if self.nodes is None else [self.nodes], "4")
        usecase, compute, source = self.trained(self.seed)
        tell(f"{self.usecase}, {self.backend}, {where.nodes} nodes: {source}")
        return SearchProblem(
            usecase,
            self.backend,
            Situation(where, self.workers, compute),
            Space(dense=("static", "replication", *(["allreduce"] if self.allreduce else [])), wires=wires),
            "time" if self.objective == "time" else "bytes",
            memory_limits(self.memory, [node.memory for node in where.node]),
            self.solver,
            self.effort,
            self.seed,
        )


@with_options("options", SearchOptions)
def search(options: SearchOptions) -> None:
    """Search for the best policy for a use case on a cluster.

    Formulas predict the costs of candidates, and the server's own code simulates the cheapest ones. The best
    of them then train on this machine, one epoch at a time, against the best builder's policy.
    """
    from adabench.harness.estimate.search.candidates import candidates, simulated_all, with_evidence

    problem = options.problem()
    last_percent = None if options.dry_run else _last_node_percent(problem.situation.resources)
    with _progress() as told:
        told("counting accesses and solving")
        found = candidates(problem, options.builders)
        found = simulated_all(found, problem, options.steps, lambda name: told(f"simulating {name}"))
    found.sort(key=lambda one: one.rank(problem.objective))
    for line in table_of(found):
        tell(line)
    measured: Evidence = {}
    if not options.dry_run:
        found, measured = _tried(found, options, problem.situation.nodes, last_percent)
    if options.out is None:
        tell(f"best: {found[0].name}; -o FILE writes it")
        return
    try:
        with_evidence(found, problem, options.usecase, measured).write(options.out)
    except OSError as error:
        raise UsageError(
            f"{options.out} cannot be written: {(error.strerror or str(error)).lower()}"
        ) from error
    tell(shown(options.out))


def _tried(
    found: list[Candidate], options: SearchOptions, nodes: int, last_percent: int | None
) -> tuple[list[Candidate], Evidence]:
    """Return the candidates, the fastest in training first, and the evidence."""
    from rich.console import Console

    from adabench.harness.session.policy_trials import Interrupted, Trials, halved
    from adabench.harness.study.syntax import parse_selections

    baseline = next((one for one in found if not one.options), None)
    if baseline is None:
        raise UsageError("--builders '': trial runs need one to compare with; name one, or give --dry-run")
    rivals = [one for one in found if one.options][: options.trials]
    overrides = {
        "nodes": nodes,
        "workers": options.workers,
        "network": options.network,
        "data": None if options.data is None else str(options.data),
        "seed": options.seed,
        "last_node_percent": last_percent,
    }
    given: dict[str, object] = {name: value for name, value in overrides.items() if value is not None}
    (selected,) = parse_selections(options.usecase)
    if "epochs" not in selected.values:
        given["params"] = {selected.name: {"epochs": 1}}
    tell(f"training with {len(rivals)} of them, against {baseline.name}, on this machine")
    folder, console = options.policies, Console(soft_wrap=True)
    runs = Trials(options.usecase, options.backend, given, folder, folder.parent, console)
    try:
        best, everything = halved(rivals, baseline, options.blocks, runs.run, tell)
    except Interrupted as error:
        tell(str(error))
        raise typer.Exit(130) from error
    evidence: Evidence = {"measured_against": baseline.name, "measured": [one.said() for one in everything]}
    last = everything[-1]
    if best is not baseline:
        evidence["measured_ratio"] = round(last.ratio, 4)
        if last.low == last.low:
            evidence["measured_interval"] = f"{last.low:.4f} to {last.high:.4f}, 95 %"
    tell(f"best: {best.name}" + ("" if best is not baseline else ", and none was faster"))
    return [best, *(one for one in found if one is not best)], evidence


def table_of(found: Sequence[Candidate]) -> list[str]:
    """Lines of at most 80 columns, the best candidate first."""
    from adabench.analysis.tables import aligned

    heads = ("candidate", "predicted", "simulated", "kB/step", "simulated", "MiB/node")
    rows: list[tuple[str, ...]] = [heads]
    for one in found:
        expected, ran = one.prediction, one.simulation
        rows.append(
            (
                one.name if len(one.name) <= 22 else f"{one.name[:21]}…",
                "" if expected is None else f"{1e3 * expected.seconds:.2f} ms",
                "" if ran is None else f"{1e3 * ran.seconds_per_step:.2f} ms",
                "" if expected is None else f"{1e-3 * expected.bytes:,.0f}",
                "" if ran is None else f"{1e-3 * ran.bytes_per_step:,.0f}",
                "" if expected is None else f"{float(expected.memory.max()) / _MEBI:,.2f}",
            )
        )
    lines = aligned(rows, gap="  ")
    best = next((one for one in found if one.options), None)
    if best is not None:
        lines.append(f"{best.name}:")
        lines += [f"  {name}: {option}" for name, option in best.said]
    return lines


def _last_node_percent(where: Resources) -> int | None:
    """Return the speed of the last node of trial runs, in percent; None if all nodes are equal."""
    *others, last = (node.speed for node in where.node)
    if all(speed == last for speed in others):
        return None
    percent = round(100 * last / others[0])
    if any(speed != others[0] for speed in others) or not 1 <= percent < 100:
        raise UsageError(
            "trial runs train on this machine, where nodes have equal speeds, except that the last one may "
            "be slower, and not the speeds " + ", ".join(f"{node.speed:g}" for node in where.node) + ": "
            "give --dry-run"
        )
    return percent


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{option} {value}: valid are {', '.join(known)}")
    return value


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows the current activity in a terminal and erases it at the end."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(plain(text).replace("[", r"\["))
