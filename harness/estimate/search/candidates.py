"""Candidates: what solvers find in the whole space and in parts of it, and what builders make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adabench.backends.interface import Searchable, Served, ServerOptions, Simulated, SimulatedRun
from adabench.harness.errors import UsageError, unknown
from adabench.harness.estimate.search.accesses import accesses_of
from adabench.harness.estimate.search.formulate import Model, Objective, Prediction
from adabench.harness.estimate.search.options import Space, Way, policy_of
from adabench.harness.estimate.search.problem import Floats, Infeasible, Solution
from adabench.harness.estimate.search.solvers import SOLVERS, solve
from adabench.harness.estimate.search.table_costs import Situation
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.model_parameters import model_parameters_of
from adabench.harness.study.policies import policy_of_usecase
from adabench.usecases.interface import UseCase
from adaps.policy import MadeFor, Policy, PolicyError
from adaps.simulation import Simulation

__all__ = ["Candidate", "Wanted", "candidates", "memory_limits", "simulated_all"]

_MEBI = 2.0**20
_PASSES = 3
"""Times that the pace of a step is taken from the solution before."""


@dataclass(frozen=True)
class Wanted:
    """What is searched for.

    Attributes
    ----------
    objective : "time" or "bytes"
    limits : float array, optional
        Of each node's memory, in bytes.
    solver : str
    effort : float
        Of the solver.
    seed : int
    """

    objective: Objective = "time"
    limits: Floats | None = None
    solver: str = "auto"
    effort: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise unknown("solver", self.solver, SOLVERS)


@dataclass(frozen=True)
class Candidate:
    """A policy that may be the best.

    Attributes
    ----------
    name : str
    policy : Policy
    tables : tuple of Served
        Of the server; none for what a builder has made.
    ways : tuple of Way
        How each of them is managed.
    prediction : Prediction, optional
        Of the closed form; of builders there is none.
    gap : float
        The most that its objective is above the least of its part of the space.
    simulation : Simulation, optional
        Of the playground; None before it, and of what is not simulated.
    """

    name: str
    policy: Policy
    tables: tuple[Served, ...] = ()
    ways: tuple[Way, ...] = ()
    prediction: Prediction | None = None
    gap: float = 0.0
    simulation: Simulation | None = None

    @property
    def said(self) -> list[tuple[str, str]]:
        """Each table, by one of its parameters, and how it is managed."""
        found = []
        for served, way in zip(self.tables, self.ways, strict=True):
            more = len(served.parameters) - 1
            found.append((served.parameters[0] + (f" and {more} more" if more else ""), way.text()))
        return found

    @property
    def seconds(self) -> float:
        """Of a step: simulated, or else predicted."""
        if self.simulation is not None:
            return self.simulation.seconds_per_step
        return float("inf") if self.prediction is None else self.prediction.seconds

    @property
    def bytes(self) -> float:
        """That a node sends per step: simulated, or else predicted."""
        if self.simulation is not None:
            return self.simulation.bytes_per_step
        return float("inf") if self.prediction is None else self.prediction.bytes

    def rank(self, objective: Objective) -> tuple[float, float]:
        """The lesser, the better; times that differ by less than a hundredth count as equal."""
        if objective == "bytes":
            return self.bytes, self.seconds
        return round(np.log(max(self.seconds, 1e-12)) / np.log(1.01)), self.bytes


def memory_limits(mebibytes: float | None, known: Sequence[int]) -> Floats | None:
    """Of each node, in bytes: what is given, and no more than what it has, where that is known."""
    given = np.inf if mebibytes is None else mebibytes * _MEBI
    limits = np.array([min(given, float(memory) if memory else np.inf) for memory in known])
    return limits if np.isfinite(limits).any() else None


def candidates(
    usecase: UseCase, backend: str, situation: Situation, space: Space, wanted: Wanted, builders: str
) -> tuple[list[Candidate], Model]:
    """What may be best, without any simulation; the first one is what the whole space's solution is.

    Parameters
    ----------
    usecase : UseCase
    backend : str
        A backend on the parameter server.
    situation : Situation
    space : Space
    wanted : Wanted
    builders : str
        Files or builders, such as ``adaptive,nups[times=50]``; none if it is empty.

    Returns
    -------
    list of Candidate, Model
        And the costs by which they were found.

    Raises
    ------
    UsageError
        If the backend has no tables to search for, or no policy keeps the limits.
    """
    found = load_backend(backend)()
    if not isinstance(found, Searchable):
        raise UsageError(f"backend {backend!r} is none on the parameter server: there is nothing to search")
    try:
        tables = found.served(usecase)
    except ValueError as error:
        raise UsageError(f"backend {backend!r}: {error}") from error
    accesses = accesses_of(usecase, tables, situation.nodes, situation.workers)
    model = Model(tables, accesses, situation, space)
    model, whole = _at_its_own_pace(model, wanted)
    made_for = MadeFor(model_parameters_of(usecase).sha256, situation.nodes)
    result: list[Candidate] = []
    for name, part in [("found", space), *_parts(space)]:
        try:
            solution, ways = whole if name == "found" else _solved(model, part, wanted)
        except Infeasible:
            continue
        if any(ways == one.ways for one in result):
            continue
        policy = policy_of(name, tables, ways, accesses, made_for)
        result.append(Candidate(name, policy, tables, ways, model.prediction(ways), solution.gap))
    result += [
        Candidate(text, policy_of_usecase(text, usecase, situation.resources, situation.workers))
        for text in _texts(builders)
    ]
    return result, model


def simulated_all(
    found: Sequence[Candidate],
    usecase: UseCase,
    backend: str,
    situation: Situation,
    steps: int,
    seed: int,
    told: Callable[[str], None],
) -> list[Candidate]:
    """The candidates with what the playground says of them.

    Parameters
    ----------
    found : sequence of Candidate
    usecase : UseCase
    backend : str
    situation : Situation
    steps : int
        Of each worker.
    seed : int
    told : callable
        What is simulated next.

    Raises
    ------
    UsageError
        If a builder's policy cannot be simulated.
    """
    runs = load_backend(backend)()
    assert isinstance(runs, Simulated)
    result = []
    for one in found:
        told(one.name)
        run = SimulatedRun(
            situation.resources.cluster(),
            one.policy,
            workers=situation.workers,
            steps=steps,
            compute=situation.compute,
            seed=seed,
        )
        try:
            result.append(replace(one, simulation=runs.simulate(usecase, ServerOptions(), run)))
        except PolicyError as error:
            if one.prediction is None:
                raise UsageError(
                    f"--builders {one.name}: it cannot be simulated, so that nothing is known of it ({error})"
                ) from error
            result.append(one)  # what only the closed form knows
    return result


def _at_its_own_pace(model: Model, wanted: Wanted) -> tuple[Model, tuple[Solution, tuple[Way, ...]]]:
    """How often changes are exchanged depends on how long a step takes, which is that of the solution."""
    for _ in range(_PASSES):
        try:
            whole = _solved(model, model.space, wanted)
        except Infeasible as error:
            raise UsageError(_least(error, wanted)) from error
        seconds = model.prediction(whole[1]).seconds
        if abs(seconds - model.situation.step) <= 0.02 * seconds:
            break
        model = model.at_pace(seconds)
    else:
        whole = _solved(model, model.space, wanted)
    return model, whole


def _solved(model: Model, space: Space, wanted: Wanted) -> tuple[Solution, tuple[Way, ...]]:
    ways = [model.ways(table, space) for table in range(len(model.tables))]
    solution = solve(
        model.problem(ways, wanted.objective, wanted.limits), wanted.solver, wanted.effort, wanted.seed
    )
    return solution, tuple(own[choice] for own, choice in zip(ways, solution.choices, strict=True))


def _parts(space: Space) -> Iterator[tuple[str, Space]]:
    """Parts of the space, so that what the closed form judges wrongly has a rival of another kind."""
    if space.split:
        yield "found, rows alike", replace(space, split=False)
    for technique in space.techniques:
        yield f"tables {technique}", replace(space, techniques=(technique,), split=False)
    for technique in space.dense:
        yield f"dense {technique}", replace(space, dense=(technique,))


def _least(error: Infeasible, wanted: Wanted) -> str:
    assert wanted.limits is not None
    least = error.factor * float(wanted.limits[np.isfinite(wanted.limits)].max()) / _MEBI
    given = float(wanted.limits[np.isfinite(wanted.limits)].max()) / _MEBI
    would = "the least that would do is" if error.proved else "what would do is"
    return f"no policy keeps a limit of {given:.4g} MiB per node: {would} {least:.4g} MiB"


def _texts(builders: str) -> list[str]:
    from adabench.harness.study.syntax import parse_selections

    if not builders:
        return []
    (selected,) = parse_selections(f"manual[policy={builders}]")
    return [str(one) for one in selected.values["policy"]]
