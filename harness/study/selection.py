"""Selection of cells from all combinations: included and not excluded cells, or a sample of them."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from adabench.harness.errors import UsageError, unknown
from adabench.harness.study.cell import Cell
from adabench.results.run_settings import RunSettings

Pattern = dict[str, Any]
"""Parameter, run setting, ``usecase`` or ``backend`` -> the value, or list of values, of a cell."""

_OWN = ("usecase", "backend", *RunSettings.__struct_fields__)


def checked_patterns(value: Any) -> list[Pattern]:
    """The patterns of a study file's ``include`` or ``exclude``: an array of tables that are not empty."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise UsageError(f"{value!r} is not an array of tables, such as {{ backend = 'manual', nodes = 1 }}")
    for pattern in value:
        if not pattern:
            raise UsageError("a pattern without any key matches every cell: name a parameter or a backend")
    return value


def select(
    cells: Sequence[Cell], include: Sequence[Pattern], exclude: Sequence[Pattern], sample: int, seed: int
) -> list[Cell]:
    """Cells that match a pattern of `include`, if there are any, and none of `exclude`.

    Parameters
    ----------
    cells : sequence of Cell
        Cells to select from.
    include, exclude : sequence of Pattern
        Patterns of included and excluded cells.
    sample : int
        Number of cells to draw at random from these, without replacement and in their order; 0 for all.
    seed : int
        Seed of the sample.
    """
    known = {*_OWN, *(name for cell in cells for name in cell.recorded_params)}
    for pattern in [*include, *exclude]:
        for name in pattern:
            if name not in known:
                raise unknown("parameter", name, sorted(known))
    chosen = [
        cell
        for cell in cells
        if (not include or any(_matches(cell, one) for one in include))
        and not any(_matches(cell, one) for one in exclude)
    ]
    if not chosen:
        raise UsageError("include and exclude leave no cell: there is nothing to run")
    if 0 < sample < len(chosen):
        drawn = sorted(random.Random(f"{seed} sample").sample(range(len(chosen)), sample))
        chosen = [chosen[index] for index in drawn]
    return chosen


def _matches(cell: Cell, pattern: Mapping[str, Any]) -> bool:
    has = {name: getattr(cell, name) for name in _OWN} | cell.recorded_params
    return all(
        name in has and has[name] in (wanted if isinstance(wanted, list) else [wanted])
        for name, wanted in pattern.items()
    )
