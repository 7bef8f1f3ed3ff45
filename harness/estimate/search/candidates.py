"""Candidates: what solvers find in the whole space and in parts of it, and what builders make."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adabench.backends.interface import Searchable, Served, ServerOptions, Simulated, SimulatedRun
from adabench.harness.errors import UsageError
from adabench.harness.estimate.search.accesses import accesses_of
from adabench.harness.estimate.search.cost_model import CostModel, Objective, Prediction
from adabench.harness.estimate.search.options import Space, TableOption, policy_of
from adabench.harness.estimate.search.problem import Floats, Infeasible
from adabench.harness.estimate.search.solvers import solve
from adabench.harness.estimate.search.table_costs import Situation
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.model_parameters import model_parameters_of
from adabench.harness.study.policies import policy_of_usecase
from adabench.usecases.interface import UseCase
from adaps.policy import MadeFor, Policy, PolicyError
from adaps.simulation import Simulation

Evidence = dict[str, "str | float | Sequence[str]"]
_MEBI = 2.0**20
_PASSES = 3
"""Number of searches, each with the step time of the solution before."""


@dataclass(frozen=True)
class SearchProblem:
    """A search for a policy: the training job, the cluster, the objective and the solver.

    Attributes
    ----------
    usecase : UseCase
        Use case to train.
    backend : str
        Name of a backend on the parameter server.
    situation : Situation
        Cluster, workers and compute time.
    space : Space
        Options that are searched.
    objective : "time" or "bytes"
        Quantity to minimise.
    limits : float array, optional
        Limits of each node's memory, in bytes.
    solver : str
        Name of the solver.
    effort : float
        Solver effort: 1 takes about one second per thousand tables.
    seed : int
        Seed for the solver's draws.
    """

    usecase: UseCase
    backend: str
    situation: Situation
    space: Space
    objective: Objective = "time"
    limits: Floats | None = None
    solver: str = "auto"
    effort: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Candidate:
    """A policy that may be the best.

    Attributes
    ----------
    name : str
        Name in the output.
    policy : Policy
        Policy of the candidate.
    tables : tuple of Served
        Tables of the server; empty for a builder's policy.
    options : tuple of TableOption
        Option of each table.
    prediction : Prediction, optional
        Prediction of the closed form; None for a builder's policy.
    simulation : Simulation, optional
        Result of the simulator; None before it, and for policies that cannot be simulated.
    """

    name: str
    policy: Policy
    tables: tuple[Served, ...] = ()
    options: tuple[TableOption, ...] = ()
    prediction: Prediction | None = None
    simulation: Simulation | None = None

    @property
    def said(self) -> list[tuple[str, str]]:
        """Return each table, named by one of its parameters, with its option."""
        found = []
        for served, option in zip(self.tables, self.options, strict=True):
            more = len(served.parameters) - 1
            found.append((served.parameters[0] + (f" and {more} more" if more else ""), option.text()))
        return found

    @property
    def seconds(self) -> float:
        """Seconds of a step: simulated, or else predicted."""
        if self.simulation is not None:
            return self.simulation.seconds_per_step
        return float("inf") if self.prediction is None else self.prediction.seconds

    @property
    def bytes(self) -> float:
        """Bytes that a node sends per step: simulated, or else predicted."""
        if self.simulation is not None:
            return self.simulation.bytes_per_step
        return float("inf") if self.prediction is None else self.prediction.bytes

    def rank(self, objective: Objective) -> tuple[float, float]:
        """Sort key: smaller is better, and times that differ by less than 1 % count as equal."""
        if objective == "bytes":
            return self.bytes, self.seconds
        return round(np.log(max(self.seconds, 1e-12)) / np.log(1.01)), self.bytes


def memory_limits(mebibytes: float | None, known: Sequence[int]) -> Floats | None:
    """Return each node's limit in bytes: the given limit, or the node's memory if that is smaller."""
    given = np.inf if mebibytes is None else mebibytes * _MEBI
    limits = np.array([min(given, float(memory) if memory else np.inf) for memory in known])
    return limits if np.isfinite(limits).any() else None


def candidates(problem: SearchProblem, builders: str) -> list[Candidate]:
    """Return solutions of the whole space, of its parts, and policies of builders, without simulation.

    Parameters
    ----------
    problem : SearchProblem
        Search for which candidates are made.
    builders : str
        Files or builders, such as ``adaptive,nups[times=50]``; none if it is empty.

    Returns
    -------
    list of Candidate
        The solution of the whole space is the first one.

    Raises
    ------
    UsageError
        If the backend has no tables to search for, or no policy keeps the limits.
    """
    usecase, situation = problem.usecase, problem.situation
    found = load_backend(problem.backend)()
    if not isinstance(found, Searchable):
        raise UsageError(
            f"backend {problem.backend!r} does not use the parameter server: there is nothing to search"
        )
    try:
        tables = found.served(usecase)
    except ValueError as error:
        raise UsageError(f"backend {problem.backend!r}: {error}") from error
    accesses = accesses_of(usecase, tables, situation.nodes, situation.workers)
    model, whole = _at_its_own_pace(CostModel(tables, accesses, situation, problem.space), problem)
    made_for = MadeFor(model_parameters_of(usecase).sha256, situation.nodes)
    result: list[Candidate] = []
    for name, part in [("found", problem.space), *_parts(problem.space)]:
        try:
            options = whole if name == "found" else _solved(model, part, problem)
        except Infeasible:
            continue
        if all(options != one.options for one in result):
            policy = policy_of(name, tables, options, accesses, made_for)
            result.append(Candidate(name, policy, tables, options, model.prediction(options)))
    result += [
        Candidate(text, policy_of_usecase(text, usecase, situation.resources, situation.workers))
        for text in _texts(builders)
    ]
    return result


def simulated_all(
    found: Sequence[Candidate], problem: SearchProblem, steps: int, told: Callable[[str], None]
) -> list[Candidate]:
    """Return the candidates with the results of the simulator.

    Parameters
    ----------
    found : sequence of Candidate
        Candidates to simulate.
    problem : SearchProblem
        Search to which the candidates belong.
    steps : int
        Steps of each worker.
    told : callable
        Called with the name of the candidate that is simulated next.

    Raises
    ------
    UsageError
        If a builder's policy cannot be simulated.
    """
    runs, situation = load_backend(problem.backend)(), problem.situation
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
            seed=problem.seed,
        )
        try:
            result.append(replace(one, simulation=runs.simulate(problem.usecase, ServerOptions(), run)))
        except PolicyError as error:
            if one.prediction is None:
                raise UsageError(
                    f"--builders {one.name}: it cannot be simulated, so its time is not known ({error})"
                ) from error
            result.append(one)
    return result


def with_evidence(
    found: Sequence[Candidate], problem: SearchProblem, usecase: str, measured: Evidence
) -> Policy:
    """Return the first candidate's policy, with the figures that led to its choice.

    Parameters
    ----------
    found : sequence of Candidate
        Candidates, the best one first.
    problem : SearchProblem
        Search to which the candidates belong.
    usecase : str
        Use case in the form of the command line.
    measured : dict
        Results of trial runs.
    """
    best = found[0]
    evidence: Evidence = {
        "searched_for": f"{problem.objective} of {usecase}",
        "candidate": best.name,  # The policy has another name if a builder has made it.
    }
    if best.prediction is not None:
        evidence["predicted_ms_per_step"] = round(1e3 * best.prediction.seconds, 4)
        evidence["predicted_kb_per_step"] = round(1e-3 * best.prediction.bytes, 3)
    if best.simulation is not None:
        evidence["simulated_ms_per_step"] = round(1e3 * best.simulation.seconds_per_step, 4)
        evidence["simulated_kb_per_step"] = round(1e-3 * best.simulation.bytes_per_step, 3)
    return replace(best.policy, evidence={**evidence, **measured, "tried": [_figures(one) for one in found]})


def _figures(one: Candidate) -> str:
    parts = []
    if one.prediction is not None:
        parts.append(f"predicted {1e3 * one.prediction.seconds:.3f} ms")
    if one.simulation is not None:
        parts.append(f"simulated {1e3 * one.simulation.seconds_per_step:.3f} ms")
    return f"{one.name}: {', '.join(parts) or 'neither predicted nor simulated'}"


def _at_its_own_pace(model: CostModel, problem: SearchProblem) -> tuple[CostModel, tuple[TableOption, ...]]:
    """Return the solution for its own step time, which determines how often changes are exchanged."""
    for _ in range(_PASSES):
        try:
            options = _solved(model, problem.space, problem)
        except Infeasible as error:
            raise UsageError(_least(error, problem.limits)) from error
        seconds = model.prediction(options).seconds
        if abs(seconds - model.situation.step) <= 0.02 * seconds:
            return model, options
        model = model.at_pace(seconds)
    return model, _solved(model, problem.space, problem)


def _solved(model: CostModel, space: Space, problem: SearchProblem) -> tuple[TableOption, ...]:
    options = [model.options(table, space) for table in range(len(model.tables))]
    solution = solve(
        model.problem(options, problem.objective, problem.limits),
        problem.solver,
        problem.effort,
        problem.seed,
    )
    return tuple(own[choice] for own, choice in zip(options, solution.choices, strict=True))


def _parts(space: Space) -> Iterator[tuple[str, Space]]:
    """Return parts of the space, so that a solution with a wrong prediction has different competitors."""
    if space.split:
        yield "found, rows alike", replace(space, split=False)
    for technique in space.techniques:
        yield f"tables {technique}", replace(space, techniques=(technique,), split=False)
    for technique in space.dense:
        yield f"dense {technique}", replace(space, dense=(technique,))


def _least(error: Infeasible, limits: Floats | None) -> str:
    assert limits is not None
    given = float(limits[np.isfinite(limits)].max()) / _MEBI
    would = "the smallest limit that suffices is" if error.proved else "a limit that suffices is"
    wanted = f"{error.factor * given:.4g} MiB"
    return f"every policy exceeds the limit of {given:.4g} MiB per node: {would} {wanted}"


def _texts(builders: str) -> list[str]:
    from adabench.harness.study.syntax import parse_selections

    if not builders:
        return []
    (selected,) = parse_selections(f"manual[policy={builders}]")
    return [str(one) for one in selected.values["policy"]]
