"""Batches that are held: which memory is copied, and which stays as the loader gave it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Batch, Data, HeteroData

from autoada.loader.held_batch import HeldBatch
from autoada.prediction.batch_structure import _strided_parts, copied, leaves

BASE = torch.arange(6)
ARRAY = np.arange(6)


def next_of_loader() -> Any:
    return next(iter(DataLoader(TensorDataset(BASE, BASE), 2)))


def graphs() -> Any:
    one = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    return Batch.from_data_list([one, one])


def hetero() -> Any:
    data: Any = HeteroData()
    data["user"].x = torch.ones(2, 3)
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [1, 0]])
    return data


def addresses(batch: Any) -> list[int]:
    return [
        leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else leaf.data_ptr()
        for _, leaf in leaves(batch)
        if isinstance(leaf, (torch.Tensor, np.ndarray))
    ]


class Entries(dict[str, Any]):
    """A dictionary that may also have attributes."""


class Parts(list[Any]):
    """A list that may also have attributes."""


class Pair(tuple[Any, ...]):
    """A tuple that may also have attributes."""


class Both(tuple[Any, ...]):
    """A tuple that is made of its entries."""

    __slots__ = ()

    def __new__(cls, ids: Any, number: int) -> Both:
        return super().__new__(cls, (ids, number))


@dataclass(slots=True)
class Slotted:
    ids: Any


@dataclass
class Extended:
    number: int

    def __post_init__(self) -> None:
        self.lock = Lock()


class Slots:
    __slots__ = ("ids",)

    def __init__(self, ids: Any) -> None:
        self.ids = ids


class More(Slots):
    """Has slots and attributes."""


class ByName(dict[str, Any]):
    """A dictionary that looks all attributes up among its keys."""

    __getattr__ = dict.__getitem__


class Single:
    """Refuses to be copied with its parts."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids

    def __deepcopy__(self, memo: Any) -> Any:
        raise NotImplementedError("there is one of each")


def with_ids(owner: Any, ids: Any) -> Any:
    owner.ids = ids
    return owner


OWNERS: dict[str, Callable[[Any], Any]] = {
    "OrderedDict": lambda ids: OrderedDict(ids=ids),
    "defaultdict": lambda ids: defaultdict(list, ids=ids),
    "class of dictionaries": lambda ids: Entries(ids=ids),
    "dictionary with keys as attributes": lambda ids: ByName(ids=ids),
    "class that refuses deep copies": Single,
    "class of lists": lambda ids: Parts([ids]),
    "class of tuples": lambda ids: Pair([ids]),
    "tuple that is made of its entries": lambda ids: Both(ids, 1),
    "attribute of a dictionary": lambda ids: with_ids(Entries(number=1), ids),
    "attribute of a list": lambda ids: with_ids(Parts(), ids),
    "attribute of a tuple": lambda ids: with_ids(Pair(), ids),
    "dataclass with slots": Slotted,
    "attribute that is no field": lambda ids: with_ids(Extended(1), ids),
    "class with slots": Slots,
    "slots and attributes": More,
    "list of a dictionary": lambda ids: Entries(parts=Parts([[ids]])),
}


@pytest.mark.parametrize(
    "make",
    [
        next_of_loader,
        graphs,
        hetero,
        lambda: {"ids": torch.arange(3), "more": [np.arange(3), "text", 1.5]},
        lambda: SimpleNamespace(ids=torch.arange(3)),
        *(lambda make=make: make(torch.arange(3)) for kind, make in OWNERS.items() if "no field" not in kind),
    ],
)
def test_memory_that_only_the_batch_has_is_not_copied(make: Callable[[], Any]) -> None:
    memory = HeldBatch([make()]).keep()
    assert memory._copy is None


@pytest.mark.parametrize("shared", [False, True], ids=["ids", "container and ids"])
@pytest.mark.parametrize("array", [False, True], ids=["tensor", "array"])
@pytest.mark.parametrize("kind", OWNERS)
def test_batches_of_any_class_follow_the_program_and_not_the_loader(
    kind: str, array: bool, shared: bool
) -> None:
    holder = [OWNERS[kind](ARRAY if array else BASE)]
    other = holder[0] if shared else None
    held = HeldBatch(holder).keep()
    del other
    refill()
    held.follow_program()
    followed = values(held.batch)
    assert followed == [list(range(1, 7))]
    refill()
    held.undo_fetch(set())
    assert values(held.batch) == followed
    assert values(holder[0]) == followed


@pytest.mark.parametrize("kind", OWNERS)
def test_containers_of_any_class_that_are_refilled_keep_their_contents(kind: str) -> None:
    part = [BASE.clone()]
    held = HeldBatch([OWNERS[kind](part)]).keep()
    part.append(BASE.clone())
    part[0] = part[0] + 1
    held.undo_fetch(set())
    assert values(held.batch) == [list(range(6))]


@pytest.mark.parametrize("kind", OWNERS)
def test_tensors_of_any_class_are_moved_out_of_shared_memory(kind: str) -> None:
    holder = [OWNERS[kind](torch.arange(3).share_memory_())]
    ((_, ids),) = [each for each in leaves(HeldBatch(holder).keep().batch) if torch.is_tensor(each[1])]
    assert not ids.is_shared()


@pytest.mark.parametrize(
    "make",
    [
        graphs,
        hetero,
        lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]),
        lambda: torch.ones(2, 2).max(0),
        lambda: {"ids": BASE, "again": BASE},
        *(lambda make=make: make(BASE) for make in OWNERS.values()),
    ],
)
def test_copies_have_the_class_and_the_replaced_tensors_of_a_batch(make: Callable[[], Any]) -> None:
    batch = make()
    replaced: list[torch.Tensor] = []

    def clone(leaf: torch.Tensor) -> torch.Tensor:
        replaced.append(leaf.clone())
        return replaced[-1]

    copy = copied(batch, clone)
    assert type(copy) is type(batch)
    assert values(copy) == values(batch)
    tensors = [leaf for _, leaf in leaves(copy) if torch.is_tensor(leaf)]
    assert {*map(id, tensors)} == {*map(id, replaced)}


def test_copies_share_keys_and_everything_but_containers() -> None:
    key, lock, queue = object(), Lock(), deque([1])
    batch = {key: [lock, queue, {1}, len, int, SimpleNamespace(ids=BASE)]}
    batch["twice"] = batch[key]
    copy = copied(batch)
    assert copy is not batch
    assert copy[key] is copy["twice"] is not batch[key]
    assert all(one is other for one, other in zip(copy[key][:5], batch[key][:5], strict=True))
    assert copy[key][5] is not batch[key][5]
    assert copy[key][5].ids is BASE


def values(batch: Any) -> list[Any]:
    return [leaf.tolist() for _, leaf in leaves(batch) if hasattr(leaf, "tolist")]


def refill() -> None:
    BASE.add_(1)
    ARRAY[:] += 1


@pytest.fixture(autouse=True)
def fresh() -> None:
    BASE.copy_(torch.arange(6))
    ARRAY[:] = np.arange(6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BASE,
        lambda: [BASE[1:3]],
        lambda: ((BASE, 1), torch.zeros(2)),
        lambda: {"ids": ARRAY},
        lambda: SimpleNamespace(ids=[ARRAY[2:]]),
    ],
)
def test_memory_that_others_have_follows_the_program_and_not_the_loader(make: Callable[[], Any]) -> None:
    given = make()
    start = addresses(given)
    memory = HeldBatch([given]).keep()
    refill()
    memory.follow_program()
    assert values(memory.batch) == values(given)
    before = values(given)
    memory.undo_fetch(set())
    assert memory.batch is given
    refill()
    memory.undo_fetch(set())
    assert values(memory.batch) == before != values(given)
    assert addresses(memory.batch) != start
    memory.check()


NUMPY_MEMORY: list[Callable[[], torch.Tensor]] = [
    lambda: torch.from_numpy(ARRAY),
    lambda: torch.frombuffer(ARRAY, dtype=torch.int64),
    lambda: BASE.data,
]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_batch_that_did_not_change_is_handed_out(number: float, dtype: torch.dtype) -> None:
    data = torch.full((4, 2), number, dtype=dtype)
    batches = [data[:2], data[2:].numpy()]
    held = [HeldBatch([batch]).keep() for batch in batches]
    for item, batch in zip(held, batches, strict=True):
        item.follow_program()
        item.undo_fetch(set())
        item.check()
        assert item.batch is batch


def nested(layout: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse_csc(),
        lambda: torch.eye(4).to_sparse_bsr((2, 2)),
        lambda: nested(torch.jagged),
        lambda: nested(torch.strided),
    ],
)
def test_sparse_and_nested_tensors_follow_the_program_and_not_the_loader(
    make: Callable[[], torch.Tensor],
) -> None:
    def first_value() -> torch.Tensor:
        part: torch.Tensor = _strided_parts(given)[0 if given.is_nested else -1].flatten()[0]
        return part

    given = make()
    held = HeldBatch([given]).keep()
    held.follow_program()
    held.undo_fetch(set())
    assert held.batch is given
    first_value().fill_(5)
    held.follow_program()
    first_value().fill_(7)
    held.undo_fetch(set())
    assert held.batch is not given
    given = held.batch
    assert first_value() == 5


@pytest.mark.parametrize("make", NUMPY_MEMORY)
def test_memory_that_a_loader_returns_again_is_compared(make: Callable[[], torch.Tensor]) -> None:
    given = (make(), torch.zeros(2))
    memory, before = HeldBatch([given]).keep(), values(given)
    refill()
    memory.undo_fetch(HeldBatch([given]).keep().memory)
    assert values(memory.batch) == before != values(given)
    memory.check()


@pytest.mark.parametrize("make", NUMPY_MEMORY)
def test_a_write_that_pytorch_does_not_count_is_refused(make: Callable[[], torch.Tensor]) -> None:
    memory = HeldBatch([make()]).keep()
    memory.check()
    refill()
    memory.follow_program()
    memory.undo_fetch(set())
    with pytest.raises(RuntimeError, match="lookahead=0"):
        memory.check()


def test_tensors_are_moved_out_of_shared_memory() -> None:
    shared = torch.arange(3).share_memory_()
    holder = [{"ids": shared, "label": torch.ones(3)}]
    label = holder[0]["label"].data_ptr()
    del shared
    batch = HeldBatch(holder).keep().batch
    assert not batch["ids"].is_shared()
    assert batch["ids"].tolist() == [0, 1, 2]
    assert batch["label"].data_ptr() == label
