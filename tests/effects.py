"""Effects of a call on plain tensors and on tables: equal, refused by the wrapper, or different."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import autoada

PACKAGE = str(Path(autoada.__file__).parent)


@dataclass(frozen=True)
class Seen:
    """A tensor's values and whether it requires gradients."""

    requires_grad: bool
    values: Tensor


def effects_of(call: Callable[[], Any]) -> Any:
    """Result of a call with copies of all tensors, or the error that the call raises."""
    try:
        return copied(call())
    except Exception as error:  # The error is the outcome to compare, of any type.
        return error


def copied(tree: Any) -> Any:
    """The tree with copies of all tensors."""
    return pytree.tree_map_only(Tensor, _copy, tree)


def is_refusal(error: Exception) -> bool:
    """Whether the wrapper raised the error on purpose: the error names a table or a parameter."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    named = "table" in str(error).lower() or "parameter" in str(error)
    return innermost.filename.startswith(PACKAGE) and named


def describe(error: Exception) -> str:
    """Type, first line and place of an error."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:200]} ({Path(innermost.filename).name}:{innermost.lineno})"


def difference(expected: Any, found: Any, tolerance: float = 1e-5) -> str:
    """Description of the first difference between two results of `effects_of`, or an empty text."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if isinstance(expected, Exception) and isinstance(found, Exception):
            return ""
        if isinstance(found, Exception):
            return describe(found)
        return f"no error, and PyTorch raises {describe(expected)}"
    wanted, given = pytree.tree_leaves_with_path(expected), pytree.tree_leaves_with_path(found)
    if [path for path, _ in wanted] != [path for path, _ in given]:
        return f"{_short(expected)} expected, got {_short(found)}"
    for (path, one), (_, other) in zip(wanted, given, strict=True):
        if different := _leaf_difference(one, other, tolerance):
            return f"{pytree.keystr(path)}: {different}"
    return ""


def _leaf_difference(expected: Any, found: Any, tolerance: float) -> str:
    if not isinstance(expected, Seen) or not isinstance(found, Seen):
        same = type(expected) is type(found) and (expected is found or expected == found)
        return "" if same else f"{_short(expected)} expected, got {_short(found)}"
    if expected.requires_grad != found.requires_grad:
        return f"requires_grad should be {expected.requires_grad}"
    one, other = expected.values, found.values
    if one.dtype is not other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} expected, got {other.dtype} {tuple(other.shape)}"
    if not torch.allclose(one, other, tolerance, tolerance, equal_nan=True):
        return f"{_short(one)} expected, got {_short(other)}"
    return ""


def _copy(tensor: Tensor) -> Seen:
    with torch.no_grad():
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        return Seen(tensor.requires_grad, torch.empty(dense.shape, dtype=dense.dtype).copy_(dense))


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:160]
