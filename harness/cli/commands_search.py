"""``adabench search``: the policy that is predicted to be best, and then measured to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import (
    CostedResources,
    Data,
    Links,
    OneUseCase,
    Results,
    ServerBackend,
    StepMilliseconds,
    Workers,
    at_least_one,
    results_root,
    shown,
)
from adabench.harness.cli.terminal import plain, tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.backends.policies.resources import Resources
    from adabench.harness.estimate.search.candidates import Candidate
    from adabench.harness.estimate.search.formulate import Objective
    from adabench.harness.estimate.search.options import Space

__all__ = ["search"]

_OBJECTIVES = ("time", "bytes")
_WIRES = ("float32", "bfloat16", "float16", "int8")
_MEBI = 2**20


def search(
    usecase: OneUseCase,
    backend: ServerBackend = "autoada-automatic",
    nodes: Annotated[
        int | None, typer.Option(help="Of the cluster, if they are all alike; by default as --resources.")
    ] = None,
    network: Links = None,
    resources: CostedResources = None,
    workers: Workers = 1,
    objective: Annotated[str, typer.Option(help="What is to be least: time of a step, or bytes.")] = "time",
    memory: Annotated[
        float | None, typer.Option(metavar="MIB", help="What rows may take on each node, in MiB.")
    ] = None,
    solver: Annotated[str, typer.Option(help="auto, exact, annealing or differentiable.")] = "auto",
    effort: Annotated[
        float, typer.Option(help="Of the solver; 1 is about a second of a core for a thousand tables.")
    ] = 1.0,
    wires: Annotated[
        str,
        typer.Option(metavar="NAME[,…]", help="What rows may travel as; others than float32 round them."),
    ] = "float32",
    builders: Annotated[
        str,
        typer.Option(
            metavar="POLICY[,…]", help="Files or builders that the search is compared with; '' for none."
        ),
    ] = "adaptive,static,lapse,nups",
    steps: Annotated[int, typer.Option(help="Of each worker, that are simulated.")] = 60,
    step: StepMilliseconds = None,
    data: Data = None,
    seed: Annotated[int, typer.Option(help="Of weights, order of the data, and what solvers draw.")] = 0,
    allreduce: Annotated[
        bool, typer.Option("--allreduce", help="Also average dense parameters' gradients by all-reduce.")
    ] = False,
    trials: Annotated[int, typer.Option(help="Candidates that are trained with, beside a builder.")] = 4,
    blocks: Annotated[
        int, typer.Option(help="Paired runs of the last two; with 6 and more there is an interval.")
    ] = 8,
    results: Results = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the candidates with what is predicted; train nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the best one as a policy, with its evidence.")
    ] = None,
) -> None:
    """Search for how each parameter is to be managed on a cluster.

    Candidates are found by a closed form and simulated by the server's own code. The best of them train on
    this machine, one epoch at a time, against the best builder.
    """
    from adabench.harness.estimate.measured_steps import compute_of
    from adabench.harness.estimate.search.candidates import (
        Wanted,
        candidates,
        memory_limits,
        simulated_all,
    )
    from adabench.harness.estimate.search.provenance import with_evidence
    from adabench.harness.estimate.search.table_costs import Situation
    from adabench.harness.estimate.simulate import clusters_of
    from adabench.harness.study.model_parameters import usecase_from
    from adabench.harness.study.policies import resources_from

    at_least_one(workers=workers, steps=steps, trials=trials, blocks=blocks)
    for name, number, unit in (("--step", step, "milliseconds"), ("--memory", memory, "MiB")):
        if number is not None and not 0 < number < float("inf"):
            raise UsageError(f"{name} {number}: give {unit}, more than 0")
    if not 0 < effort <= 1000:
        raise UsageError(f"--effort {effort}: give a number above 0, and at most 1000")
    target: Objective = "time" if _one_of("--objective", objective, _OBJECTIVES) == "time" else "bytes"
    travelling = tuple(dict.fromkeys(_one_of("--wires", one.strip(), _WIRES) for one in wires.split(",")))
    wanted = Wanted(solver=solver)  # an unknown solver is said before anything takes long
    if allreduce and workers > 1:
        raise UsageError(f"--allreduce takes one worker per node, not --workers {workers}")
    cluster = None if resources is None else resources_from(resources, None)
    if nodes is not None and nodes < 1:
        raise UsageError(f"--nodes {nodes}: give 1 or more")
    if nodes is None and cluster is None:
        raise UsageError(
            "for how many nodes? Give --nodes 4, or --resources with a file of `adabench resources`"
        )
    (where,) = clusters_of(cluster, None if nodes is None else [nodes], network)
    trained = usecase_from(usecase, data, seed)
    compute, said = compute_of(usecase, backend, step, resources, cluster, data, seed)
    tell(f"{usecase}, {backend}, {where.nodes} nodes: a step computes for {1e3 * compute:.3g} ms, {said}")
    last_percent = None if dry_run else _last_node_percent(where)
    limits = memory_limits(memory, [node.memory for node in where.node])
    wanted = Wanted(target, limits, solver, effort, seed)
    situation = Situation(where, workers, compute)
    space = _space(travelling, allreduce)
    with _progress() as told:
        told("counting accesses and solving")
        found, _ = candidates(trained, backend, situation, space, wanted, builders)
        found = simulated_all(
            found, trained, backend, situation, steps, seed, lambda name: told(f"simulating {name}")
        )
    found.sort(key=lambda one: one.rank(target))
    for line in table_of(found):
        tell(line)
    measured: dict[str, str | float | Sequence[str]] = {}
    if not dry_run:
        overrides = {
            "nodes": where.nodes,
            "workers": workers,
            "network": network,
            "data": None if data is None else str(data),
            "seed": seed,
            "last_node_percent": last_percent,
        }
        found, measured = _tried(found, trials, blocks, usecase, backend, overrides, results_root(results))
    if out is None:
        tell(f"best: {found[0].name}; -o FILE writes it")
        return
    try:
        with_evidence(found, target, usecase, measured).write(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {(error.strerror or str(error)).lower()}") from error
    tell(shown(out))


def _tried(
    found: list[Candidate],
    trials: int,
    blocks: int,
    usecase: str,
    backend: str,
    overrides: Mapping[str, object],
    root: Path,
) -> tuple[list[Candidate], dict[str, str | float | Sequence[str]]]:
    """The candidates, the one that trains fastest first, and the evidence."""
    from rich.console import Console

    from adabench.harness.session.policy_trials import Interrupted, Trials, halved
    from adabench.harness.study.syntax import parse_selections

    baseline = next((one for one in found if not one.ways), None)
    if baseline is None:
        raise UsageError("--builders '': trial runs need one to compare with; name one, or give --dry-run")
    rivals = [one for one in found if one.ways][:trials]
    (selected,) = parse_selections(usecase)
    given: dict[str, object] = {name: value for name, value in overrides.items() if value is not None}
    if "epochs" not in selected.values:
        given["params"] = {selected.name: {"epochs": 1}}
    tell(f"training with {len(rivals)} of them, against {baseline.name}, on this machine")
    runs = Trials(usecase, backend, given, root / "search-policies", root, Console(soft_wrap=True))
    try:
        best, everything = halved(rivals, baseline, blocks, runs.run, tell)
    except Interrupted as error:
        tell(str(error))
        raise typer.Exit(130) from error
    evidence: dict[str, str | float | Sequence[str]] = {
        "measured_against": baseline.name,
        "measured": [one.said() for one in everything],
    }
    last = everything[-1]
    if best is not baseline:
        evidence["measured_ratio"] = round(last.ratio, 4)
        if last.low == last.low:
            evidence["measured_interval"] = f"{last.low:.4f} to {last.high:.4f}, 95 %"
    tell(f"best: {best.name}" + ("" if best is not baseline else ", which none was faster than"))
    return [best, *(one for one in found if one is not best)], evidence


def table_of(found: Sequence[Candidate]) -> list[str]:
    """Lines of at most 80 columns, the best candidate first."""
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    best = next((one for one in found if one.ways), None)
    if best is not None:
        lines.append(f"{best.name}:")
        lines += [f"  {name}: {way}" for name, way in best.said]
    return lines


def _space(wires: tuple[str, ...], allreduce: bool) -> Space:
    from adabench.harness.estimate.search.options import Space

    dense = ("static", "replication", *(["allreduce"] if allreduce else []))
    return Space(dense=dense, wires=wires)


def _last_node_percent(where: Resources) -> int | None:
    """How fast the last node of trial runs is to be; None if all are alike."""
    *others, last = (node.speed for node in where.node)
    if all(speed == last for speed in others):
        return None
    percent = round(100 * last / others[0])
    if any(speed != others[0] for speed in others) or not 1 <= percent < 100:
        raise UsageError(
            "trial runs train on this machine, where nodes are alike but for a last one that may be slower, "
            "and not at speeds of " + ", ".join(f"{node.speed:g}" for node in where.node) + ": give --dry-run"
        )
    return percent


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{option} {value}: valid are {', '.join(known)}")
    return value


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says what is being done, in a terminal, and leaves nothing behind."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(plain(text).replace("[", r"\["))
