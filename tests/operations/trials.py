"""Outcomes of calls with tables in place of tensors."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import autoada
from tests.effects import describe, difference, effects_of, is_refusal
from tests.operations.cases import Case


@dataclass(frozen=True)
class Trial:
    """The outcome of one case.

    Attributes
    ----------
    case : Case
        The case.
    outcome : str
        "equal", "refused", "plain refuses" or "different".
    text : str
        Description of the difference or of the refusal.
    whole : bool
        Whether a call with the table itself pulls at least as many rows as the table has.
    """

    case: Case
    outcome: str
    text: str = ""
    whole: bool = False


class Tables(nn.Module):
    """One parameter for each case."""

    def __init__(self, values: Iterable[Tensor]) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(one.clone()) for one in values)


def try_cases(cases: Sequence[Case]) -> list[Trial]:
    """Outcome of each case, with one table for each in the server of one node."""
    if not cases:
        return []
    module = Tables(case.values for case in cases)
    names = [f"tables.{index}" for index in range(len(cases))]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = autoada.AdaModel(module, optimizer, tables=names)
        try:
            return [_try(case, table, model) for case, table in zip(cases, module.tables, strict=True)]
        finally:
            model.close()


def _try(case: Case, table: Tensor, model: Any) -> Trial:
    plain = nn.Parameter(case.values.clone())
    expected = effects_of(lambda: case.observe(plain))
    if isinstance(expected, Exception) and "INTERNAL ASSERT FAILED" in str(expected):
        return Trial(case, "plain refuses", describe(expected))  # a defect of PyTorch, not a behaviour
    found = effects_of(lambda: case.observe(table))
    different = difference(expected, found)
    if isinstance(found, Exception):
        different = different or difference(effects_of(lambda: case.values), effects_of(table.detach))
        if isinstance(expected, Exception):
            return Trial(case, "different" if different else "plain refuses", different)
        return Trial(case, "refused" if is_refusal(found) else "different", describe(found))
    whole = case.direct and not different and _pulled(case, table, model) >= len(table)
    return Trial(case, "different" if different else "equal", different, whole)


def _pulled(case: Case, table: Any, model: Any) -> float:
    """How many rows one more call pulls."""
    table.grad = None
    with torch.no_grad():
        table.copy_(case.values)
    table.store.forget_rows()
    before = model.node.stats()["pulled_local"]
    case.observe(table)
    return float(model.node.stats()["pulled_local"] - before)
