"""Batches of any structure: their leaves, copies and signatures."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Step = tuple[str, Any]
"""``("item", key)`` or ``("attribute", name)``."""
Path = tuple[Step, ...]

Signature = tuple[tuple[Path, tuple[Any, ...]], ...]
"""Path of each leaf, and its properties: dtype and sizes, or type and value."""

SCALARS = (int, float, str, bool, type(None))


def leaves(batch: Any) -> list[tuple[Path, Any]]:
    """Yield every leaf with its path. Containers, dataclasses, PyG data and plain objects are opened."""
    found: list[tuple[Path, Any]] = []
    _walk(batch, (), found, frozenset())
    return found


def read(batch: Any, path: Path) -> Any:
    """Return the leaf at `path`."""
    for step, key in path:
        batch = batch[key] if step == "item" else getattr(batch, key)
    return batch


def signature(batch: Any) -> Signature:
    """Return properties that may change the path through forward: paths, shapes, dtypes, plain values."""
    return tuple((path, _properties(leaf)) for path, leaf in leaves(batch))


def common(signatures: Sequence[Signature]) -> Signature | None:
    """Return a signature in which sizes and values that differ are free; None if other properties differ."""
    if len({len(each) for each in signatures}) > 1:
        return None
    found = []
    for entries in zip(*signatures, strict=True):
        paths, properties = zip(*entries, strict=True)
        if len({(path, each[0], len(each)) for path, each in entries}) > 1:
            return None
        values = (each[0] if len(set(each)) == 1 else _FREE for each in zip(*properties, strict=True))
        found.append((paths[0], tuple(values)))
    return tuple(found)


def fits(batch: Any, expected: Signature) -> bool:
    """Return whether the leaves of `batch` that a signature describes have these properties."""
    try:
        for path, properties in expected:  # A loop is faster than `all`, and this runs for every batch.
            if _properties(read(batch, path)) != properties:
                return False
    except (AttributeError, LookupError, TypeError):  # The batch has another structure.
        return False
    return True


def same_values(leaf: Any, other: Any) -> bool:
    """Return whether two leaves have the same type and equal contents. NaN equals NaN."""
    if leaf is other:
        return True
    if type(leaf) is not type(other):
        return False
    if isinstance(leaf, Tensor):
        if leaf.layout is not other.layout or leaf.is_nested is not other.is_nested:
            return False
        if leaf.layout is not torch.strided or leaf.is_nested:  # PyTorch has no comparison for these.
            parts, others = _strided_parts(leaf), _strided_parts(other)
            return len(parts) == len(others) and all(map(same_values, parts, others))
        if leaf.shape != other.shape or leaf.dtype is not other.dtype:
            return False
        return torch.equal(leaf, other) or bool(((leaf == other) | (leaf.isnan() & other.isnan())).all())
    if isinstance(leaf, np.ndarray):
        return np.array_equal(leaf, other, equal_nan=leaf.dtype.kind in "fc")
    return bool(leaf == other)


def _strided_parts(tensor: Tensor) -> list[Any]:
    """Return the size and the strided tensors with the contents of a sparse or nested tensor."""
    if tensor.is_nested:
        return list(tensor.unbind())
    pickled = pytree.tree_leaves(tensor.__reduce_ex__(2)[1])
    return [tensor.shape, *(part for part in pickled if isinstance(part, Tensor))]


def copied(batch: Any, leaf: Callable[[Any], Any] = lambda tensor: tensor) -> Any:
    """Copy the batch's structure, with `leaf` applied to tensors and arrays; by default they are shared."""
    return _copy(batch, leaf, {})


def on_host(batch: Any) -> Any:
    """Return the batch itself if its tensors are in host memory, else a copy in host memory."""
    if all(leaf.is_cpu for _, leaf in leaves(batch) if isinstance(leaf, Tensor)):
        return batch
    return copied(batch, lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf)


class _Free:
    """Property that has any value."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_FREE = _Free()


def _properties(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, (Tensor, np.ndarray)):
        return (leaf.dtype, *leaf.shape)
    return (type(leaf), leaf) if isinstance(leaf, SCALARS) else (type(leaf),)


def _copy(value: Any, leaf: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return leaf(value)
    if isinstance(value, SCALARS):
        return value
    if id(value) in done:  # The object refers back to its owner.
        return done[id(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(item, leaf, done) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_copy(item, leaf, done) for item in value)
    if type(value) is dict:
        return {key: _copy(item, leaf, done) for key, item in value.items()}
    if is_graph(value):
        duplicate = done[id(value)] = copy.copy(value)
        for store in duplicate.stores:
            for key, item in list(store.items()):
                store[key] = _copy(item, leaf, done)
        return duplicate
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        duplicate = done[id(value)] = copy.copy(value)
        for key, item in vars(value).items():
            object.__setattr__(duplicate, key, _copy(item, leaf, done))
        return duplicate
    return value


def _walk(value: Any, path: Path, found: list[tuple[Path, Any]], parents: frozenset[int]) -> None:
    if isinstance(value, (Tensor, *SCALARS)):
        found.append((path, value))
        return
    if id(value) in parents:  # The object refers back to its owner.
        return
    parents |= {id(value)}
    for step, item in children(value):
        if step is None:
            found.append((path, value))
        else:
            _walk(item, (*path, step), found, parents)


def children(value: Any) -> Iterator[tuple[Step | None, Any]]:
    """Return the entries of a container with the steps to them; for a leaf, only the leaf without a step."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((("attribute", name), getattr(value, name)) for name in value._fields)
    elif isinstance(value, (list, tuple)):
        yield from ((("item", i), item) for i, item in enumerate(value))
    elif is_graph(value):
        yield from ((("item", key), item) for key, item in value.to_dict().items())
    elif isinstance(value, dict):
        yield from ((("item", key), item) for key, item in value.items())
    elif dataclasses.is_dataclass(value):
        yield from ((("attribute", f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        yield from ((("attribute", name), item) for name, item in vars(value).items())
    else:
        yield None, value


def is_graph(value: Any) -> bool:
    """Return whether this is PyG's `Data` or `Batch`, by the interface, so that PyG need not be imported."""
    return hasattr(value, "stores") and hasattr(value, "to_dict")
