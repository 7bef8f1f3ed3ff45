"""Copies and checks of batches run no code of their classes and change nothing."""

from __future__ import annotations

import enum
import logging
import sys
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from autoada.prediction.batch_structure import copied, fits, leaves, read, signature

IDS = torch.arange(3)


class Immutable:
    __slots__ = ("ids",)
    ids: Tensor

    def __init__(self) -> None:
        object.__setattr__(self, "ids", IDS)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("immutable")


class NeedsArguments:
    __slots__ = ("ids",)
    ids: Tensor

    def __new__(cls, ids: Tensor) -> NeedsArguments:
        made = object.__new__(cls)
        made.ids = ids
        return made


class WithProperty:
    def __init__(self) -> None:
        self.__dict__["ids"] = IDS

    @property
    def ids(self) -> Any:
        return self.__dict__["ids"]


class CopiesItself:
    def __init__(self) -> None:
        self.ids = IDS

    def __copy__(self) -> CopiesItself:
        return self


class Attributes(dict[str, Any]):
    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__ = self


@dataclass(slots=True)
class Slots:
    ids: Tensor


def graph() -> HeteroData:
    """A graph with an attribute of its own and a type of nodes."""
    made = HeteroData(size=3)
    made["paper"].ids = IDS
    return made


any_batch = pytest.mark.parametrize(
    "batch",
    [
        Immutable(), NeedsArguments(IDS), WithProperty(), Attributes(ids=IDS), Slots(IDS),
        OrderedDict(ids=IDS), defaultdict(Tensor, ids=IDS), SimpleNamespace(ids=IDS, out=sys.stdout), [IDS],
        UserDict(ids=IDS), Data(ids=IDS), graph(),
    ],
    ids=lambda batch: type(batch).__name__,
)  # fmt: skip


@any_batch
def test_a_leaf_is_read_by_its_path(batch: Any) -> None:
    assert all(read(batch, path) is leaf for path, leaf in leaves(batch))
    assert fits(batch, signature(batch))


@any_batch
def test_a_copy_of_a_batch_has_tensors_of_its_own(batch: Any) -> None:
    copy = copied(batch, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    assert type(copy) is type(batch)
    assert copy is not batch
    (found,) = (leaf for _, leaf in leaves(copy) if isinstance(leaf, Tensor))
    (given,) = (leaf for _, leaf in leaves(batch) if isinstance(leaf, Tensor))
    assert given is IDS
    assert found is not IDS
    assert torch.equal(found, IDS)


class Mode(enum.Enum):
    """Members have attributes, and are compared by identity."""

    ONE = 1


class Key:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class Item(Key):
    def __init__(self) -> None:
        super().__init__(3)
        self.ids = IDS


@pytest.mark.parametrize("one", [Mode.ONE, CopiesItself(), logging.getLogger()])
def test_an_object_whose_copy_is_itself_is_not_copied(one: Any) -> None:
    assert copied([one], Tensor.clone)[0] is one


def test_a_copy_keeps_slots_that_are_not_searched() -> None:
    copy = copied(Item(), torch.clone)
    assert copy == Item()
    assert copy.ids is not IDS


@pytest.mark.parametrize("setter", [Immutable.__setattr__, dict.__setitem__])
def test_entries_that_are_attributes_are_copied_without_a_setter(setter: Any) -> None:
    class Entries(dict[str, Any]):
        def __init__(self) -> None:
            super().__init__(ids=IDS)
            object.__setattr__(self, "__dict__", self)

        __setattr__ = setter

    assert list(copied(Entries())) == ["ids"]


def test_items_and_attributes_of_a_copy_stay_the_same() -> None:
    copy = copied(Attributes(ids=IDS))
    copy["ids"] = IDS + 1
    assert copy.ids is copy["ids"]


def test_a_check_gives_a_batch_no_new_entries() -> None:
    batch: defaultdict[str, Any] = defaultdict(list, ids=IDS)
    assert not fits(batch, signature({"ids": IDS, "more": [IDS]}))
    assert list(batch) == ["ids"]


def test_a_check_gives_a_graph_no_new_node_types() -> None:
    other = HeteroData()
    other["author"].ids = IDS
    for each in (graph(), other):
        types = each.node_types
        fits(each, signature(graph()))
        assert each.node_types == types
