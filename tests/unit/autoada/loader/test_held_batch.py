"""Batches that are held: which memory is copied, and which stays as the loader gave it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Batch, Data

from autoada.loader.held_batch import HeldBatch
from autoada.prediction.batch_structure import _strided_parts, leaves

BASE = torch.arange(6)
ARRAY = np.arange(6)


def next_of_loader() -> Any:
    return next(iter(DataLoader(TensorDataset(BASE, BASE), 2)))


def graphs() -> Any:
    one = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    return Batch.from_data_list([one, one])


def addresses(batch: Any) -> list[int]:
    return [
        leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else leaf.data_ptr()
        for _, leaf in leaves(batch)
        if isinstance(leaf, (torch.Tensor, np.ndarray))
    ]


@pytest.mark.parametrize(
    "make",
    [
        next_of_loader,
        graphs,
        lambda: {"ids": torch.arange(3), "more": [np.arange(3), "text", 1.5]},
        lambda: SimpleNamespace(ids=torch.arange(3)),
    ],
)
def test_memory_that_only_the_batch_has_is_not_copied(make: Callable[[], Any]) -> None:
    memory = HeldBatch([make()]).keep()
    assert memory._copy is None


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
