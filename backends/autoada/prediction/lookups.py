"""Forms of reading rows of a table in PyTorch: their table, ids and output."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autoada.prediction.operations import Arguments, Keywords, TorchFunction

_EMBEDDING_NAMES = tuple(inspect.signature(F.embedding).parameters)
_KERNEL_EMBEDDING_NAMES = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
_BAG_NAMES = tuple(inspect.signature(F.embedding_bag).parameters)
_KERNEL_BAG_NAMES = (
    "weight", "input", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip

Apply = Callable[..., Any]
"""Runs one tensor operation, ``apply(function, *args)``, and records it in the trace, if there is one."""


class BagArguments(NamedTuple):
    """Arguments of `embedding_bag`."""

    ids: Tensor
    table: Tensor
    offsets: Tensor | None
    padding: int | None
    last_offset: bool

    @property
    def bags(self) -> int:
        """Number of bags in the output."""
        if self.offsets is None:
            return self.ids.shape[0]
        return self.offsets.shape[0] - int(self.last_offset)


def embedding_arguments(func: TorchFunction, args: Arguments, kwargs: Keywords) -> tuple[Tensor, Tensor]:
    """Return ``(ids, table)`` of a call of `F.embedding` or `torch.embedding`."""
    names = _EMBEDDING_NAMES if func is F.embedding else _KERNEL_EMBEDDING_NAMES
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return (given["input"], given["weight"]) if func is F.embedding else (given["indices"], given["weight"])


def bag_arguments(func: TorchFunction, args: Arguments, kwargs: Keywords) -> BagArguments:
    """Return the arguments of a call of `F.embedding_bag` or `torch.embedding_bag`."""
    names = _BAG_NAMES if func is F.embedding_bag else _KERNEL_BAG_NAMES
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given.setdefault("input", given.get("indices"))
    return BagArguments(
        given["input"],
        given["weight"],
        given.get("offsets"),
        given.get("padding_idx"),
        bool(given.get("include_last_offset")),
    )


def index_select_arguments(args: Arguments, kwargs: Keywords) -> tuple[Tensor, Any, Any]:
    """Return ``(input, dim, index)`` of a call of `index_select`."""
    given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    return given["input"], given["dim"], given["index"]


def bag_rows(bag: BagArguments, apply: Apply) -> Tensor:
    """Return the rows that a bag reads, without padding."""
    if bag.padding is None:
        return bag.ids
    return apply(_without, bag.ids, bag.padding % bag.table.shape[0])  # type: ignore[no-any-return]


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
        return apply(from_start, first, rows)  # type: ignore[no-any-return]
    if isinstance(first, bool) or first is None or first is Ellipsis:
        return None
    if isinstance(first, int):
        return apply(torch.tensor, [_from_start(first, rows)])  # type: ignore[no-any-return]
    if isinstance(first, slice):
        selected = range(*first.indices(rows))
        if len(selected) == rows:
            return None
        return apply(torch.arange, selected.start, selected.stop, selected.step)  # type: ignore[no-any-return]
    if isinstance(first, list) and first and all(type(item) is int for item in first):
        return apply(torch.tensor, [_from_start(item, rows) for item in first])  # type: ignore[no-any-return]
    return None


def from_start(ids: Tensor, rows: int) -> Tensor:
    """Return the same rows, with existing rows counted from the start."""
    return torch.where((ids < 0) & (ids >= -rows), ids + rows, ids)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor of all rows if the code runs under `torch.vmap`."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _from_start(row: int, rows: int) -> int:
    return row + rows if -rows <= row < 0 else row


def _without(ids: Tensor, padding: int) -> Tensor:
    return ids[ids != padding]


def _true_rows(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]
