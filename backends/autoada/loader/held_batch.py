"""Contents of a batch that is held while its loader creates other batches."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoada.prediction.batch_structure import children, copied, is_graph, leaves, same_values


class HeldBatch:
    """A batch that was fetched, or the end of the data; `keep` protects its contents from other code.

    A loader may refill a tensor, an array or a list of an earlier batch. The held batch then gets a copy of
    the earlier contents. If the loop changes the memory of a batch before its turn, the batch changes with
    it, as in plain PyTorch. Tensors of loader processes are moved out of shared memory, which takes a file
    descriptor each.

    PyTorch counts the writes to a tensor, so the contents are compared only after a write, or after the
    loader has returned the same memory again. Arrays and containers that other code refers to are always
    compared. `holder` contains only the batch, so that only references from elsewhere count. `end` is the
    exception that ended the loader, if there is no batch.
    """

    draws: tuple[list[Any], ...] = ()
    """States of the random generators before and after a fetch that drew from them before its turn."""
    memory: Set[int] = frozenset()
    """Addresses of the tensors whose memory other code refers to, after `keep`."""
    may_change = True
    """Whether code other than the loop that gets the batch may still change its contents."""
    is_kept = False
    """Whether `keep` was called."""
    _copy: list[Any] | None = None
    _writes: list[int]

    def __init__(self, holder: list[Any], end: Exception | None = None) -> None:
        self._holder = holder
        self.end = end

    @property
    def batch(self) -> Any:
        """The batch with the contents that it would have if it were fetched in its turn."""
        return self._holder[0]

    def keep(self) -> HeldBatch:
        """Keep the contents from now on, and return the batch."""
        if self.is_kept:
            return self
        self.is_kept = True
        self._kept = parts = _Parts()
        parts.sort(self._holder)
        if parts.in_shared_memory:
            self._holder[0] = copied(
                self.batch, lambda leaf: _cloned(leaf) if id(leaf) in parts.in_shared_memory else leaf
            )
        self.memory = {tensor.data_ptr() for tensor in parts.counted if tensor.numel() > 0}
        self.may_change = bool(parts.has_uncounted or parts.counted)
        if self.may_change:
            self._copy = self._copied()
        return self

    def follow_program(self) -> None:
        """Take over changes that the loop made since the last fetch."""
        if self._copy is not None and self._may_be_changed() and self._is_changed():
            self._copy = self._copied()

    def undo_fetch(self, memory: Set[int]) -> None:
        """Undo changes that a fetch of another batch made; `memory` has the addresses of its tensors."""
        if self._copy is None or not (self._may_be_changed() or not memory.isdisjoint(self.memory)):
            return
        if self._is_changed():
            self._holder[0], self._copy = self._copy[0], None
            self.may_change = False

    def check(self) -> None:
        """Raise RuntimeError if the batch was changed by a write that PyTorch does not count."""
        if self._copy is not None and not self._kept.has_uncounted and self._is_changed():
            raise RuntimeError(
                "memory of a batch that was fetched before its turn was changed without PyTorch, as by NumPy "
                "or through .data, so that the batch of plain PyTorch is not known: let the loader return "
                "copies, or give AdaDataLoader lookahead=0"
            )

    def _may_be_changed(self) -> bool:
        before = self._writes
        self._writes = self._kept.writes()
        return self._kept.has_uncounted or self._writes != before

    def _copied(self) -> list[Any]:
        self._writes = self._kept.writes()
        self._clones: list[tuple[Any, Any]] = []

        def clone_shared(leaf: Any) -> Any:
            if id(leaf) in self._kept.private:
                return leaf
            self._clones.append((leaf, _cloned(leaf)))
            return self._clones[-1][1]

        return [copied(self.batch, clone_shared)]

    def _is_changed(self) -> bool:
        assert self._copy is not None
        if not self._kept.has_uncounted:
            return not all(same_values(leaf, clone) for leaf, clone in self._clones)
        now, before = leaves(self.batch), leaves(self._copy[0])
        return len(now) != len(before) or not all(
            path == other and same_values(value, old)
            for (path, value), (other, old) in zip(now, before, strict=True)
        )


_CONSTANT = (
    int, float, complex, str, bytes, type(None), type, weakref.ref, torch.dtype, torch.device, torch.Size,
)  # fmt: skip


class _Parts:
    """Sorts the parts of a batch by who can change them."""

    def __init__(self) -> None:
        self.private: set[int] = set()
        """Identities of tensors and arrays that only the batch refers to."""
        self.in_shared_memory: set[int] = set()
        """Identities of tensors of only this batch that are in memory of several processes."""
        self.counted: list[Tensor] = []
        """Other tensors, to which PyTorch counts the writes."""
        self.has_uncounted = False
        """Whether other code refers to further parts of the batch, such as arrays and containers."""

    def writes(self) -> list[int]:
        """Return the number of writes to each of the counted tensors, if these alone can be changed."""
        return [] if self.has_uncounted else [tensor._version for tensor in self.counted]

    def sort(self, holder: Any, shared: bool = False, references: int = 0) -> None:
        """Sort the entries of a container.

        `shared` is whether other code refers to the container, and `references` is the number of further
        references to an entry that the batch itself has.
        """
        for value in holder:
            if isinstance(value, _CONSTANT):
                continue
            others = shared or sys.getrefcount(value) > _REFERENCES + references
            fixed = isinstance(value, tuple) and not hasattr(value, "__dict__")
            if isinstance(value, Tensor):
                self._sort_tensor(value, others)
            elif isinstance(value, np.ndarray) and not others and value.base is None and value.flags.owndata:
                self.private.add(id(value))
            elif is_graph(value) and not others:  # `children` reads copies of its containers.
                self.sort(vars(value).values())
            elif (others and not fixed) or (parts := children(value)) == [(None, value)]:
                self.has_uncounted = True
            else:
                self.sort([part for _, part in parts], others, references=2)

    def _sort_tensor(self, value: Tensor, others: bool) -> None:
        strided = value.layout is torch.strided
        own = strided and not others and _uses(value) <= _USES
        if own and value.is_cpu and value.is_shared():
            self.in_shared_memory.add(id(value))
        elif own:  # For example, memory that belongs to NumPy cannot be resized.
            own = value.untyped_storage().resizable()
        if own:
            self.private.add(id(value))
        elif strided and not value.is_inference():
            self.counted.append(value)
        else:
            self.has_uncounted = True


def _uses(tensor: Tensor) -> int:
    """Return the number of tensors with this memory, plus a constant."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _references(holder: Any) -> int:
    """Return the number of references to the only entry of a container, as `_Parts.sort` counts them."""
    for value in holder:
        return sys.getrefcount(value)
    return 0


_REFERENCES = _references([object()])
_USES = _uses(torch.zeros(1, device="cpu"))


def _cloned(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
