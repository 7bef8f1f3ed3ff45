"""Solvers of the search: exact ones equal exhaustive search, limits are kept, bounds are valid."""

import numpy as np
import pytest

from adabench.harness.estimate.search.problem import Infeasible, Problem
from adabench.harness.estimate.search.solvers import SOLVERS, solve
from tests.search_problems import brute_force, many_tables


def random_problem(seed: int) -> Problem:
    """A random problem; every second one has several loads, the largest of which counts."""
    random = np.random.default_rng(seed)
    units, nodes = int(random.integers(2, 6)), int(random.integers(1, 4))
    width = int(random.integers(1, 5)) if seed % 2 else 1
    loads = [random.exponential(size=(int(random.integers(1, 6)), width)) for _ in range(units)]
    memory = [random.exponential(size=(len(own), nodes)) for own in loads]
    limits = np.where(random.random(nodes) < 0.3, np.inf, random.uniform(0.4, 1.2, nodes) * units)
    return Problem.of(loads, memory, random.exponential(size=width), limits)


def test_what_is_exact_equals_brute_force_on_200_random_instances() -> None:
    infeasible = 0
    for seed in range(200):
        problem = random_problem(seed)
        best = brute_force(problem)
        for solver in ("exact", "auto") if seed % 20 == 0 else ("exact",):
            if best is None:
                with pytest.raises(Infeasible):
                    solve(problem, solver)
                infeasible += 1
                continue
            found = solve(problem, solver, effort=0.05)
            assert found.value == pytest.approx(best.value, rel=1e-9), f"seed {seed}, {solver}"
            assert found.value == problem.value(found.choices)
            assert problem.fits(found.choices)
            assert found.proved
    assert 0 < infeasible < 200  # limits are neither idle nor too tight


@pytest.mark.parametrize("solver", ["annealing", "differentiable"])
def test_what_approximates_keeps_limits_and_is_near(solver: str) -> None:
    ratios = []
    for seed in range(20):
        problem = random_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        found = solve(problem, solver, effort=0.05)
        assert problem.fits(found.choices)
        assert found.bound <= best.value * (1 + 1e-9)
        assert found.value >= best.value * (1 - 1e-9)
        ratios.append(found.value / best.value)
    assert np.median(ratios) == pytest.approx(1, rel=1e-9)
    assert np.mean(ratios) < 1.05


def test_a_thousand_tables_are_solved_with_a_bound() -> None:
    problem = many_tables(1000, 10, 16)
    found = solve(problem, "auto", effort=0.3)
    assert problem.fits(found.choices)
    assert found.value == problem.value(found.choices)
    assert not found.proved
    assert found.gap < 0.1


def test_a_knapsack_of_a_hundred_tables_is_solved_exactly() -> None:
    random = np.random.default_rng(5)
    loads = [random.exponential(size=(6, 1)) for _ in range(100)]
    memory = [random.exponential(size=(6, 1)) for _ in range(100)]
    problem = Problem.of(loads, memory, limits=np.array([60.0]))
    found = solve(problem, "exact")
    assert found.proved
    assert problem.fits(found.choices)
    for solver in ("annealing", "differentiable"):
        assert solve(problem, solver, effort=0.1).value >= found.value * (1 - 1e-9)


def test_units_with_fewer_choices_than_others_get_one_that_they_have() -> None:
    problem = many_tables(100, 10, 4)
    found = solve(problem, "exact", effort=0.1)
    assert (found.choices < problem.counts).all()
    assert found.value == problem.value(found.choices)


def test_equal_arguments_give_equal_solutions() -> None:
    problem = many_tables(60, 6, 4)
    for solver in SOLVERS:
        one, other = (solve(problem, solver, effort=0.1, seed=3) for _ in range(2))
        assert (one.value, one.choices.tolist()) == (other.value, other.choices.tolist())


def test_limits_that_nothing_keeps_say_the_least_that_would_do() -> None:
    problem = Problem.of(
        [np.array([[1.0], [2.0]])] * 2, [np.array([[4.0, 0.0], [0.0, 4.0]])] * 2, limits=np.array([2.0, 2.0])
    )
    with pytest.raises(Infeasible) as raised:
        solve(problem)
    assert (raised.value.factor, raised.value.proved) == (2.0, True)


def test_choices_that_another_one_is_as_good_as_are_left_out_and_keep_their_numbers() -> None:
    loads = [np.array([[3.0, 3.0], [1.0, 2.0], [2.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])]
    smaller, kept = Problem.of(loads).without_dominated()
    assert [own.tolist() for own in kept] == [[1, 3], [0]]
    assert smaller.counts.tolist() == [2, 1]
    limited = Problem.of(
        loads, [np.array([[0.0], [9.0], [9.0], [9.0]]), np.zeros((2, 1))], limits=np.array([1.0])
    )
    assert [own.tolist() for own in limited.without_dominated()[1]] == [[0, 1, 3], [0]]
    assert solve(limited).choices.tolist() == [0, 0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a problem without units"):
        Problem.of([])
    with pytest.raises(ValueError, match="unit 1 has no choice"):
        Problem.of([np.ones((1, 1)), np.ones((0, 1))])
    with pytest.raises(ValueError, match="2 bases of 1 loads"):
        Problem.of([np.ones((1, 1))], base=np.ones(2))
