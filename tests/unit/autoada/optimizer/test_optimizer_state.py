"""The state of optimizers moves with the parameters, into the server and back."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada

ROWS = 7
Optimizers = list[torch.optim.Optimizer]
Wrap = Callable[[nn.Module, Optimizers], Any]
Program = Callable[["Case", Wrap], list[Any]]


class Net(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 3, sparse=sparse)
        self.mid = nn.Linear(3, 5)
        self.out = nn.Linear(5, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(torch.tanh(self.mid(self.items(ids))))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_second_moments_are_as_precise_as_in_pytorch(kind: Any) -> None:
    moments = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        optimizer = kind(layer.parameters(), **({"alpha": 0.999} if kind is torch.optim.RMSprop else {}))
        model: Any = autoada.AdaModel(layer, optimizer) if wrapped else layer
        for step in range(3):
            optimizer.zero_grad()
            (model(torch.full((1, 3), 10.0 + step)).sum() * 10).backward()
            optimizer.step()
        name = "square_avg" if kind is torch.optim.RMSprop else "exp_avg_sq"
        state = optimizer.state_dict()["state"]
        moments.append(torch.cat([state[number][name].flatten() for number in state]))
        if wrapped:
            model.close()
    torch.testing.assert_close(moments[1], moments[0], rtol=1e-6, atol=0)


class Case:
    """A kind of optimizer, with the model and the batches to compare it on."""

    def __init__(
        self, make: Callable[[Sequence[Tensor]], torch.optim.Optimizer], reads_all_rows: bool = False
    ) -> None:
        self.make = make
        self.reads_all_rows = reads_all_rows  # moments of other rows decay in PyTorch, and not in the server

    def net(self, seed: int) -> Net:
        torch.manual_seed(seed)
        return Net()

    def optimizers(self, net: nn.Module) -> Optimizers:
        return [self.make(list(net.parameters()))]

    def batch(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        few = torch.randint(0, ROWS, (4,), generator=generator)
        return torch.cat([few, torch.arange(ROWS)]) if self.reads_all_rows else few

    def train(self, model: Any, optimizers: Optimizers, steps: range) -> list[float]:
        losses = []
        for step in steps:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = (model(self.batch(step)) - 1.5).square().mean()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        return losses

    def trained_states(self) -> list[dict[str, Any]]:
        """The states of optimizers after a training of another model."""
        net = self.net(3)
        optimizers = self.optimizers(net)
        self.train(net, optimizers, range(20, 25))
        return [optimizer.state_dict() for optimizer in optimizers]


class SparseCase(Case):
    """SparseAdam for the table, and momentum for the other parameters."""

    def net(self, seed: int) -> Net:
        torch.manual_seed(seed)
        return Net(sparse=True)

    def optimizers(self, net: Any) -> Optimizers:
        dense = [*net.mid.parameters(), *net.out.parameters()]
        return [
            torch.optim.SparseAdam(list(net.items.parameters()), lr=0.02),
            torch.optim.SGD(dense, lr=0.05, momentum=0.9),
        ]


optim = torch.optim
CASES = {
    "SGD": Case(lambda p: optim.SGD(p, lr=0.1, weight_decay=0.05)),
    "momentum": Case(lambda p: optim.SGD(p, lr=0.05, momentum=0.9)),
    "nesterov": Case(lambda p: optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.05)),
    "Adagrad": Case(lambda p: optim.Adagrad(p, lr=0.1)),
    "Adagrad, weight decay": Case(
        lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.2)
    ),
    "Adam": Case(lambda p: optim.Adam(p, lr=0.02), reads_all_rows=True),
    "Adam, weight decay": Case(lambda p: optim.Adam(p, lr=0.02, weight_decay=0.1)),
    "AdamW": Case(lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.1), reads_all_rows=True),
    "RMSprop": Case(lambda p: optim.RMSprop(p, lr=0.01)),
    "RMSprop, centered": Case(
        lambda p: optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1)
    ),
    "SparseAdam": SparseCase(lambda p: optim.SparseAdam(p)),
}
ADDS_GROUPS = [name for name in CASES if not name.startswith("Adagrad")]
"""Adagrad of PyTorch makes its state once, and fails with groups that are added later."""


def weights(model: Any) -> list[Any]:
    return [value.clone() for value in model.state_dict().values()]


def wrapped_in_the_middle(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    losses = case.train(net, optimizers, range(4))
    model = wrap(net, optimizers)
    losses += case.train(model, optimizers, range(4, 9))
    return [losses, *weights(model)]


def loaded_before(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    for optimizer, state in zip(optimizers, case.trained_states(), strict=True):
        optimizer.load_state_dict(state)
    model = wrap(net, optimizers)
    return [case.train(model, optimizers, range(6)), *weights(model)]


def loaded_after(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(9))
    for optimizer, state in zip(optimizers, case.trained_states(), strict=True):
        optimizer.load_state_dict(state)
    losses += case.train(model, optimizers, range(9, 15))
    return [losses, *weights(model)]


def back_to_plain(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(5))
    states = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
    plain = autoada.unwrap(model) if isinstance(model, autoada.AdaModel) else copy.deepcopy(net)
    again = case.optimizers(plain)
    for optimizer, state in zip(again, states, strict=True):
        optimizer.load_state_dict(state)
    losses += case.train(plain, again, range(5, 10))
    return [losses, *weights(plain)]


def saved_and_loaded_in_place(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(5))
    for optimizer in optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    losses += case.train(model, optimizers, range(5, 10))
    return [losses, *weights(model)]


def scheduled_after_loading(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    for optimizer, state in zip(optimizers, case.trained_states(), strict=True):
        optimizer.load_state_dict(state)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    losses = []
    for step in range(4):
        losses += case.train(model, optimizers, range(step, step + 1))
        for scheduler in schedulers:
            scheduler.step()
    for optimizer in optimizers:
        optimizer.param_groups[:] = [dict(group, lr=0.03) for group in optimizer.param_groups]
    losses += case.train(model, optimizers, range(4, 7))
    return [losses, *weights(model)]


def frozen_for_a_while(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(3))
    frozen = [net.items.weight, net.mid.weight, net.mid.bias]
    for step, trains in ((3, False), (6, True)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for parameter in frozen:
            parameter.requires_grad_(trains)
        losses += case.train(model, optimizers, range(step, step + 3))
    return [losses, *weights(model)]


def removed_for_a_while(case: Case, wrap: Wrap) -> list[Any]:
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(3))
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for taken in (net.mid.weight, net.items.weight):
        group = next(group for group in groups if any(p is taken for p in group["params"]))
        kept = group["params"]
        group["params"] = [p for p in kept if p is not taken]
        losses += case.train(model, optimizers, range(3, 6))
        taken.grad = None  # as model.zero_grad() does
        group["params"] = kept
    losses += case.train(model, optimizers, range(6, 9))
    return [losses, *weights(model)]


PROGRAMS = [
    wrapped_in_the_middle,
    loaded_before,
    loaded_after,
    back_to_plain,
    saved_and_loaded_in_place,
    scheduled_after_loading,
    frozen_for_a_while,
    removed_for_a_while,
]


def assert_as_in_pytorch(case: Case, program: Program) -> None:
    made = []

    def wrap(net: nn.Module, optimizers: Optimizers) -> autoada.AdaModel:
        made.append(autoada.AdaModel(net, optimizers))
        return made[-1]

    plain = program(case, lambda net, _: net)
    wrapped = program(case, wrap)
    for model in made:
        model.close()
    assert wrapped[0] == pytest.approx(plain[0], abs=1e-5)
    for value, expected in zip(wrapped[1:], plain[1:], strict=True):
        assert torch.allclose(value, expected, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("name", CASES)
def test_a_training_goes_on_as_in_pytorch(name: str, program: Program) -> None:
    assert_as_in_pytorch(CASES[name], program)


def with_groups_added(case: Case, wrap: Wrap) -> list[Any]:
    """Gradual unfreezing: the table and the first layer come to the optimizer later, one by one."""
    net = case.net(0)
    for parameter in (*net.items.parameters(), *net.mid.parameters()):
        parameter.requires_grad_(False)
    optimizer = case.optimizers(net)[-1]
    for group in optimizer.param_groups:
        group["params"] = list(net.out.parameters())
    model = wrap(net, [optimizer])
    losses = case.train(model, [optimizer], range(3))
    for step, layer in ((3, net.mid), (6, net.items)):
        for number, parameter in enumerate(layer.parameters()):
            parameter.requires_grad_(True)
            optimizer.add_param_group({"params": [parameter], "lr": 0.01 + 0.005 * number})
        losses += case.train(model, [optimizer], range(step, step + 3))
    return [losses, *weights(model)]


@pytest.mark.parametrize("name", [name for name in ADDS_GROUPS if name != "SparseAdam"])
def test_groups_that_are_added_train_as_in_pytorch(name: str) -> None:
    assert_as_in_pytorch(CASES[name], with_groups_added)


@pytest.mark.parametrize("trains", [False, True])
def test_a_parameter_in_no_optimizer_stays_as_it_is(trains: bool) -> None:
    def program(case: Case, wrap: Wrap) -> list[Any]:
        net = case.net(0)
        for parameter in (net.items.weight, net.out.bias):
            parameter.requires_grad_(trains)
        optimizer = case.make([*net.mid.parameters(), net.out.weight])
        model = wrap(net, [optimizer])
        return [case.train(model, [optimizer], range(5)), *weights(model)]

    assert_as_in_pytorch(CASES["momentum"], program)


def test_a_group_with_another_rule_is_refused_before_anything_changes() -> None:
    case = CASES["SGD"]
    net = case.net(0)
    optimizer = torch.optim.SGD(net.out.parameters(), lr=0.1)
    model = autoada.AdaModel(net, optimizer)
    case.train(model, [optimizer], range(1))
    optimizer.add_param_group({"params": list(net.items.parameters()), "momentum": 0.9})
    before = weights(model)
    with pytest.raises(
        ValueError, match=r"cannot train 'items\.weight' with .*Wrap the model with the options"
    ):
        case.train(model, [optimizer], range(1, 2))
    assert all(map(torch.equal, weights(model), before))
    model.close()


@pytest.mark.parametrize("name", CASES)
def test_a_state_dict_has_the_layout_of_pytorch(name: str) -> None:
    case = CASES[name]

    def states(wrap: Wrap) -> list[dict[str, Any]]:
        net = case.net(0).requires_grad_(True)
        optimizers = case.optimizers(net)
        model = wrap(net, optimizers)
        found = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
        case.train(model, optimizers, range(6))
        found += [optimizer.state_dict() for optimizer in optimizers]
        if isinstance(model, autoada.AdaModel):
            model.close()
        return found

    wrapped = states(autoada.AdaModel)
    for state, expected in zip(wrapped, states(lambda net, _: net), strict=True):
        assert state["param_groups"] == expected["param_groups"]
        assert state["state"].keys() == expected["state"].keys()
        for number, entry in expected["state"].items():
            assert list(state["state"][number]) == list(entry)
            for key, value in entry.items():
                torch.testing.assert_close(state["state"][number][key], value, atol=1e-5, rtol=1e-5)


def test_state_without_a_place_in_the_server_is_refused() -> None:
    case = CASES["Adam"]
    net = case.net(0)
    amsgrad = torch.optim.Adam(net.parameters(), lr=0.02, amsgrad=True)
    case.train(net, [amsgrad], range(2))
    state = amsgrad.state_dict()
    for group in state["param_groups"]:
        group["amsgrad"] = False
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    message = r"has 'max_exp_avg_sq' of the parameter 'items\.weight'.*Adam, which has no place"
    model = autoada.AdaModel(net, optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    model.close()
    plain = case.net(0)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.02)
    optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        autoada.AdaModel(plain, optimizer)


def test_a_state_of_another_shape_is_refused() -> None:
    case = CASES["Adagrad"]
    net = case.net(0)
    optimizer = case.optimizers(net)[0]
    model = autoada.AdaModel(net, optimizer)
    state = optimizer.state_dict()
    state["state"][0]["sum"] = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"'sum' of the parameter 'items\.weight' .* shape \(2, 3\)"):
        optimizer.load_state_dict(state)
    model.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda optimizer, p: optimizer.state[p],
        lambda optimizer, p: optimizer.state.get(p),
        lambda optimizer, p: p in optimizer.state,
        lambda optimizer, p: optimizer.state.__setitem__(p, {}),
        lambda optimizer, p: optimizer.state.clear(),
        lambda optimizer, p: optimizer.state.pop(p, None),
        lambda optimizer, p: optimizer.state.setdefault(p, {}),
        lambda optimizer, p: optimizer.state.__delitem__(p),
        lambda optimizer, p: optimizer.state.update({p: {}}),
        lambda optimizer, p: optimizer.state.popitem(),
        lambda optimizer, p: optimizer.state | {},
        lambda optimizer, p: optimizer.state == {},
        lambda optimizer, p: len(optimizer.state),
        lambda optimizer, p: bool(optimizer.state),
        lambda optimizer, p: copy.copy(optimizer.state),
        lambda optimizer, p: copy.deepcopy(optimizer.state),
    ],
)
@pytest.mark.parametrize("loads", [False, True])
def test_an_entry_of_a_state_in_the_server_is_refused(use: Callable[[Any, Any], object], loads: bool) -> None:
    case = CASES["momentum"]
    net = case.net(0)
    optimizer = case.optimizers(net)[0]
    model = autoada.AdaModel(net, optimizer)
    if loads:
        optimizer.load_state_dict(optimizer.state_dict())
    for parameter in (net.items.weight, net.out.bias):
        with pytest.raises(RuntimeError, match=r"in the parameter server. Read it by optimizer.state_dict()"):
            use(optimizer, parameter)
    model.close()


def with_a_state_assigned(case: Case, wrap: Wrap) -> list[Any]:
    """A restart of the optimizer, as programs write it."""
    net = case.net(0)
    optimizers = case.optimizers(net)
    model = wrap(net, optimizers)
    losses = case.train(model, optimizers, range(4))
    for optimizer in optimizers:
        optimizer.state = defaultdict(dict)
    losses += case.train(model, optimizers, range(4, 8))
    return [losses, *weights(model)]


@pytest.mark.parametrize("name", ADDS_GROUPS)
def test_a_state_that_is_assigned_is_taken_over_at_the_next_step(name: str) -> None:
    assert_as_in_pytorch(CASES[name], with_a_state_assigned)


def test_a_learning_rate_in_a_tensor_is_followed_after_loading() -> None:
    def program(case: Case, wrap: Wrap) -> list[Any]:
        net = case.net(0)
        optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.02), foreach=False)
        model = wrap(net, [optimizer])
        losses = case.train(model, [optimizer], range(3))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.param_groups[0]["lr"].fill_(0.1)
        losses += case.train(model, [optimizer], range(3, 6))
        return [losses, *weights(model)]

    assert_as_in_pytorch(CASES["Adam"], program)


def test_the_number_of_steps_is_exact_with_a_half_precision_default_dtype() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    model = autoada.AdaModel(net, optimizer)
    state = optimizer.state_dict()
    moments = {i: torch.zeros_like(parameter.data) for i, parameter in enumerate(net.parameters())}
    state["state"] = {
        i: {"step": torch.tensor(257.0), "exp_avg": zeros, "exp_avg_sq": zeros}
        for i, zeros in moments.items()
    }
    optimizer.load_state_dict(state)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = [each["step"].item() for each in optimizer.state_dict()["state"].values()]
    finally:
        torch.set_default_dtype(torch.float32)
    model.close()
    assert found == [257] * len(moments)


def test_another_option_in_a_tensor_is_followed() -> None:
    def program(case: Case, wrap: Wrap) -> list[Any]:
        net, decay = case.net(0), torch.tensor(0.01)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
        optimizer.param_groups[0]["weight_decay"] = decay
        model = wrap(net, [optimizer])
        losses = case.train(model, [optimizer], range(3))
        decay.fill_(0.2)
        losses += case.train(model, [optimizer], range(3, 6))
        return [losses, *weights(model)]

    assert_as_in_pytorch(CASES["momentum"], program)


def test_moving_a_dense_parameter_to_another_group_is_refused() -> None:
    case = CASES["momentum"]
    net = case.net(0)
    optimizer = case.optimizers(net)[0]
    model = autoada.AdaModel(net, optimizer)
    *others, last = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = others
    optimizer.add_param_group({"params": [last], "lr": 0.5})
    with pytest.raises(ValueError, match=r"'out\.bias' has moved to another group .* form the groups before"):
        case.train(model, [optimizer], range(1))
    model.close()


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_keeps_the_state_that_a_state_dict_gives(name: str, tmp_path: Any) -> None:
    case = CASES[name]
    states = []
    for restores in (False, True):
        net = case.net(0)
        optimizers = case.optimizers(net)
        model = autoada.AdaModel(net, optimizers)
        if restores:
            model.restore(tmp_path)
        else:
            case.train(model, optimizers, range(4))
            model.checkpoint(tmp_path)
        states.append([optimizer.state_dict() for optimizer in optimizers])
        model.close()
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


def test_a_state_without_values_is_refused() -> None:
    with torch.device("meta"):
        table = nn.Embedding(ROWS, 3)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    autoada.AdaModel(table, optimizer).close()  # a state before the first step has none to lose
    table = nn.Embedding(ROWS, 3).to("meta")
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    optimizer.state[table.weight]["step"] += 1
    with pytest.raises(ValueError, match=r"'sum' of the parameter 'weight' .* meta device and has no values"):
        autoada.AdaModel(table, optimizer)


def test_a_state_is_not_replaced_after_a_step_where_rows_travel_rounded() -> None:
    plain = nn.Embedding(4, 2)
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    model = autoada.AdaModel(plain, optimizer)
    model._wrapped.optimizer_states._rounds = True  # as on two nodes with wire = "bfloat16"
    optimizer.load_state_dict(optimizer.state_dict())
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    with pytest.raises(
        ValueError, match="'weight' cannot be replaced after a step, because messages round rows"
    ):
        optimizer.load_state_dict(optimizer.state_dict())
    model.close()
