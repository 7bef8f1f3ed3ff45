"""Restarts, membership changes and takeovers of checkpoints in simulated worlds from seeds.

``python -m tests.simulation.explore 10000`` explores more of them; a seed reproduces a finding.
"""

import pytest

from tests.simulation.explore import explore, try_seed
from tests.simulation.mutants import MUTANTS

SEEDS, MOST_SEEDS = 200, 1000
"""Of the code as it is; and in which each mutant is found."""


def test_nothing_is_lost_or_mixed_whatever_happens(full: bool) -> None:
    assert explore(range(10_000 if full else SEEDS)) is None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mistake_is_found(mutant: str) -> None:
    assert explore(range(MOST_SEEDS), mutant) is not None


def test_a_seed_repeats_its_world() -> None:
    assert try_seed(7) == try_seed(7)
