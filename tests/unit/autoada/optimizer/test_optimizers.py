"""Which optimizer trains a wrapped model: the one that is handed over, the one that holds its parameters."""

from __future__ import annotations

import gc
import platform
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaps
import autoada
from autoada.model import optimizer_lookup
from tests.plain_and_wrapped import plain_and_wrapped, train


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(6, 3)
        self.out = nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.items(ids)).square().mean()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def steps(model: Any, optimizers: Any, count: int = 5) -> dict[str, Tensor]:
    """The state after some steps."""
    train(model, optimizers, range(count), lambda model, step: model((torch.arange(4) + step) % 6))
    state: dict[str, Tensor] = model.state_dict()
    return state


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


def assert_equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert state.keys() == other.keys()
    for name in state:
        assert torch.allclose(state[name].double(), other[name].double(), atol=1e-5), name


def expected() -> dict[str, Tensor]:
    """The state of a plain model that `sgd` trains."""
    torch.manual_seed(0)
    plain = Net()
    return steps(plain, sgd(plain))


def test_an_optimizer_that_was_made_before_is_found_and_trains_the_model(net: Net) -> None:
    optimizer = sgd(net)
    model = autoada.AdaModel(net)
    state = steps(model, optimizer)
    model.close()
    assert_equal(state, expected())


def test_an_optimizer_that_is_gone_is_not_found(net: Net) -> None:
    optimizer = sgd(net)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # makes a cycle: only the collector ends it
    del optimizer
    assert optimizer_lookup.optimizers_of(net, None) is None


def test_two_optimizers_of_one_parameter_have_to_be_told_apart(net: Net) -> None:
    kept = [sgd(net), torch.optim.Adam(net.out.parameters())]
    with pytest.raises(
        ValueError, match=r"Adam and SGD both hold the parameter 'out\.weight': pass the one that trains"
    ) as caught:
        autoada.AdaModel(net)
    assert "AdaModel(model, optimizer)" in str(caught.value)
    model = autoada.AdaModel(net, kept[0])
    state = steps(model, kept[0])
    model.close()
    assert_equal(state, expected())


def test_two_optimizers_of_different_parameters_are_both_found(net: Net) -> None:
    def two(model: Any) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.SGD(model.items.parameters(), lr=0.3),
            torch.optim.Adam(model.out.parameters(), lr=0.1),
        ]

    optimizers = two(net)
    model = autoada.AdaModel(net)
    state = steps(model, optimizers)
    model.close()
    torch.manual_seed(0)
    plain = Net()
    assert_equal(state, steps(plain, two(plain)))


@pytest.mark.parametrize("handed_over", [False, True])
def test_an_optimizer_that_was_made_afterwards_says_at_its_first_step_what_to_do(
    net: Net, handed_over: bool
) -> None:
    model = autoada.AdaModel(net, sgd(net) if handed_over else None)
    late = torch.optim.Adam(model.parameters(), lr=0.1)
    before = model.state_dict()
    loss = model(torch.arange(4))
    if handed_over:  # without an optimizer, the backward pass updates
        loss.backward()
    with pytest.raises(
        RuntimeError, match=r"this Adam was not passed to AdaModel, but its parameters are in"
    ):
        late.step()
    after = model.state_dict()
    model.close()
    assert_equal(before, after)
    gc.collect()


def test_after_the_end_dense_parameters_are_the_users_again(net: Net) -> None:
    model = autoada.AdaModel(net, sgd(net))
    model.close()
    weight = net.out.weight
    before = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=1.0).step()
    assert torch.equal(weight.detach(), before - 1.0)


ROUNDED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.03),
    "weight decay": lambda parameters: torch.optim.SGD(parameters, lr=0.03, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9, nesterov=True),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch rounds otherwise there")
@pytest.mark.parametrize("make", ROUNDED.values(), ids=list(ROUNDED))
def test_one_worker_rounds_as_pytorch_does(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    def trained(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        batches = (torch.cat([torch.randperm(41), torch.randint(41, (60,))]) for _ in range(10))
        train(model, optimizer, batches, lambda model, ids: model(ids).square().mean())
        return {name: values.clone() for name, values in model.state_dict().items()}

    plain, wrapped = plain_and_wrapped(
        lambda: nn.Sequential(nn.Embedding(41, 19), nn.Linear(19, 23), nn.Tanh(), nn.Linear(23, 1)),
        lambda net: make(net.parameters()),
        trained,
    )
    for name, values in wrapped.items():
        assert torch.equal(values, plain[name]), (name, float((values - plain[name]).abs().max()))


def test_a_rule_trains_in_the_backward_pass(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    model = autoada.AdaModel(net, adaps.SGD(lr=0.3))
    for step in range(5):
        model((torch.arange(4) + step) % 6).backward()
    state = model.state_dict()
    model.close()
    assert_equal(state, expected())
    assert caplog.records == []


def test_a_rule_trains_on_after_a_backward_pass_that_failed(net: Net) -> None:
    def fail(gradient: Tensor) -> None:
        raise RuntimeError("failed")

    model = autoada.AdaModel(net, adaps.SGD(lr=0.5))
    ids = torch.arange(4)
    hook = net.items.weight.register_hook(fail)  # the gradients of the layer after it have arrived
    with pytest.raises(RuntimeError, match="failed"):
        model(ids).backward()
    hook.remove()
    model.zero_grad()
    before = model(ids)
    before.backward()
    assert model(ids) < before
    model.close()


def test_that_nobody_says_what_to_train_with_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_lookup, "_warned", set())
    for _ in range(2):
        autoada.AdaModel(Net()).close()
    (record,) = caplog.records
    assert "found no optimizer of the model's parameters" in record.getMessage()
    assert "Adagrad with learning rate 0.01" in record.getMessage()


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_that_moments_of_idle_rows_stay_is_said_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(optimizer_lookup, "_warned", set())
    for _ in range(2):
        plain = Net()
        autoada.AdaModel(plain, getattr(torch.optim, name)(plain.parameters(), lr=0.01)).close()
    (told,) = caplog.messages
    assert f"tables with {name} train as with torch.optim.SparseAdam" in told
    assert "With SGD, Adagrad and RMSprop, one node trains tables as PyTorch does" in told


def test_where_rows_are_those_of_plain_pytorch_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(optimizer_lookup, "_warned", set())
    for make in (
        lambda given: torch.optim.Adam(given, lr=0.01, weight_decay=0.1),
        lambda given: torch.optim.SGD(given, lr=0.01, momentum=0.9),
    ):
        plain = Net()
        autoada.AdaModel(plain, make(plain.parameters())).close()
    plain = Net()
    dense = torch.optim.AdamW(plain.out.parameters(), lr=0.01)
    autoada.AdaModel(plain, [dense, torch.optim.SGD(plain.items.parameters(), lr=0.01)]).close()
    assert caplog.messages == []


class Lion(torch.optim.Optimizer):
    """The sign of a momentum (Chen et al. 2023), as an optimizer that the server does not know."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                parameter.sub_(torch.sign(0.9 * average + 0.1 * parameter.grad), alpha=group["lr"])
                average.lerp_(parameter.grad, 0.01)


OWN: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Lion": lambda parameters: Lion(parameters, lr=0.01),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "AMSGrad": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "dampened": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.5),
}
"""Optimizers without a rule in the server."""


def run_two(model: Any, optimizers: Any, steps: int = 200) -> list[float]:
    given = ((torch.arange(4) + step) % 6 if step % 7 else torch.arange(6) for step in range(steps))
    return train(model, optimizers, given, lambda model, ids: model(ids) + 1.0)


def table_and(name: str) -> Callable[[Any], list[torch.optim.Optimizer]]:
    """SGD for the table, and another optimizer for all other parameters."""
    return lambda model: [
        torch.optim.SGD(model.items.parameters(), lr=0.1),
        OWN[name](model.out.parameters()),
    ]


@pytest.mark.parametrize("of_table", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_any_optimizer_trains_any_parameters(
    name: str, of_table: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make = (lambda model: [OWN[name](model.parameters())]) if of_table else table_and(name)
    plain, wrapped = plain_and_wrapped(Net, make, run_two)
    assert ("all of 'items.weight' is sent in every step" in caplog.text) is of_table
    assert wrapped == pytest.approx(plain, abs=1e-5)
    assert plain[-1] != pytest.approx(plain[0], abs=1e-3)


def test_a_hash_embedding_needs_a_rule_of_the_server() -> None:
    model = autoada.HashEmbedding(6, 3)
    with pytest.raises(ValueError, match=r"^the rows of 'weight' can only be .*, but Lion is no rule"):
        autoada.AdaModel(model, Lion(model.parameters(), lr=0.1))


RESTORED: dict[str, Callable[[Any], Any]] = {
    "own": table_and("Lion"),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1),
    "RMSprop": lambda model: torch.optim.RMSprop(
        model.parameters(), lr=0.01, momentum=0.5, weight_decay=0.1, centered=True
    ),
    "nesterov": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
}


@pytest.mark.parametrize("name", RESTORED)
def test_a_checkpoint_keeps_the_state_of_an_optimizer_and_its_schedule(tmp_path: Any, name: str) -> None:
    def options(optimizer: Any) -> dict[str, Any]:
        return optimizer.param_groups[0] if name != "own" else {}

    ends = []
    for interrupted in (False, True):
        torch.manual_seed(0)
        plain = Net()
        optimizer = RESTORED[name](plain)
        model = autoada.AdaModel(plain, optimizer)
        run_two(model, optimizer, 15)
        options(optimizer)["weight_decay"] = 0.3
        run_two(model, optimizer, 15)
        model.checkpoint(tmp_path)
        if interrupted:
            model.close()
            plain = Net()
            optimizer = RESTORED[name](plain)
            model = autoada.AdaModel(plain, optimizer)
            model.restore(tmp_path)
            assert options(optimizer).get("weight_decay", 0.3) == 0.3
        ends.append(run_two(model, optimizer, 30))
        model.close()
    assert ends[0] == ends[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_what_the_model_reads_has_its_own_dtype(dtype: torch.dtype) -> None:
    """The server has float32: as training with master weights of float32 that are cast for each step."""
    torch.manual_seed(0)
    plain = Net().to(dtype)
    masters = [parameter.detach().float().requires_grad_() for parameter in plain.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    expected_losses = []
    for step in range(20):
        loss = plain((torch.arange(4) + step) % 6)
        plain.zero_grad()
        loss.backward()
        for master, parameter in zip(masters, plain.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, plain.parameters(), strict=True):
                parameter.copy_(master)
        expected_losses.append(loss.item())
    torch.manual_seed(0)
    net = Net().to(dtype)
    wrapped_optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = autoada.AdaModel(net, wrapped_optimizer)
    assert model(torch.arange(4)).dtype is dtype
    given = ((torch.arange(4) + step) % 6 for step in range(20))
    losses = train(model, wrapped_optimizer, given, lambda model, ids: model(ids))
    state = model.state_dict()
    model.close()
    precision = max(1e-6, 4 * torch.finfo(dtype).eps)  # sums of a few numbers, in another order
    assert losses == pytest.approx(expected_losses, abs=precision)
    assert abs(losses[-1] - losses[0]) > 10 * precision
    for name, value in plain.state_dict().items():
        assert state[name].dtype is dtype
        assert torch.allclose(state[name], value, atol=precision), name


def test_another_dtype_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_lookup, "_warned", set())
    for _ in range(2):
        net = Net().to(torch.bfloat16)
        autoada.AdaModel(net, sgd(net)).close()
    (record,) = caplog.records
    assert record.getMessage().startswith("parameters of the model are torch.bfloat16: the parameter server")


class Scaled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("rows", [1024, 1023])
@pytest.mark.parametrize("hidden", ["scripted", "parametrized"])
def test_a_large_table_that_hides_is_named_once(
    hidden: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    items = nn.Embedding(rows, 2)
    if hidden == "scripted":
        net = nn.Sequential(torch.jit.trace(items, torch.arange(3)))
        expected = r"'0\.weight' is sent in every step, because it is not a table; TorchScript .* `tables="
    else:
        nn.utils.parametrize.register_parametrization(items, "weight", Scaled())
        net = nn.Sequential(items)
        expected = r"'0\.parametrizations\.weight\.original' is sent .* its parametrization .* `tables="
    model = autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))
    before = net(torch.arange(2)).detach().clone()
    model(torch.arange(2)).sum().backward()
    model.push()
    assert not torch.equal(net(torch.arange(2)), before)
    model.close()
    assert len(caplog.messages) == (rows >= 1024)
    for message in caplog.messages:
        assert re.search(expected, message)


def test_what_else_an_optimizer_holds_trains_on_as_before() -> None:
    def train_both(wrap: bool) -> list[float]:
        torch.manual_seed(0)
        wrapped, other = Net(), nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*wrapped.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
        x = torch.rand(8, 3)
        losses = []
        model: Any = wrapped
        for step in range(6):
            if wrap and step == 2:  # with momentum from the steps before
                model = autoada.AdaModel(wrapped, optimizer)
            optimizer.zero_grad()
            loss = other(x).square().mean()
            losses.append(loss.item())
            (loss + model(torch.arange(4))).backward()
            optimizer.step()
        if wrap:
            model.close()
        return losses

    assert train_both(True) == train_both(False)


def test_a_step_calls_hooks_and_trains_what_comes_to_the_optimizer_later(net: Net) -> None:
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    steps(model, optimizer, 1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    steps(model, optimizer, 2)
    assert called == ["before", "after"] * 2
    late = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [late]})
    late.square().sum().backward()
    optimizer.step()
    assert late.tolist() == pytest.approx([0.4, 0.4])
    model.close()


@pytest.mark.parametrize("factor", [1.0, float("inf")])
def test_a_scaler_unscales_the_gradients_of_a_fused_optimizer(factor: float) -> None:
    def run(model: Any, optimizer: Any) -> list[float]:
        scaler, losses = torch.amp.GradScaler("cpu", init_scale=1024.0), []
        for number in range(3):
            loss = model(torch.tensor([[0, 1], [2, 2]])).square().mean()
            losses.append(loss.item())
            optimizer.zero_grad()
            scaler.scale(loss * (factor if number == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return losses

    plain, wrapped = plain_and_wrapped(
        Net, lambda net: torch.optim.SGD(net.parameters(), lr=0.1, fused=True), run
    )
    assert wrapped == pytest.approx(plain, abs=1e-5)


def test_a_hook_from_before_wrapping_follows_the_step_with_its_gradients() -> None:
    def run(model: Any, optimizer: Any) -> list[float]:
        losses = []
        for _ in range(3):
            loss = model(torch.tensor([[0, 1], [2, 2]])).square().mean()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        return losses

    def clearing(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = sgd(net)
        optimizer.register_step_post_hook(lambda one, *_: one.zero_grad())
        return optimizer

    plain, wrapped = plain_and_wrapped(Net, clearing, run)
    assert wrapped == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize(
    "replace",
    [
        lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
        lambda optimizer: optimizer.param_groups.__setitem__(0, dict(optimizer.param_groups[0])),
    ],
)
def test_learning_rates_of_groups_that_are_replaced_are_followed(
    replace: Callable[[torch.optim.Optimizer], None],
) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        replace(optimizer)
        for _ in range(3):
            steps(model, optimizer, 1)
            scheduler.step()
        return steps(model, optimizer, 1)

    assert_equal(*plain_and_wrapped(Net, sgd, run))


class DerivedNAdam(torch.optim.NAdam):
    """An optimizer whose step calls the step of its base class."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def with_closures(model: Any, optimizers: Any) -> list[Any]:
    """The results of steps that get a closure, or None in its place, and the weights after each step."""
    results: list[Any] = []
    for step in range(8):
        ids = (torch.arange(4) + step) % 6

        def evaluate(ids: Tensor = ids) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss: Tensor = model(ids)
            loss.backward()
            return loss

        for optimizer in optimizers:
            closure: Any = evaluate
            if step % 3 == 2 and not isinstance(optimizer, torch.optim.LBFGS):  # it needs a closure
                evaluate()
                closure = None
            with torch.set_grad_enabled(step % 2 == 0):  # a closure computes gradients in any mode
                result = optimizer.step(closure) if step < 4 else optimizer.step(closure=closure)
            results.append([] if result is None else [result.item()])
        results += [value.flatten().tolist() for value in model.state_dict().values()]
    return results


CLOSURES: dict[str, Callable[[Any], list[torch.optim.Optimizer]]] = {
    "SGD": lambda model: [sgd(model)],
    "Adagrad": lambda model: [torch.optim.Adagrad(model.parameters(), lr=0.1)],
    "NAdam": table_and("NAdam"),
    "dampened": table_and("dampened"),
    "derived": lambda model: [sgd(model.items), DerivedNAdam(model.out.parameters())],
    "LBFGS": lambda model: [sgd(model.items), torch.optim.LBFGS(model.out.parameters(), max_iter=1)],
}


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", CLOSURES)
def test_a_step_evaluates_its_closure_as_in_pytorch(name: str, scheduled: bool) -> None:
    def make(model: Any) -> list[torch.optim.Optimizer]:
        optimizers = CLOSURES[name](model)
        if scheduled:
            for optimizer in optimizers:
                torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizers

    plain, wrapped = plain_and_wrapped(Net, make, with_closures)
    assert len(plain) == len(wrapped)
    for one, other in zip(plain, wrapped, strict=True):
        assert other == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, "^LBFGS evaluates its closure several times in a step"),
        (lambda parameters: Lion(parameters, lr=0.01), "^Lion does not evaluate its closure: call its step"),
    ],
)
def test_a_closure_that_is_not_evaluated_once_is_refused(
    net: Net, make: Callable[[Any], torch.optim.Optimizer], message: str
) -> None:
    optimizers = [sgd(net.items), make(net.out.parameters())]
    model = autoada.AdaModel(net, optimizers)
    with pytest.raises(RuntimeError, match=message):
        with_closures(model, optimizers)
    model.close()


@pytest.mark.parametrize("kind", [torch.optim.SGD, DerivedNAdam])
def test_one_optimizer_trains_two_wrapped_models(kind: Any) -> None:
    def train_both(wrap: bool) -> list[float]:
        torch.manual_seed(0)
        plain = [Net(), Net()]
        trained = [net if kind is torch.optim.SGD else net.out for net in plain]
        optimizer = kind([parameter for each in trained for parameter in each.parameters()], lr=0.1)
        rest = [] if kind is torch.optim.SGD else [sgd(net.items) for net in plain]
        models: list[Any] = plain
        if wrap:
            models = [autoada.AdaModel(net, [optimizer, *rest[i : i + 1]]) for i, net in enumerate(plain)]
        losses = train(
            models,
            [optimizer, *rest],
            range(6),
            lambda models, step: sum(model((torch.arange(4) + step) % 6) for model in models),
        )
        if wrap:
            for model in models:
                model.close()
        return losses

    assert train_both(True) == pytest.approx(train_both(False), abs=1e-5)


def test_hooks_that_come_after_wrapping_change_the_gradients_of_the_step() -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        def clip(*_: object) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        return steps(model, optimizer)

    assert_equal(*plain_and_wrapped(Net, sgd, run))


@pytest.mark.parametrize("scheduled", [False, True])
def test_gradients_stay_if_a_step_fails_after_they_were_pushed(net: Net, scheduled: bool) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a hook of the program fails")

    optimizer = sgd(net)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_post_hook(fail)
    model = autoada.AdaModel(net, optimizer)
    model(torch.arange(4)).backward()
    before = [parameter.grad for parameter in net.parameters()]
    assert all(gradient is not None for gradient in before)
    with pytest.raises(ArithmeticError):
        optimizer.step()
    after = [parameter.grad for parameter in net.parameters()]
    assert all(one is other for one, other in zip(after, before, strict=True))
    model.close()


@pytest.mark.parametrize("before", [True, False])
def test_a_scheduler_sees_the_steps_of_a_wrapped_models_optimizer(net: Net, before: bool) -> None:
    optimizer = sgd(net)
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model = autoada.AdaModel(net, optimizer)
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):  # a scheduler that sees no step of its optimizer warns, which is an error here
        steps(model, optimizer, 1)
        scheduler.step()
    torch.manual_seed(0)
    plain = Net()
    other = sgd(plain)
    following = torch.optim.lr_scheduler.StepLR(other, 1, 0.5)
    for _ in range(3):
        steps(plain, other, 1)
        following.step()
    assert_equal(model.state_dict(), plain.state_dict())
    model.close()


def profiled(train: Callable[[], Any]) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        return train()


@pytest.mark.parametrize("around", [profiled, torch.compile(lambda train: train(), backend="eager")])
def test_a_profiled_or_compiled_loop_trains_as_in_plain_pytorch(around: Callable[..., Any]) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        given = [torch.arange(start, start + 4) % 6 for start in range(5)]
        around(lambda: train(model, optimizer, given, lambda model, ids: model(ids)))
        return steps(model, optimizer)

    assert_equal(*plain_and_wrapped(Net, sgd, run))
