"""The measure itself: it must see a slowdown of a fifth, and nothing where there is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio


def work(units: int) -> None:
    for _ in range(units):
        sum(number * number for number in range(25_000))


@pytest.mark.parametrize(("units", "expected"), [(10, 1.0), (12, 10 / 12), (5, 2.0)])
def test_ratio_is_that_of_the_work(ratio: Ratio, units: int, expected: float) -> None:
    assert ratio(lambda: work(units), lambda: work(10)) == pytest.approx(expected, rel=0.08)
