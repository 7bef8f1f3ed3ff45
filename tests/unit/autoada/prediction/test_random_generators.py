"""States of the global random generators can be set back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from autoada.prediction.random_generators import global_generators, same_state, set_states, states_of

DRAWS: list[Callable[[], Any]] = [
    lambda: torch.rand(3).tolist(),
    lambda: np.random.rand(3).tolist(),  # noqa: NPY002
    lambda: np.random.normal(size=3).tolist(),  # noqa: NPY002
    random.random,
    lambda: random.gauss(0, 1),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_are_drawn_again_after_a_state_is_set(draw: Callable[[], Any]) -> None:
    known = global_generators()
    random.gauss(0, 1)  # The second number of the pair is part of the state.
    np.random.normal()  # noqa: NPY002 - as here
    before = states_of(known)
    first = [draw() for _ in range(3)]
    assert not same_state(before, states_of(known))
    set_states(known, before)
    assert same_state(before, states_of(known))
    assert [draw() for _ in range(3)] == first


@pytest.mark.parametrize("draw", [lambda: random.gauss(0, 1), np.random.normal])
def test_the_draw_of_half_a_pair_changes_the_state(draw: Callable[[], Any]) -> None:
    known = global_generators()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    draw()
    before = states_of(known)
    draw()
    assert not same_state(before, states_of(known))
