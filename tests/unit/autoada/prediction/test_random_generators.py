"""States of random generators can be set back, by the quick form and by the complete one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from autoada.prediction.random_generators import (
    global_generators,
    quick_global_generators,
    same_state,
    set_states,
    states_of,
)

DRAWS: list[Callable[[], Any]] = [
    lambda: torch.rand(3).tolist(),
    lambda: np.random.rand(3).tolist(),  # noqa: NPY002
    random.random,
    lambda: random.gauss(0, 1),
]


@pytest.mark.parametrize("generators", [global_generators, quick_global_generators])
@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_are_drawn_again_after_a_state_is_set(
    generators: Callable[[], list[Any]], draw: Callable[[], Any]
) -> None:
    known = generators()
    random.gauss(0, 1)  # The second number of the pair is part of the state.
    before = states_of(known)
    first = [draw() for _ in range(3)]
    assert not same_state(before, states_of(known))
    set_states(known, before)
    assert same_state(before, states_of(known))
    assert [draw() for _ in range(3)] == first


def test_quick_generators_find_the_draw_of_half_a_pair() -> None:
    known = quick_global_generators()
    random.gauss(0, 1)
    before = states_of(known)
    random.gauss(0, 1)
    assert not same_state(before, states_of(known))


def test_quick_generators_follow_another_source_of_bits() -> None:
    known, before = quick_global_generators(), np.random.mtrand.get_bit_generator()
    try:
        for source in (np.random.PCG64(3), np.random.MT19937(3)):
            np.random.mtrand.set_bit_generator(source)
            start = states_of(known)
            first = np.random.rand()  # noqa: NPY002
            assert not same_state(start, states_of(known))
            set_states(known, start)
            assert np.random.rand() == first  # noqa: NPY002
    finally:
        np.random.mtrand.set_bit_generator(before)
