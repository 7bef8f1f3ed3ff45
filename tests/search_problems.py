"""Random problems for testing and comparing solvers of the search."""

import numpy as np

from adabench.harness.estimate.search.problem import Problem, Solution


def many_tables(tables: int, choices: int, nodes: int, seed: int = 0) -> Problem:
    """A problem of tables that are copied everywhere, scattered over the nodes, or all on some node.

    Parameters
    ----------
    tables, choices, nodes : int
    seed : int
        The seed of the sizes and of how often tables are read; both have a long tail.
    """
    random = np.random.default_rng(seed)
    size = random.pareto(1.1, size=tables) + 0.1
    heat = size**0.7 * random.exponential(size=tables)
    loads, memory = np.zeros((tables, choices, 3, nodes)), np.zeros((tables, choices, nodes))
    loads[:, 0] = heat[:, None, None] * np.array([0.3, 0.2, 0.6])[:, None]
    memory[:, 0] = size[:, None]
    for choice in (1, 2):
        factor = heat * random.uniform(0.5, 1.2, tables)
        loads[:, choice] = factor[:, None, None] * np.array([1.0, 0.5, 0.7])[:, None]
        memory[:, choice] = size[:, None] / nodes * (1 + 0.5 * (choice == 2))
    rows = np.arange(tables)
    for choice in range(3, choices):
        node = random.integers(nodes, size=tables)
        loads[:, choice] = 0.5 * (heat * random.uniform(0.5, 1.2, tables))[:, None, None]
        loads[rows, choice, :, node] += heat[:, None] * np.array([-0.4, 4.0, 4.0])
        memory[rows, choice, node] = size
    limits = np.full(nodes, 1.6 * size.sum() / nodes + size.max() / 2)
    return Problem.of(list(loads.reshape(tables, choices, 3 * nodes)), list(memory), limits=limits)


def brute_force(problem: Problem) -> Solution | None:
    """The best of all combinations, by trying each; None if none keeps the limits.

    Parameters
    ----------
    problem : Problem
        A problem with few combinations.
    """
    every = map(np.array, np.ndindex(*problem.counts.tolist()))
    best = min(filter(problem.fits, every), key=problem.value, default=None)
    return None if best is None else Solution(best, problem.value(best), problem.value(best), "brute force")
