"""Forms of reading rows of a table in PyTorch: their table, ids and output."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autoada.prediction.operations import Arguments, Keywords, TorchFunction, name_of

_FUNCTIONAL = {each: tuple(inspect.signature(each).parameters) for each in (F.embedding, F.embedding_bag)}
_KERNELS = {
    "embedding": ("weight", "input", "padding_idx", "scale_grad_by_freq", "sparse"),
    "embedding_bag": (
        "weight", "input", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
        "include_last_offset", "padding_idx",
    ),
    "index_select": ("input", "dim", "index"),
}  # fmt: skip

Apply = Callable[..., Any]
"""Runs one tensor operation, ``apply(function, *args)``, and records it in the trace, if there is one."""


def named_arguments(func: TorchFunction, args: Arguments, kwargs: Keywords) -> Keywords:
    """Return the arguments of a lookup by name; the ids of an embedding are its ``input``."""
    names = _FUNCTIONAL.get(func) or _KERNELS[name_of(func)]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {("input" if name == "indices" else name): value for name, value in given.items()}


def item_rows(rows: int, index: Any, apply: Apply) -> Tensor | None:
    """Return the rows that ``table[index]`` reads; None if it reads the whole table.

    `index` contains no unknown value. As in torch, negative ids count from the end. Ids of rows that do not
    exist do not change.
    """
    first = index[0] if type(index) is tuple and index else index
    if isinstance(first, Tensor):
        first = unwrapped(first)
        if first.dtype in (torch.bool, torch.uint8):
            return apply(_true_rows, first)  # type: ignore[no-any-return]
        return apply(_from_start, first, rows)  # type: ignore[no-any-return]
    if isinstance(first, slice):
        selected = range(*first.indices(rows))
        if len(selected) == rows:
            return None
        return apply(torch.arange, selected.start, selected.stop, selected.step)  # type: ignore[no-any-return]
    numbers = first if isinstance(first, list) else [first]
    if numbers and all(isinstance(item, int) and not isinstance(item, bool) for item in numbers):
        known = [item + rows if -rows <= item < 0 else item for item in numbers]
        return apply(torch.tensor, known)  # type: ignore[no-any-return]
    return None


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor of all rows if the code runs under `torch.vmap`."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def without(ids: Tensor, padding: int) -> Tensor:
    """Return the ids that are no padding."""
    return ids[ids != padding]


def _from_start(ids: Tensor, rows: int) -> Tensor:
    """Return the same rows, with existing rows counted from the start."""
    return torch.where((ids < 0) & (ids >= -rows), ids + rows, ids)


def _true_rows(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]
