"""Gradients of all workers, combined by rules of a policy: each as an independent reference has it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adaps
import autoada
from adaps.policy import Aggregation, DataSharing, PolicyError, Rule, Synchronization
from autoada.model.node_setup import check_policy
from tests.unit.autoada.aggregation_reference import Array, Present, combine

WORKERS = 5
ROWS = 23
STEPS = 4
RATE = 0.5
WRONG = 50.0
RULES = [
    Aggregation("median"),
    Aggregation("trimmed_mean", faulty=1),
    Aggregation("trimmed_mean", faulty=2),
    Aggregation("krum", faulty=1),
    Aggregation("krum", faulty=1, keep=3),
    Aggregation("suspicion", faulty=1),
]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 3)
        self.layer = nn.Linear(3, 1)
        self.sometimes = nn.Linear(3, 1)

    def forward(self, ids: Tensor, wanted: bool) -> Tensor:
        read = self.table(ids).sum(1)
        result: Tensor = self.layer(read).tanh()
        return result + self.sometimes(read) if wanted else result


def small() -> Small:
    torch.manual_seed(4)
    return Small()


def loss_of(model: nn.Module, step: int, worker: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + worker)
    ids = torch.randint(0, ROWS, (6, 2), generator=generator)
    wanted = (step + worker) % 3 == 0
    return F.mse_loss(model(ids, wanted), torch.randn(6, 1, generator=generator))


def in_threads(run: Callable[[int], Any], workers: int = WORKERS) -> list[Any]:
    results: list[Any] = [None] * workers

    def guarded(worker: int) -> None:
        try:
            results[worker] = run(worker)
        except Exception as error:
            results[worker] = error

    threads = [threading.Thread(target=guarded, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def trained(
    policy: adaps.Policy, spoil: Callable[[Small, int, int], None] = lambda *_: None
) -> dict[str, Tensor]:
    """The state after some steps of five workers of one node."""
    models = [small() for _ in range(WORKERS)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]
    node = autoada.create_node(models[0], optimizers[0], workers=WORKERS, policy=policy)

    def train(worker: int) -> dict[str, Tensor]:
        model = autoada.AdaModel(models[worker], optimizers[worker], node=node, worker=worker)
        for step in range(STEPS):
            optimizers[worker].zero_grad()
            loss_of(model, step, worker).backward()
            spoil(models[worker], step, worker)
            optimizers[worker].step()
        state: dict[str, Tensor] = model.state_dict()
        model.worker.barrier()
        model.close()
        return state

    states = in_threads(train)
    node.close()
    for state in states:
        if isinstance(state, Exception):
            raise state
        for name, value in state.items():
            assert torch.equal(value, states[0][name]), name
    first: dict[str, Tensor] = states[0]
    return first


def policy_of(aggregation: Aggregation) -> adaps.Policy:
    return adaps.Policy("robust", [Rule("*")], synchronization=Synchronization(1, aggregation))


def reference(
    aggregation: Aggregation, left_out: Collection[int] = (), wrong: int | None = None
) -> dict[str, Array]:
    """One process that has all workers' gradients, as dense arrays in NumPy."""
    model = small()
    names = [name for name, _ in model.named_parameters()]
    counting = [worker for worker in range(WORKERS) if worker not in left_out]
    for step in range(STEPS):
        gradients: list[dict[str, Array]] = []
        present: list[dict[str, Present]] = []
        for worker in counting:
            model.zero_grad()
            loss_of(model, step, worker).backward()
            parameters = dict(model.named_parameters())
            given = {
                name: np.zeros(parameters[name].shape)
                if (gradient := parameters[name].grad) is None
                else (-WRONG if worker == wrong else 1) * gradient.double().numpy()
                for name in names
            }
            read = {name: np.full(given[name].shape, parameters[name].grad is not None) for name in names}
            read["table.weight"] = np.repeat((given["table.weight"] != 0).any(1)[:, None], 3, 1)
            gradients.append(given)
            present.append(read)
        combined = combine(aggregation, gradients, present, len(left_out))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(RATE * torch.from_numpy(combined[name]).float())
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def not_finite(model: Small, step: int, worker: int) -> None:
    if worker == 2:
        gradient = model.table.weight.grad if step % 2 else model.layer.weight.grad
        assert gradient is not None
        gradient[0, 0] = (torch.nan, torch.inf, -torch.inf)[step % 3]


def wrong(model: Small, step: int, worker: int) -> None:
    for parameter in model.parameters():
        if worker == 3 and parameter.grad is not None:
            parameter.grad.mul_(-WRONG)


@pytest.mark.parametrize(
    ("spoil", "known", "absolute", "relative"),
    [
        (lambda *_: None, {}, 2e-6, None),
        (not_finite, {"left_out": {2}}, 2e-6, None),
        (wrong, {"wrong": 3}, 2e-5, 1e-4),
    ],
    ids=["all are right", "one is not finite", "one is wrong"],
)
@pytest.mark.parametrize("aggregation", RULES, ids=Aggregation.text)
def test_steps_of_all_workers_are_those_of_the_reference(
    aggregation: Aggregation, spoil: Any, known: dict[str, Any], absolute: float, relative: float | None
) -> None:
    found, expected = trained(policy_of(aggregation), spoil), reference(aggregation, **known)
    for name, value in expected.items():
        assert found[name].numpy() == pytest.approx(value, abs=absolute, rel=relative), name


def test_the_mean_is_what_it_is_without_a_rule() -> None:
    plain = adaps.Policy("mean", [Rule("*")], synchronization=Synchronization(1))
    assert policy_of(Aggregation()).text().replace("robust", "mean") == plain.text()
    found, expected = trained(policy_of(Aggregation())), reference(Aggregation("trimmed_mean", faulty=1), ())
    assert any(found[name].numpy() != pytest.approx(value, abs=1e-4) for name, value in expected.items())


def test_no_finite_gradient_at_all_is_an_error() -> None:
    def spoil(model: Small, step: int, worker: int) -> None:
        assert model.layer.weight.grad is not None
        model.layer.weight.grad.fill_(torch.nan)

    with pytest.raises(ArithmeticError, match="no worker has a finite gradient: training diverged"):
        trained(policy_of(Aggregation("median")), spoil)


def test_who_steps_after_another_has_closed_its_model_is_told() -> None:
    models = [small() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]
    node = autoada.create_node(
        models[0], optimizers[0], workers=3, policy=policy_of(Aggregation("trimmed_mean", faulty=1))
    )

    def train(worker: int) -> None:
        model = autoada.AdaModel(models[worker], optimizers[worker], node=node, worker=worker)
        try:
            for step in range(2 if worker == 1 else 3):
                optimizers[worker].zero_grad()
                loss_of(model, step, worker).backward()
                optimizers[worker].step()
        finally:
            model.close()

    first, left, last = in_threads(train, 3)
    node.close()
    assert left is None
    for told in (first, last):
        assert isinstance(told, adaps.AdapsError)
        assert str(told) == (
            "worker 1 has closed its model before the others: under aggregation 'trimmed_mean' all workers "
            "make as many steps"
        )


@pytest.mark.parametrize(
    ("aggregation", "nodes", "workers", "said"),
    [
        (
            Aggregation("krum", faulty=1),
            2,
            2,
            "'krum' with faulty = 1 needs more than 4 workers, and there are 4",
        ),
        (
            Aggregation("trimmed_mean", faulty=2),
            1,
            1,
            "'trimmed_mean' with faulty = 2 needs more than 4 workers, and there is 1",
        ),
        (
            Aggregation("suspicion", faulty=2),
            4,
            1,
            "'suspicion' with faulty = 2 needs more than 4 workers, and there are 4",
        ),
        (
            Aggregation("krum", faulty=1, keep=5),
            5,
            1,
            "keep is 5; of 5 workers, 1 of them faulty, it can be at most 4",
        ),
    ],
)
def test_too_few_workers_are_refused(aggregation: Aggregation, nodes: int, workers: int, said: str) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with pytest.raises(PolicyError) as raised:
        check_policy(model, optimizer, policy_of(aggregation), nodes, workers=workers)
    assert str(raised.value) == f"[synchronization]: aggregation {said}"


def test_what_cannot_be_combined_is_refused() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    median = policy_of(Aggregation("median"))
    uneven = dataclasses.replace(median, data=DataSharing([0.25, 0.75]))
    with pytest.raises(
        PolicyError, match=r"'median' gives every worker the same weight, but \[data\] shares = "
    ):
        check_policy(model, optimizer, uneven, 2)
    with pytest.raises(PolicyError, match="'median' has sockets of its own, which the network 'lan'"):
        check_policy(model, optimizer, median, 2, network="lan")
    with pytest.raises(PolicyError, match=r"'median' has sockets .* whose frames have no MAC"):
        check_policy(model, optimizer, median, 2, frame_mac=True)
    check_policy(model, optimizer, median, 1, network="lan", frame_mac=True)
    own = [
        torch.optim.SGD(model.table.parameters(), lr=RATE),
        torch.optim.NAdam([*model.layer.parameters(), *model.sometimes.parameters()]),
    ]
    with pytest.raises(PolicyError, match=r"'median' is not executed for layer\.weight, whose own"):
        check_policy(model, own, median, 2)
    reduced = dataclasses.replace(median, rules=[Rule("dense", technique="allreduce"), Rule("*")])
    check_policy(model, own, reduced, 2)
