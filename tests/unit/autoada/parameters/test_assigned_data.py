"""Programs that assign to `data` or `grad`, or read single elements: equal to plain PyTorch, or refused."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada
from tests.effects import copied
from tests.plain_and_wrapped import plain_and_wrapped

ROWS, LENGTH = 6, 3
IDS = torch.tensor([1, 2, 1])


class Net(nn.Module):
    """A table and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(ROWS, LENGTH)
        self.other = nn.Embedding(ROWS, LENGTH)
        self.lin = nn.Linear(LENGTH, LENGTH)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.lin(self.emb(ids) + self.other(ids))
        return output


Program = Callable[[Any, Any, Callable[[], Tensor]], Any]


def swap(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    """Many programs that average weights use the averages for a while, and then the weights from before."""
    kept = [parameter.data for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.data = torch.ones(parameter.shape)
    outputs = [model(IDS), *kept]
    train()
    outputs += [*map(torch.clone, kept), *map(torch.clone, net.parameters())]
    for parameter, before in zip(net.parameters(), kept, strict=True):
        parameter.data = before
    train()
    kept[0][3] = 5.0
    return outputs, kept


def parts_of_earlier_data(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    first, column = net.emb.weight.detach()[2:5], net.emb.weight.t()[1]
    net.emb.weight.data = torch.ones(ROWS, LENGTH)
    first[0] = 7.0
    train()
    return first, column


def two_generations_of_data(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    first = net.emb.weight.data
    net.emb.weight.data = torch.ones(ROWS, LENGTH)
    second = net.emb.weight.data
    net.emb.weight.data = first
    first[0], second[1] = 9.0, 8.0
    train()
    between = net.emb.weight.clone()
    net.emb.weight.data = second
    train()
    return between, first, second


def memory_of_a_tensor(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    values = torch.arange(float(LENGTH))
    net.lin.bias.data = values
    train()
    values.mul_(2)
    return values, net.lin.bias, train()


def exchanged_memory(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    net.lin.weight.data = net.lin.weight.data.t()
    train()
    strides = net.lin.weight.stride()
    nn.init.uniform_(net.lin.weight)
    return strides, train()


def state_loaded_after_assignment(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    net.lin.bias.data = net.lin.bias.data * 2
    state = {name: torch.full_like(value, 0.5) for name, value in net.state_dict().items()}
    model.load_state_dict(state)
    seen = copied(list(net.parameters()))
    net.lin.weight.data = net.lin.weight.data.clone()
    model.eval()
    with torch.inference_mode():
        seen = [seen, copied(model(IDS))]
    model.train()
    return seen, train()


def gradients_times_ten(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    for parameter in net.parameters():
        parameter.grad.data = parameter.grad.data * 10
    return None


def gradients_from_a_vector(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    gradients = [parameter.grad for parameter in net.parameters()]
    nn.utils.vector_to_parameters(torch.arange(float(sum(map(torch.numel, gradients)))), gradients)
    return None


def gradients_in_a_graph(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    loss = model(IDS).pow(2).sum() + net.emb.weight.pow(3).sum()
    parameters = list(net.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(loss, parameters, create_graph=True), strict=True
    ):
        parameter.grad = gradient
    return None


def numbers_of_elements(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    weight = net.emb.weight.detach()
    return [
        torch.tensor(list(weight.data[0])),
        torch.tensor([weight[0, 0], net.emb.weight.grad[1, 1]]),
        torch.as_tensor([weight[0, 0], 2.0]),
        torch.FloatTensor([weight[0, 0], 2.0]),
        int(weight.data.fill_(2)[0, 0]),
    ]


def pickled_gradient(model: Any, net: Any, train: Callable[[], Tensor]) -> Any:
    return pickle.loads(pickle.dumps(net.emb.weight.grad))


@pytest.mark.parametrize(
    "program",
    [
        swap, parts_of_earlier_data, two_generations_of_data, memory_of_a_tensor, exchanged_memory,
        state_loaded_after_assignment,
        gradients_times_ten, gradients_from_a_vector, gradients_in_a_graph, numbers_of_elements,
        pickled_gradient,
    ],
)  # fmt: skip
def test_assigned_data_and_gradients_have_the_effect_that_they_have_in_pytorch(program: Program) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        net = model.module if isinstance(model, autoada.AdaModel) else model

        def train() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(IDS).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss

        train()
        seen = copied(program(model, net, train))
        optimizer.step()
        return seen, copied(list(net.parameters()))

    def momentum(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    plain, wrapped = plain_and_wrapped(Net, momentum, run)
    torch.testing.assert_close(_values(wrapped), _values(plain), rtol=1e-5, atol=1e-5)


def _values(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: getattr(leaf, "values", leaf), tree)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tables_of_one_dimension_train_in_each_dtype(dtype: torch.dtype) -> None:
    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(ROWS, 1)
            self.emb.weight = nn.Parameter(torch.ones(ROWS, dtype=dtype))

        def forward(self, ids: Tensor) -> Tensor:
            return self.emb.weight[ids].sum()

    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        weight = next(iter(model.parameters()))
        model(IDS).backward()
        weight.grad[3] = 2
        optimizer.step()
        return weight.detach().clone()

    plain, wrapped = plain_and_wrapped(Vector, lambda net: torch.optim.SGD(net.parameters(), lr=0.5), run)
    torch.testing.assert_close(wrapped, plain)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "data of another model": (
        lambda net: setattr(nn.Embedding(ROWS, LENGTH).weight, "data", net.emb.weight.data),
        r"given TableTensor\('emb\.weight'.*no memory that it could share: copy",
    ),
    "data of a tensor": (
        lambda net: setattr(torch.zeros(3), "data", net.emb.weight),
        r"given TableParameter\('emb\.weight'.*no memory that it could share: copy",
    ),
    "data of a dense parameter": (
        lambda net: setattr(net.lin.weight, "data", net.emb.weight.data[:3]),
        r"given TableTensor\('emb\.weight'.*no memory that it could share: copy",
    ),
    "data of another table": (
        lambda net: setattr(net.emb.weight, "data", net.other.weight.data),
        r"given TableTensor\('other\.weight'.* as its data, whose memory it cannot share: copy",
    ),
    "data of a view": (
        lambda net: setattr(net.emb.weight.data, "data", torch.ones(ROWS, LENGTH)),
        "cannot be given other memory, as it is a view: change its values with",
    ),
    "another shape": (
        lambda net: setattr(net.emb.weight, "data", torch.ones(2, LENGTH)),
        r"was given torch\.float32 of shape \(2, 3\) on cpu as its data: a table keeps its shape",
    ),
    "another parameter": (
        lambda net: nn.Parameter(net.emb.weight),
        r"cannot be made another parameter: give nn\.Parameter a view of it, detach\(\)",
    ),
}


@pytest.mark.parametrize("situation", REFUSED)
def test_data_that_a_table_cannot_share_is_refused(situation: str) -> None:
    assign, message = REFUSED[situation]
    net = Net()
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))):
        before = net.emb.weight.tolist()
        with pytest.raises(RuntimeError, match=message):
            assign(net)
        assert net.emb.weight.tolist() == before


def test_a_parameter_with_the_memory_of_another_one_is_refused() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with contextlib.closing(autoada.AdaModel(net, optimizer)) as model:
        model(IDS).sum().backward()
        net.lin.bias.data = net.lin.weight.data[0]
        with pytest.raises(RuntimeError, match=r"'lin\.\w+' and 'lin\.\w+' overlap in memory"):
            optimizer.step()
        net.lin.bias.data = torch.zeros(LENGTH)
        optimizer.step()


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_states_are_loaded_into_parameters_of_any_memory_format(form: torch.memory_format) -> None:
    def make() -> nn.Module:
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
        layers[2].weight.data = torch.randn(16, 2).t()
        layers.to(memory_format=form)  # type: ignore[call-overload]
        return layers

    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        model.load_state_dict({name: torch.full_like(one, 0.5) for name, one in model.state_dict().items()})
        loss = model(torch.ones(2, 3, 4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item(), [(each.stride(), each.detach().clone()) for each in model.parameters()]

    plain, wrapped = plain_and_wrapped(make, lambda net: torch.optim.SGD(net.parameters(), lr=0.1), run)
    torch.testing.assert_close(wrapped, plain)


def test_a_checkpoint_is_restored_into_parameters_that_were_given_memory(tmp_path: Path) -> None:
    net = Net()
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))) as model:
        before = net.lin.bias.tolist()
        model.checkpoint(tmp_path)
        net.lin.bias.data = torch.ones(LENGTH)
        model.restore(tmp_path)
        assert net.lin.bias.tolist() == pytest.approx(before)


def test_many_views_of_a_table_exist() -> None:
    net = Net()
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))):
        rows = [row for _ in range(50) for row in net.emb.weight.detach()]
        before = net.emb.weight.tolist()
        net.emb.weight.data = torch.zeros(ROWS, LENGTH)
        assert [row.tolist() for row in rows] == before * 50
