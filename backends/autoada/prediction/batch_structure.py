"""Batches of any structure: their leaves, copies and signatures."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from types import MemberDescriptorType
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
_ARRAYS = (Tensor, np.ndarray)


def leaves(batch: Any) -> list[tuple[Path, Any]]:
    """Return every leaf with its path. Containers, PyG data and plain objects with attributes are opened."""
    found: list[tuple[Path, Any]] = []
    _walk(batch, (), found, frozenset())
    return found


def read(batch: Any, path: Path) -> Any:
    """Return the leaf at `path`."""
    for step, key in path:
        if step == "attribute":
            batch = getattr(batch, key)
            continue
        if isinstance(batch, dict):
            if key not in batch:
                raise KeyError(key)  # A dictionary with default values would get a new entry.
        elif is_graph(batch):
            batch = batch.to_dict()  # A lookup in `HeteroData` would add a node type.
        batch = batch[key]
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
    if isinstance(leaf, _ARRAYS):
        return (leaf.dtype, *leaf.shape)
    return (type(leaf), leaf) if isinstance(leaf, SCALARS) else (type(leaf),)


def is_graph(value: Any) -> bool:
    """Return whether this is PyG's `Data` or `Batch`, by the interface, so that PyG need not be imported."""
    return hasattr(type(value), "stores") and hasattr(type(value), "to_dict")


def _copy(value: Any, leaf: Callable[[Any], Any], done: dict[int, tuple[Any, Any]]) -> Any:
    """Copy a part; `done` has the parts that were copied, and their copies, by identity.

    `copy.deepcopy` is not possible: it copies keys that are found by their identity, and it fails for
    dictionaries that look all attributes up among their keys.
    """
    if isinstance(value, SCALARS):
        return value
    if id(value) in done:
        return done[id(value)][1]
    attributes = _attributes(value)
    if isinstance(value, _ARRAYS):
        duplicate = leaf(value)
    elif isinstance(value, tuple):
        items = [_copy(item, leaf, done) for item in value]
        if not attributes and all(map(operator.is_, items, value)):
            return value
        of_torch = hasattr(value, "n_sequence_fields")  # It has a class such as `torch.return_types.max`.
        duplicate = type(value)(items) if of_torch else tuple.__new__(type(value), items)
    else:
        duplicate = _duplicate(value, bool(attributes))
    if duplicate is value:
        return value
    done[id(value)] = value, duplicate
    if isinstance(value, list):
        list.__setitem__(duplicate, slice(None), [_copy(item, leaf, done) for item in value])
    elif isinstance(value, dict):
        dict.update(duplicate, {key: _copy(item, leaf, done) for key, item in value.items()})
    elif is_graph(value):
        for store in duplicate.stores:
            for key, item in list(store.items()):
                store[key] = _copy(item, leaf, done)
    kind: Any = type(value)
    slots = _slots(kind)
    for name, item in attributes.items():
        if name in slots:
            slots[name].__set__(duplicate, _copy(item, leaf, done))
        else:
            vars(duplicate)[name] = _copy(item, leaf, done)
    if getattr(value, "__dict__", None) is value:  # The entries of a dictionary are its attributes.
        object.__setattr__(duplicate, "__dict__", duplicate)
    return duplicate


def _duplicate(value: Any, has_parts: bool) -> Any:
    """Return an object of the same class for other parts, or the object itself if that is not possible."""
    if not has_parts and not isinstance(value, (list, dict)) and not is_graph(value):
        return value
    kind: Any = type(value)
    if _is_of_attributes(kind):
        with contextlib.suppress(TypeError):  # The class is written in C.
            return object.__new__(kind)
    try:
        return copy.copy(value)
    except TypeError:  # For example, an open file.
        return value


def _walk(value: Any, path: Path, found: list[tuple[Path, Any]], parents: frozenset[int]) -> None:
    if isinstance(value, (*_ARRAYS, *SCALARS)):
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


def children(value: Any) -> list[tuple[Step | None, Any]]:
    """Return the parts of a value with the steps to them. A leaf has one part: itself, with the step None."""
    parts: list[tuple[Step | None, Any]] = []
    attributes = _attributes(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = [(("attribute", name), getattr(value, name)) for name in value._fields]
    elif isinstance(value, (list, tuple)):
        parts = [(("item", i), item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(("item", key), item) for key, item in value.items()]
    elif is_graph(value):
        parts = [(("item", key), item) for key, item in value.to_dict().items()]
    elif not attributes:
        return [(None, value)]
    return parts + [(("attribute", name), item) for name, item in attributes.items()]


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are its parts; none for classes, functions and PyG data."""
    if type(value) in (list, tuple, dict) or isinstance(value, (*_ARRAYS, type)) or is_graph(value):
        return {}
    if callable(value) and not (isinstance(value, (list, tuple, dict)) or dataclasses.is_dataclass(value)):
        return {}
    found: dict[str, Any] = {}
    kind: Any = type(value)
    for name, member in _slots(kind).items():
        with contextlib.suppress(AttributeError):  # The slot is empty.
            found[name] = member.__get__(value)
    named = getattr(value, "__dict__", found)
    return found if named is value else {**found, **named}


_COPYING = ("__copy__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__getstate__")


@functools.lru_cache
def _is_of_attributes(kind: Any) -> bool:
    """Return whether objects of a class are copied by their attributes and slots, and not by its own code."""
    if issubclass(kind, (list, dict)) or hasattr(kind, "stores") or _is_of_values(kind):
        return False
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in _COPYING)


def _is_of_values(kind: Any) -> bool:
    """Return whether objects of a class are values, as a path or a UUID is: it has a hash of its own."""
    return kind.__hash__ not in (None, object.__hash__) and not dataclasses.is_dataclass(kind)


@functools.lru_cache
def _slots(kind: Any) -> dict[str, MemberDescriptorType]:
    """Return the slots of a class, to be read without its code; none if its objects are values."""
    if _is_of_values(kind):
        return {}
    return {
        name: member
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
