"""Outcomes of calls with tables in place of tensors."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autoada
from tests.operations.cases import Case

__all__ = ["Trial", "try_cases"]

PACKAGE = str(Path(autoada.__file__).parent)


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
        Whether the call pulled at least as many rows as the table has.
    """

    case: Case
    outcome: str
    text: str = ""
    whole: bool = True


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
    expected = _effects(case, nn.Parameter(case.values.clone()))
    before = model.node.stats()["pulled_local"]
    found = _effects(case, table)
    pulled = model.node.stats()["pulled_local"] - before - len(table)  # the comparison reads each row
    if isinstance(found, Exception):
        if isinstance(expected, Exception):
            changed = _difference(_observed(nn.Parameter(case.values)), _observed(table))
            return Trial(case, "different" if changed else "plain refuses", f"{_text(found)}; {changed}")
        return Trial(case, "refused" if _is_refusal(found) else "different", _text(found))
    if isinstance(expected, Exception):
        return Trial(case, "different", f"no error, and PyTorch raises {_text(expected)}")
    difference = _difference(expected, found)
    return Trial(case, "different" if difference else "equal", difference, pulled >= len(table))


def _effects(case: Case, table: Tensor) -> Any:
    """Effects of the case on a table, or the error that it raises."""
    try:
        return _observed(case.observe(table))
    except Exception as error:  # the outcome to compare, of any type
        return error


def _is_refusal(error: Exception) -> bool:
    """Whether the wrapper raised the error on purpose: it names a table."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return innermost.filename.startswith(PACKAGE) and "table" in str(error)


def _text(error: Exception) -> str:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:200]} ({Path(innermost.filename).name}:{innermost.lineno})"


def _observed(tree: Any) -> Any:
    """The tree with plain copies of all tensors."""
    return pytree.tree_map(lambda leaf: _copied(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _copied(tensor: Tensor) -> Any:
    """The properties of a tensor, and its values."""
    with torch.no_grad():
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        values = torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)
    return _Seen(tensor.requires_grad, values)


@dataclass(frozen=True)
class _Seen:
    requires_grad: bool
    values: Tensor


def _difference(expected: Any, found: Any) -> str:
    """Description of the first difference between two trees, or an empty text."""
    wanted, given = pytree.tree_leaves_with_path(expected), pytree.tree_leaves_with_path(found)
    if [path for path, _ in wanted] != [path for path, _ in given]:
        return f"{_short(expected)} expected, got {_short(found)}"
    for (path, one), (_, other) in zip(wanted, given, strict=True):
        where = pytree.keystr(path)
        if isinstance(one, _Seen) and isinstance(other, _Seen):
            if one.requires_grad != other.requires_grad:
                return f"{where}: requires_grad should be {one.requires_grad}"
            if one.values.dtype != other.values.dtype or one.values.shape != other.values.shape:
                return (
                    f"{where}: {one.values.dtype} {tuple(one.values.shape)} expected, "
                    f"got {other.values.dtype} {tuple(other.values.shape)}"
                )
            if not torch.allclose(one.values, other.values, 1e-5, 1e-5, equal_nan=True):
                return f"{where}: {_short(one.values)} expected, got {_short(other.values)}"
        elif type(one) is not type(other) or not (one is other or one == other or one != one):
            return f"{where}: {_short(one)} expected, got {_short(other)}"
    return ""


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:160]
