"""Common code around a model and its loop works as in plain PyTorch, or an error says what to do."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

import autoada
from tests.plain_and_wrapped import click_batches, plain_and_wrapped

ROWS = 30
STEPS = 30

Batch = tuple[Tensor, Tensor]
Optimizer = torch.optim.Optimizer
Loop = Callable[[Any, Optimizer, Callable[[], Any]], Iterator[Tensor]]


class Bag:
    """Something that is no module and holds parameters."""

    def __init__(self, *parameters: Tensor) -> None:
        self.parameters = parameters


class Clicks(nn.Module):
    """Keeps parameters where no module looks for them, as deepctr does for its regularisation."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.items = nn.Embedding(ROWS, 4)
        self.mlp: Any = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        self.same = nn.Linear(8, 1)
        self.penalties: Any = [([self.items.weight, self.mlp[0].weight], 0.01)]
        self.by_name: Any = {"items": self.items.weight}
        self.bag: Any = Bag(self.items.weight, self.same.weight)

    def forward(self, ids: Tensor) -> Any:
        x = self.mlp[1](self.mlp[0](self.items(ids).flatten(1)))
        return (self.mlp[2](x) + self.same(x)) * self.scale

    def penalty(self) -> Tensor:
        terms = [p.square().sum() * l2 for held, l2 in self.penalties for p in held]
        terms += [p.square().sum() * 0.01 for p in (*self.by_name.values(), *self.bag.parameters)]
        return torch.stack(terms).sum()


def loss_of(model: Any, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def step(loss: Tensor, optimizer: Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def penalised(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    for batch in batches():
        yield step(loss_of(model, batch) + model.penalty(), optimizer)


def after_each_step(change: Callable[[Any], Any]) -> Loop:
    def loop(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
        for batch in batches():
            yield step(loss_of(model, batch), optimizer)
            change(model)

    return loop


def clamped(model: Any) -> None:
    for parameter in model.mlp.parameters():
        parameter.data.clamp_(-0.2, 0.2)


@torch.no_grad()
def decayed(model: Any) -> None:
    for parameter in model.mlp.parameters():
        parameter.mul_(0.95)


def tied_in_the_loop(model: Any) -> None:
    model.same.weight.data.copy_(model.mlp[2].weight.data)


def given_new_memory(model: Any) -> None:
    model.same.weight.data = F.normalize(model.same.weight.data)


def scaled_by_an_attribute(model: Any) -> None:
    model.scale += 1 / STEPS


def read_after_the_step(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    for batch in batches():
        step(loss_of(model, batch), optimizer)
        yield model.mlp[0].weight.norm() + model.items.weight.norm()


def evaluated_between(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    for batch in batches():
        model.eval()
        with torch.no_grad():
            yield loss_of(model, batch)
        model.train()
        yield step(loss_of(model, batch), optimizer)


def accumulated(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    for number, batch in enumerate(batches()):
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield loss


def scaled(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch in batches():
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        yield loss


def left_early_and_loaded_anew(
    model: Any, optimizer: Optimizer, batches: Callable[[], Any]
) -> Iterator[Tensor]:
    for _ in range(3):
        for number, batch in enumerate(batches()):
            yield step(loss_of(model, batch), optimizer)
            if number == 8:
                break
        try:
            for number, batch in enumerate(batches()):
                if number == 2:
                    raise ValueError("of the loop")
                yield step(loss_of(model, batch), optimizer)
        except ValueError:
            continue


def without_gradients(model: Any, optimizer: Optimizer, batches: Callable[[], Any]) -> Iterator[Tensor]:
    for number, batch in enumerate(batches()):
        if number % 2:
            with torch.no_grad():
                yield loss_of(model, batch)
        else:
            yield step(loss_of(model, batch), optimizer)


CHANGES = [clamped, decayed, tied_in_the_loop, given_new_memory, scaled_by_an_attribute]
HABITS: list[Loop] = [
    penalised,
    read_after_the_step,
    evaluated_between,
    accumulated,
    scaled,
    left_early_and_loaded_anew,
    without_gradients,
]


@pytest.mark.parametrize(
    "loop", [*HABITS, *(pytest.param(after_each_step(change), id=change.__name__) for change in CHANGES)]
)
def test_a_habit_gives_what_it_gives_in_plain_pytorch(loop: Loop) -> None:
    def run(model: Any, optimizer: Optimizer) -> tuple[list[float], dict[str, Tensor]]:
        wrapped = isinstance(model, autoada.AdaModel)
        values = loop(model, optimizer, lambda: autoada.AdaDataLoader(batches(), 2) if wrapped else batches())
        return [value.detach().item() for value in values], model.state_dict()

    (expected, plain), (given, state) = plain_and_wrapped(Clicks, sgd, run)
    assert given == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(state, plain, atol=1e-5, rtol=0)


def test_two_optimizers_step_in_turns() -> None:
    def two(net: Clicks) -> list[Optimizer]:
        others = [*net.items.parameters(), *net.same.parameters()]
        return [sgd(net.mlp), torch.optim.SGD(others, lr=0.3)]

    def run(model: Any, optimizers: list[Optimizer]) -> list[float]:
        return [step(loss_of(model, b), optimizers[i % 2]).item() for i, b in enumerate(batches())]

    plain, wrapped = plain_and_wrapped(Clicks, two, run)
    assert wrapped == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "same", nn.Linear(8, 1)), "the module 'same' comes after AdaModel wrapped"),
        (lambda m: m.add_module("more", nn.Linear(8, 1)), "the module 'more' comes after AdaModel wrapped"),
        (lambda m: m.mlp.append(nn.Linear(1, 1)), "the module '3' comes after AdaModel wrapped"),
        (lambda m: setattr(m.same, "bias", nn.Parameter(torch.ones(1))), "the parameter 'bias' comes after"),
        (lambda m: setattr(m, "free", nn.Parameter(torch.ones(1))), "the parameter 'free' comes after"),
        (pickle.dumps, r"save model\.state_dict\(\) or autoada\.unwrap\(model\) instead"),
        (lambda m: m.half(), r"stays torch\.float32 on cpu: move it before AdaModel"),
        (lambda m: in_ddp(m), "without DataParallel or DistributedDataParallel"),
        (lambda m: nn.DataParallel(m), "without DataParallel or DistributedDataParallel"),
        (
            lambda m: autoada.AdaModel(nn.DataParallel(clicks())),
            "contains a DataParallel: pass the model inside it to AdaModel",
        ),
        (lambda m: move_part(m), r"'same\.weight' was given torch\.float64 of shape \(1, 8\) on cpu"),
        (
            lambda m: alias(m),
            r"the parameters '[\w.]+\.weight' and '[\w.]+\.weight' overlap in memory, as after",
        ),
    ],
)
def test_what_cannot_work_says_what_to_do(change: Callable[[Any], Any], message: str) -> None:
    net = clicks()
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        change(model)
    model.node.close()


def test_a_module_without_parameters_may_come_later() -> None:
    model = autoada.AdaModel(clicks())
    model.mlp[1] = nn.Tanh()
    model.same.dropout = nn.Dropout(0.5)
    model.mlp.append(nn.Identity())
    model.close()


def test_a_model_whose_losses_are_still_there_is_not_wrapped() -> None:
    net = clicks()
    loss = loss_of(net, batches()[0])
    with pytest.raises(ValueError, match=r"'items\.weight' is still part of an earlier forward pass"):
        autoada.AdaModel(net)
    del loss
    autoada.AdaModel(net).close()


def test_a_second_backward_pass_after_the_step_is_refused_as_by_pytorch() -> None:
    net = clicks()
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    loss = loss_of(model, batches()[0])
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    model.close()


def test_what_was_written_by_hand_is_in_checkpoints_and_states(tmp_path: Any) -> None:
    net = clicks()
    model = autoada.AdaModel(net, sgd(net))
    model.same.weight.data.fill_(3.0)
    assert torch.equal(model.state_dict()["same.weight"], torch.full((1, 8), 3.0))
    model.same.bias.data.fill_(5.0)
    model.checkpoint(tmp_path)
    model.same.bias.data.fill_(0.0)
    model.restore(tmp_path)
    assert model.same.bias.item() == 5.0
    assert model.same.weight[0, 0].item() == 3.0
    model.close()


def move_part(model: Any) -> None:
    model.same.double()
    model.state_dict()


def in_ddp(model: Any) -> None:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        nn.parallel.DistributedDataParallel(model)
    finally:
        torch.distributed.destroy_process_group()


def alias(model: Any) -> None:
    model.same.weight.data = model.mlp[2].weight.data
    model.state_dict()


def clicks() -> Clicks:
    torch.manual_seed(0)
    return Clicks()


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def batches() -> list[Batch]:
    return click_batches(ROWS, STEPS)
