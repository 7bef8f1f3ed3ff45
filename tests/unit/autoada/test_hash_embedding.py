"""`HashEmbedding` in plain PyTorch."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaps
import autoada

IDS = torch.tensor([[-7, 2**62], [0, -7], [-(2**63), 2**63 - 1]])
"""Five ids, one of them twice."""
LENGTH = 3

INITS: list[adaps.Constant | adaps.Uniform | adaps.Normal] = [
    adaps.Constant(0.5), adaps.Uniform(-1, 1, seed=3), adaps.Normal(0, 0.1, seed=2**64 - 1),
]  # fmt: skip


def table(capacity: int = 10, **options: Any) -> autoada.HashEmbedding:
    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch warns if it has to choose
    return autoada.HashEmbedding(LENGTH, capacity, **{"seed": 5, **options})


def trained(module: autoada.HashEmbedding, optimizer: torch.optim.Optimizer, *batches: Tensor) -> Tensor:
    """The rows of the last batch, after a step with each."""
    for ids in batches:
        optimizer.zero_grad()
        (module(ids) * torch.linspace(1, 2, LENGTH)).square().sum().backward()
        optimizer.step()
    rows: Tensor = module(batches[-1]).detach()
    return rows


@pytest.mark.parametrize("init", INITS, ids=lambda init: type(init).__name__)
def test_initial_rows_are_the_rows_of_the_server_with_the_id_as_row_number(init: Any) -> None:
    with adaps.Node([adaps.Table("t", 1000, LENGTH, init=init)]) as node:
        expected = torch.empty(3, LENGTH)
        node.worker(0).pull(torch.tensor([7, 0, 999]), expected)
    assert torch.equal(table(init=init, seed=None)(torch.tensor([7, 0, 999])), expected)


@pytest.mark.parametrize("init", INITS, ids=lambda init: type(init).__name__)
def test_initial_rows_are_equal_in_any_order_of_first_use(init: Any) -> None:
    one, other = table(init=init), table(init=init)
    one(IDS.flip(0))
    assert torch.equal(one(IDS), other(IDS))
    assert one(IDS).shape == (*IDS.shape, LENGTH)


def test_another_default_device_does_not_matter() -> None:
    expected = table()(IDS)
    with torch.device("meta"):
        module = table(device="cpu")
        assert torch.equal(module(IDS), expected)
        module.load_state_dict(module.state_dict())
        assert torch.equal(module(IDS), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_no_row_is_created_and_a_new_id_has_its_initial_values(mode: Any) -> None:
    module = table(capacity=3)
    known = trained(module, torch.optim.SGD(module.parameters(), lr=0.5), IDS[:1], IDS[:1])
    with mode():
        rows = module(IDS)
        assert module(IDS[:1]).equal(known)
        assert module(IDS[:0]).shape == (0, 2, LENGTH)
    assert torch.equal(rows[0], known[0])
    initial = table()(IDS)
    assert torch.equal(rows.flatten(0, 1)[[2, 4, 5]], initial.flatten(0, 1)[[2, 4, 5]])
    assert torch.equal(rows[1, 1], known[0, 0])
    assert module.state_dict()["ids"].tolist() == IDS[0].tolist()


def test_default_seed_follows_the_global_generator() -> None:
    torch.manual_seed(1)
    one, other = autoada.HashEmbedding(LENGTH, 10), autoada.HashEmbedding(LENGTH, 10)
    torch.manual_seed(1)
    again = autoada.HashEmbedding(LENGTH, 10)
    assert torch.equal(one(IDS), again(IDS))
    assert not torch.equal(one(IDS), other(IDS))


@pytest.mark.parametrize("ids", [IDS[0, 0], IDS[:0], IDS.t(), IDS.to(torch.int32)], ids=str)
def test_ids_of_any_shape_give_rows_of_this_shape(ids: Tensor) -> None:
    assert table()(ids).shape == (*ids.shape, LENGTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_ids_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"ids are {dtype}"):
        table()(IDS.to(dtype))


def test_more_ids_than_rows_are_refused_and_create_no_row() -> None:
    module = table(capacity=5)
    before = module(IDS)
    with pytest.raises(RuntimeError, match=r"capacity of 5 rows, and the ids so far need 7"):
        module(torch.tensor([0, 100, 101]))
    assert len(module.state_dict()["ids"]) == 5
    assert torch.equal(module(IDS), before)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"length": 0, "capacity": 5}, "length is 0"),
        ({"length": 3, "capacity": True}, "capacity is True"),
        ({"length": 3, "capacity": 5, "init": 0.0}, "init is 0.0"),
        ({"length": 3, "capacity": 5, "seed": -1}, "seed is -1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        autoada.HashEmbedding(**arguments)


OPTIMIZERS: dict[str, tuple[bool, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": (True, lambda p: torch.optim.SGD(p, lr=0.1)),
    "Adagrad": (True, lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "SparseAdam": (True, lambda p: torch.optim.SparseAdam(list(p), lr=0.1)),
    "momentum": (False, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)),
    "AdamW": (False, lambda p: torch.optim.AdamW(p, lr=0.1)),
    "RMSprop": (False, lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_an_embedding_with_numbered_ids(name: str) -> None:
    sparse, make = OPTIMIZERS[name]
    module = table(sparse=sparse)
    numbers = torch.tensor([[0, 1], [2, 0], [3, 4]])
    dense = nn.Embedding.from_pretrained(table()(IDS.flatten().unique()), freeze=False, sparse=sparse)
    order = torch.searchsorted(IDS.flatten().unique(), IDS.flatten()[[0, 1, 2, 4, 5]])
    dense.weight.data = dense.weight.data[order]
    optimizer, other = make(module.parameters()), make(dense.parameters())
    module(IDS)  # all rows exist before the first step, as those of the other module do
    for rows in (slice(0, 2), slice(1, 3), slice(0, 3)):
        found = trained(module, optimizer, IDS[rows])
        other.zero_grad()
        (dense(numbers[rows]) * torch.linspace(1, 2, LENGTH)).square().sum().backward()
        other.step()
        assert torch.equal(found, dense(numbers[rows]))


def _loaded(module: nn.Module) -> nn.Module:
    other = table(capacity=7, seed=5)
    other(torch.tensor([55, 0]))
    other.load_state_dict(module.state_dict())
    return other


def _saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    result: nn.Module = torch.load(file, weights_only=False)
    return result


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), _saved, _loaded],
    ids=["deepcopy", "pickle", "torch.save", "state_dict"],
)
def test_a_copy_has_the_same_rows_and_new_ones_of_its_own(copied: Callable[[nn.Module], nn.Module]) -> None:
    module = table()
    optimizer = torch.optim.Adagrad(module.parameters(), lr=0.1)
    trained(module, optimizer, IDS)
    other = copied(module)
    assert torch.equal(other(IDS), module(IDS))
    new = torch.tensor([55, 66])
    assert torch.equal(other(new), table()(new))
    assert new[0] not in module.state_dict()["ids"]


def test_training_continues_from_the_state_dictionaries_of_model_and_optimizer() -> None:
    module = table()
    optimizer = torch.optim.Adagrad(module.parameters(), lr=0.1)
    trained(module, optimizer, IDS)
    other = table(seed=5)
    other(IDS.flip(0))
    resumed = torch.optim.Adagrad(other.parameters(), lr=0.1)
    other.load_state_dict(module.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    more = (IDS[:1], torch.tensor([[55, 0]]))
    assert torch.equal(trained(module, optimizer, *more), trained(other, resumed, *more))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ids": torch.arange(5.0)}, r"its ids are torch.float32 of shape \(5,\)"),
        ({"ids": torch.arange(4)}, r"it has the shape \(5, 3\); it must be \(4, 3\)"),
        ({"ids": torch.zeros(5, dtype=torch.int64)}, "an id occurs twice"),
        (
            {"ids": torch.arange(11), "weight": torch.zeros(11, LENGTH)},
            "it has 11 rows, and the capacity is 10",
        ),
        ({"ids": None}, r'Missing key\(s\) in state_dict: "ids"'),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], problem: str) -> None:
    module = table()
    before = module(IDS)
    state = {name: value for name, value in {**module.state_dict(), **change}.items() if value is not None}
    with pytest.raises(RuntimeError, match=problem):
        module.load_state_dict(state)
    assert torch.equal(module(IDS), before)


def test_to_changes_the_dtype_of_present_and_new_rows() -> None:
    module = table()
    module(IDS[:1])
    module.to(torch.float64)
    assert torch.equal(module(IDS), table()(IDS).double())


def test_unused_rows_take_no_memory() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_bytes()
    module = autoada.HashEmbedding(1 << 10, 1 << 19)  # 2 GiB
    assert module(IDS).shape == (*IDS.shape, 1 << 10)
    assert resident_bytes() < before + (1 << 30)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_compiled_module_creates_rows() -> None:
    module = table()
    compiled = torch.compile(module, backend="eager")
    for ids in (IDS[:1], IDS, torch.tensor([[3, 0]])):
        assert torch.equal(compiled(ids), table()(ids))


def test_tracing_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be traced"):
        torch.jit.trace(table(), (IDS,))


def test_a_parametrized_weight_is_refused() -> None:
    module = table()
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Identity())
    with pytest.raises(RuntimeError, match="weight is parametrized"):
        module(IDS)
