"""Copies and checks of batches run no code of their classes and change nothing."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from autoada.prediction.batch_structure import copied, fits, leaves, signature

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


@pytest.mark.parametrize(
    "batch",
    [
        Immutable(), NeedsArguments(IDS), WithProperty(), CopiesItself(), Attributes(ids=IDS), Slots(IDS),
        OrderedDict(ids=IDS), defaultdict(Tensor, ids=IDS), SimpleNamespace(ids=IDS, out=sys.stdout), [IDS],
    ],
    ids=lambda batch: type(batch).__name__,
)  # fmt: skip
def test_a_copy_of_a_batch_has_tensors_of_its_own(batch: Any) -> None:
    copy = copied(batch, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    assert type(copy) is type(batch)
    assert copy is not batch
    (found,) = (leaf for _, leaf in leaves(copy) if isinstance(leaf, Tensor))
    (given,) = (leaf for _, leaf in leaves(batch) if isinstance(leaf, Tensor))
    assert given is IDS
    assert found is not IDS
    assert torch.equal(found, IDS)


def test_items_and_attributes_of_a_copy_stay_the_same() -> None:
    copy = copied(Attributes(ids=IDS))
    copy["ids"] = IDS + 1
    assert copy.ids is copy["ids"]


def test_a_check_gives_a_batch_no_new_entries() -> None:
    batch: defaultdict[str, Any] = defaultdict(list, ids=IDS)
    assert not fits(batch, signature({"ids": IDS, "more": [IDS]}))
    assert list(batch) == ["ids"]
