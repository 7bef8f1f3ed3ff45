"""Contents of a batch that is held while its loader creates other batches."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoada.prediction.batch_structure import copied, is_graph, leaves


class HeldMemory:
    """Keeps the contents of a batch while the loader or the program may write to its memory.

    A loader may refill a tensor, an array or a list of an earlier batch. The held batch then gets a copy of
    the earlier contents. If the loop changes the memory of a batch before its turn, the batch changes with
    it, as in plain PyTorch. Tensors of loader processes are moved out of shared memory, which takes a file
    descriptor each.

    Parameters
    ----------
    holder : list of object
        List that contains only the batch, so that only references from elsewhere count.

    Attributes
    ----------
    batch : object
        Batch with the contents that it would have if it were fetched in its turn.
    """

    def __init__(self, holder: list[Any]) -> None:
        parts = _Parts()
        parts.sort(holder)
        if parts.in_shared_memory:
            holder[0] = copied(
                holder[0], lambda leaf: _cloned(leaf) if id(leaf) in parts.in_shared_memory else leaf
            )
        self.batch = holder[0]
        self._private = parts.private
        self._copy = self._copied() if parts.is_shared else None

    def follow_program(self) -> None:
        """Take over changes that the loop made since the last fetch."""
        if self._copy is not None and self._is_changed():
            self._copy = self._copied()

    def undo_fetch(self) -> None:
        """Undo changes that a fetch of another batch made."""
        if self._copy is not None and self._is_changed():
            self.batch, self._copy = self._copy[0], None

    def _copied(self) -> list[Any]:
        return [copied(self.batch, lambda leaf: leaf if id(leaf) in self._private else _cloned(leaf))]

    def _is_changed(self) -> bool:
        assert self._copy is not None
        now, before = leaves(self.batch), leaves(self._copy[0])
        return len(now) != len(before) or not all(
            path == other and _same(value, old)
            for (path, value), (other, old) in zip(now, before, strict=True)
        )


_CONSTANT = (
    int, float, complex, str, bytes, type(None), type, weakref.ref, torch.dtype, torch.device, torch.Size,
)  # fmt: skip


class _Parts:
    """Sorts the parts of a batch by who can change them.

    Attributes
    ----------
    private : set of int
        Identities of tensors and arrays that only the batch refers to.
    in_shared_memory : set of int
        Identities of tensors of only this batch that are in memory of several processes.
    is_shared : bool
        Whether anything else refers to some part of the batch.
    """

    def __init__(self) -> None:
        self.private: set[int] = set()
        self.in_shared_memory: set[int] = set()
        self.is_shared = False

    def sort(self, holder: Any) -> None:
        """Sort the entries of a container."""
        for value in holder:
            if isinstance(value, _CONSTANT):
                continue
            if sys.getrefcount(value) > _REFERENCES:
                self.is_shared = True
            elif isinstance(value, (Tensor, np.ndarray)):
                self._sort_memory(value)
            elif type(value) in (list, tuple):
                self.sort(value)
            elif type(value) is dict:
                self.sort(value.values())
            elif hasattr(value, "__dict__") and (is_graph(value) or not callable(value)):
                self.sort(vars(value).values())
            else:
                self.is_shared = True

    def _sort_memory(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            own = value.base is None and value.flags.owndata
        else:
            own = value.layout is torch.strided and _uses(value) <= _USES
            if own and value.is_cpu and value.is_shared():
                self.in_shared_memory.add(id(value))
            else:  # For example, memory that belongs to NumPy cannot be resized.
                own = own and value.untyped_storage().resizable()
        if own:
            self.private.add(id(value))
        else:
            self.is_shared = True


def _uses(tensor: Tensor) -> int:
    """Return the number of tensors with this memory, plus a constant."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _references(holder: Any) -> int:
    """Return the number of references to the only entry of a container, as `_Parts.sort` counts them."""
    for value in holder:
        return sys.getrefcount(value)
    return 0


_REFERENCES = _references([object()])
_USES = _uses(torch.zeros(1))


def _cloned(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _same(value: Any, old: Any) -> bool:
    if value is old:
        return True
    if type(value) is not type(old):
        return False
    if isinstance(value, Tensor):
        return value.shape == old.shape and value.dtype is old.dtype and torch.equal(value, old)
    if isinstance(value, np.ndarray):
        return bool(np.array_equal(value, old))
    return bool(value == old)
