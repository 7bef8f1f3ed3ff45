"""Optimizers with the options and uses that PyTorch's own tests cover, plain and wrapped."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.testing._internal.common_optimizers import optim_db

import autoada
from tests.effects import copied, difference, effects_of, is_refusal

ROWS, LENGTH = 6, 3

Make = Callable[[Any], torch.optim.Optimizer]
Run = Callable[[Any, torch.optim.Optimizer], Any]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


class Net(nn.Module):
    def __init__(self, sparse: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, LENGTH, sparse=sparse)
        self.out = nn.Linear(LENGTH, 1).requires_grad_(not frozen)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.items(ids)).square().mean()


IDS = [torch.tensor([0, 1, 2, 3, 4, 5, 0]), torch.tensor([5, 4, 3, 2, 1, 0]), torch.arange(ROWS)]
"""Ids of steps in which each row has a gradient, so that no optimizer differs for rows without one."""


def backward(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Any:
    """A closure's work: the loss with its gradients."""
    optimizer.zero_grad()
    loss: Tensor = model(ids)
    loss.backward()
    return loss


def step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """One step; returns the loss."""
    loss: Tensor = backward(model, optimizer, ids)
    optimizer.step()
    return loss.detach()


def weights_of(model: Any) -> dict[str, Any]:
    return {name: copied(values) for name, values in model.state_dict().items()}


def trained(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Losses and weights of some steps."""
    return [(copied(step(model, optimizer, ids)), weights_of(model)) for ids in IDS * 2]


def effects(make: Make, run: Run, net: Callable[[], Net], wrap: bool) -> Any:
    """Effects of ``run(model, optimizer)`` for a plain or a wrapped model."""

    def call() -> Any:
        torch.manual_seed(0)
        plain = net()
        optimizer = make(plain)
        if not wrap:
            return run(plain, optimizer)
        model = autoada.AdaModel(plain, optimizer)
        try:
            return copied(run(model, optimizer))
        finally:
            model.close()

    return effects_of(call)


def is_refused(make: Make, run: Run, net: Callable[[], Net] = Net) -> bool:
    """Whether the wrapper refuses with an error that names the table; the effects are equal otherwise."""
    plain, wrapped = (effects(make, run, net, wrap) for wrap in (False, True))
    if isinstance(wrapped, Exception) and not isinstance(plain, Exception) and is_refusal(wrapped):
        return True
    assert not difference(plain, wrapped)
    return False


def _options(implementations: bool) -> dict[str, tuple[Any, dict[str, Any]]]:
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for info in optim_db:
        for given in info.optim_inputs_func(device="cpu"):
            for flag in (None, *info.supported_impls) if implementations else (None,):
                if flag != "fused" or "cpu" in info.supports_fused_on:
                    name = f"{info.name} {given.desc} {flag or ''}".strip()
                    found[name] = info.optim_cls, {**given.kwargs, **({} if flag is None else {flag: True})}
    return found


OPTIONS = _options(implementations=True)
"""Classes and options of PyTorch's own list of optimizers, also with each implementation."""
FOR_DENSE = _options(implementations=False)
ONLY_TABLES = {"Muon", "SparseAdam"}
"""Optimizers that take matrices or sparse gradients alone."""


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_of_each_optimizer_is_equal_or_refused(name: str) -> None:
    cls, options = OPTIONS[name]
    kind = cls.__name__

    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        if kind != "LBFGS":
            return trained(model, optimizer)
        return [optimizer.step(partial(backward, model, optimizer, ids)) for ids in IDS], weights_of(model)

    def make(net: Any) -> torch.optim.Optimizer:
        return cls((net.items if kind in ONLY_TABLES else net).parameters(), **options)  # type: ignore[no-any-return]

    def net() -> Net:
        return Net(sparse=kind == "SparseAdam", frozen=kind in ONLY_TABLES)

    refused = is_refused(make, run, net)
    assert not refused or kind == "LBFGS"  # it calls its closure several times in a step


@pytest.mark.parametrize("name", [name for name in FOR_DENSE if name.split()[0] not in ONLY_TABLES])
def test_each_optimizer_of_dense_parameters_is_equal_or_refused(name: str) -> None:
    cls, options = FOR_DENSE[name]

    def make(net: Any) -> Any:
        return [cls(net.out.parameters(), **options), torch.optim.SGD(net.items.parameters(), lr=0.1)]

    def run(model: Any, optimizers: Any) -> Any:
        seen: list[Any] = []
        for ids in IDS * 2:
            optimizers[1].zero_grad()
            if cls is torch.optim.LBFGS:
                optimizers[0].step(partial(backward, model, optimizers[0], ids))
            else:
                backward(model, optimizers[0], ids)
                optimizers[0].step()
            optimizers[1].step()
            seen.append(weights_of(model))
        return seen

    refused = is_refused(make, run)
    assert not refused or cls is torch.optim.LBFGS


BASES: dict[str, Make] = {
    "SGD": lambda net: torch.optim.SGD(groups_of(net), lr=0.1),
    "momentum": lambda net: torch.optim.SGD(groups_of(net), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda net: torch.optim.SGD(groups_of(net), lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda net: torch.optim.Adagrad(groups_of(net), lr=0.1, eps=1e-6),
    "RMSprop": lambda net: torch.optim.RMSprop(groups_of(net), lr=0.01, momentum=0.5, centered=True),
    "Adam": lambda net: torch.optim.Adam(groups_of(net), lr=0.1),
    "SparseAdam": lambda net: torch.optim.SparseAdam(list(net.items.parameters()), lr=0.1),
    "AdamW": lambda net: torch.optim.AdamW(groups_of(net), lr=0.1, weight_decay=0.1),
}


def groups_of(net: Any) -> list[dict[str, Any]]:
    """One group for the table, and one for the dense parameters."""
    return [{"params": list(net.items.parameters())}, {"params": list(net.out.parameters())}]


def other(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A new optimizer of the same kind and parameters, with its own options."""
    groups = [{"params": group["params"]} for group in optimizer.param_groups]
    made: torch.optim.Optimizer = cast("Any", type(optimizer))(groups, lr=0.7)
    return made


def closure(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen = [optimizer.step(partial(backward, model, optimizer, ids)) for ids in IDS]
    return seen, optimizer.step(closure=partial(backward, model, optimizer, IDS[0])), weights_of(model)


def no_closure(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    backward(model, optimizer, IDS[0])
    return optimizer.step(None), optimizer.step(closure=None), weights_of(model)


def closure_without_gradients(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    backward(model, optimizer, IDS[0])
    return optimizer.step(lambda: 3.0), weights_of(model)


def options_of_groups(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[Any] = []
    for number, ids in enumerate(IDS):
        optimizer.param_groups[0]["lr"] = 0.05 * number
        optimizer.param_groups[1]["weight_decay"] = 0.1 * number
        seen.append((copied(step(model, optimizer, ids)), weights_of(model)))
    return seen


def step_without_gradients(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    optimizer.step()
    before = weights_of(model)
    step(model, optimizer, IDS[0])
    optimizer.zero_grad()
    optimizer.step()
    return before, weights_of(model)


def zeroed_gradients(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[Any] = []
    for ids in IDS:
        step(model, optimizer, ids)
        optimizer.zero_grad(set_to_none=False)
        seen.append([copied(one.grad) for one in model.parameters()])
        optimizer.step()
        seen.append(weights_of(model))
    return seen


def accumulated_gradients(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[Any] = []
    for ids in IDS:
        model(ids).backward()
        optimizer.step()
        optimizer.step()
        seen.append(weights_of(model))
    return seen


def gradients_of_zeros(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    step(model, optimizer, IDS[0])
    optimizer.zero_grad()
    (model(IDS[1]) * 0).backward()
    optimizer.step()
    return weights_of(model)


def state(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    return optimizer.state_dict()


def state_of_a_new_optimizer(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.state_dict()


def state_loaded_back(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    kept = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    trained(model, optimizer)
    model.load_state_dict(weights)
    optimizer.load_state_dict(kept)
    return trained(model, optimizer), optimizer.state_dict()


def state_through_a_file(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "model": model.state_dict()}, file)
    trained(model, optimizer)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    optimizer.load_state_dict(loaded["optimizer"])
    model.load_state_dict(loaded["model"])
    return trained(model, optimizer)


def state_goes_on_in_a_plain_copy(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    plain = copy.deepcopy(model)
    again = cast("Any", type(optimizer))(groups_of(plain))
    again.load_state_dict(optimizer.state_dict())
    return trained(plain, again)


def state_with_other_options(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    kept = copy.deepcopy(optimizer.state_dict())
    for group in kept["param_groups"]:
        group["lr"] *= 0.5
    optimizer.load_state_dict(kept)
    return trained(model, optimizer)


def state_of_other_groups(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    kept = optimizer.state_dict()
    kept["param_groups"] = kept["param_groups"][:1]
    optimizer.load_state_dict(kept)


def state_hooks(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda one: seen.append("before state"))
    optimizer.register_state_dict_post_hook(lambda one, state: seen.append("after state"))
    optimizer.register_load_state_dict_pre_hook(lambda one, state: seen.append("before load"))
    optimizer.register_load_state_dict_post_hook(lambda one: seen.append("after load"))
    step(model, optimizer, IDS[0])
    optimizer.load_state_dict(optimizer.state_dict())
    return seen, trained(model, optimizer)


def step_hooks(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[Any] = []
    before = optimizer.register_step_pre_hook(lambda *_: seen.append(("before", weights_of(model))))
    after = optimizer.register_step_post_hook(lambda *_: seen.append(("after", weights_of(model))))
    step(model, optimizer, IDS[0])
    before.remove()
    after.remove()
    step(model, optimizer, IDS[1])
    return seen


def state_by_hand(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    for kept in optimizer.state.values():
        for value in kept.values():
            if isinstance(value, Tensor) and value.dim() > 0:
                value.zero_()
    return trained(model, optimizer)


def state_cleared(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    optimizer.state.clear()
    return trained(model, optimizer)


def group_added(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    step(model, optimizer, IDS[0])
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    return trained(model, optimizer), len(optimizer.param_groups)


def group_added_twice(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    optimizer.add_param_group({"params": list(model.items.parameters())})


def frozen_and_unfrozen(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen = [trained(model, optimizer)]
    for flag in (False, True):
        optimizer.zero_grad()
        model.items.weight.requires_grad_(flag)
        seen.append(trained(model, optimizer))
    return seen


def schedule(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    schedulers = [
        lr_scheduler.LambdaLR(optimizer, [lambda epoch: 0.9**epoch, lambda epoch: 1 / (1 + epoch)]),
        lr_scheduler.StepLR(optimizer, 2, 0.5),
    ]
    seen: list[Any] = []
    for ids in IDS * 2:
        seen.append((copied(step(model, optimizer, ids)), weights_of(model)))
        for one in schedulers:
            one.step()
        seen.append([group["lr"] for group in optimizer.param_groups])
    return seen


def schedule_by_loss(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    seen: list[Any] = []
    for ids in IDS * 2:
        loss = step(model, optimizer, ids)
        scheduler.step(loss)
        seen.append((copied(loss), weights_of(model), [group["lr"] for group in optimizer.param_groups]))
    return seen


def rate_as_a_tensor(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    rate = torch.tensor(0.1)
    for group in optimizer.param_groups:
        group["lr"] = rate
    seen = [trained(model, optimizer)]
    rate.mul_(0.1)
    return [*seen, trained(model, optimizer)]


def optimizer_copied(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    return copy.deepcopy(optimizer).state_dict()


def second_optimizer(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    trained(model, optimizer)
    own = other(model, optimizer)
    own.load_state_dict(optimizer.state_dict())
    return own.state_dict()


def maximized(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    for group in optimizer.param_groups:
        group["maximize"] = True
    return trained(model, optimizer)


def in_text(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    return repr(optimizer)


def clipped(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    seen: list[Any] = []
    for ids in IDS:
        backward(model, optimizer, ids)
        seen.append(copied(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
        optimizer.step()
        seen.append(weights_of(model))
        backward(model, optimizer, ids)
        nn.utils.clip_grad_value_(model.parameters(), 0.001)
        optimizer.step()
        seen.append(weights_of(model))
    return seen


def graph_kept_over_a_step(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    kept = model(IDS[0])
    step(model, optimizer, IDS[1])
    kept.backward()
    return weights_of(model)


def table_read_whole_over_a_step(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    kept = model.items.weight.square().sum()
    step(model, optimizer, IDS[1])
    kept.backward()
    return [copied(one.grad) for one in model.items.parameters()]


def table_changed_before_the_backward_pass(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    kept = model.items.weight.square().sum()
    with torch.no_grad():
        model.items.weight.mul_(2)
    kept.backward()
    return [copied(one.grad) for one in model.items.parameters()]


USES: list[Run] = [
    closure, no_closure, closure_without_gradients, options_of_groups, step_without_gradients,
    zeroed_gradients, accumulated_gradients, gradients_of_zeros, state, state_of_a_new_optimizer,
    state_loaded_back, state_through_a_file, state_goes_on_in_a_plain_copy,
    state_with_other_options, state_of_other_groups, state_hooks, step_hooks, state_by_hand,
    state_cleared, group_added, group_added_twice, frozen_and_unfrozen, schedule, schedule_by_loss,
    rate_as_a_tensor, optimizer_copied, second_optimizer, maximized, in_text, clipped,
    graph_kept_over_a_step, table_read_whole_over_a_step, table_changed_before_the_backward_pass,
]  # fmt: skip


def combined(given: Iterable[str]) -> list[tuple[Run, str]]:
    """Each use with each optimizer."""
    bases = list(given)
    return [(use, base) for use in USES for base in bases]


def words(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__.replace("_", " ")


@pytest.mark.parametrize(("use", "base"), combined(base for base in BASES if base != "SparseAdam"), ids=words)
def test_use_of_an_optimizer_is_equal_or_refused(use: Run, base: str) -> None:
    is_refused(BASES[base], use)


@pytest.mark.parametrize(("use", "base"), combined(["SGD", "nesterov", "Adagrad", "SparseAdam"]), ids=words)
def test_use_of_an_optimizer_with_sparse_gradients_is_equal_or_refused(use: Run, base: str) -> None:
    is_refused(BASES[base], use, partial(Net, sparse=True, frozen=base == "SparseAdam"))
