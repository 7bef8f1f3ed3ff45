"""Takes over the state of a plain training, makes a step, and gives the state back.

The nodes step together. Only rank 0 has the state of the plain training, and only rank 0 has gradients. The
mean of the gradients of two nodes is then half of its gradient.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import adaps
import autoada
from tests.integration.autoada_ranks.task import FIELDS, ROWS, as_lists, clicks, settle
from tests.integration.guarantees.common import RANK

STEPS = 4
OPTIMIZERS: dict[str, Any] = {
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
POLICY = """
format = 1
name = "synchronous"
[synchronization]
every = 1
[[rule]]
parameters = "*"
technique = "{}"
"""


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int, scale: float = 1.0) -> None:
    """Every row has a gradient in every step, so that momentum moves no other row."""
    for _ in range(steps):
        optimizer.zero_grad()
        scores: Tensor = model(torch.arange(ROWS).view(-1, FIELDS))
        (scale * (scores - 1).square().mean()).backward()
        optimizer.step()


def trained(name: str, seed: int, steps: int) -> tuple[Any, torch.optim.Optimizer]:
    """A plain model and its optimizer after some steps."""
    model = clicks(seed)
    optimizer: torch.optim.Optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, steps)
    return model, optimizer


def numbers(optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """The state of all parameters."""
    state = optimizer.state_dict()["state"]
    return as_lists(
        {
            f"{number}.{name}": torch.as_tensor(value)
            for number in state
            for name, value in state[number].items()
        }
    )


def moved(name: str, technique: str) -> dict[str, Any]:
    """The state after each part of the training, as this rank reads it."""
    plain, optimizer = trained(name, seed=RANK, steps=STEPS if RANK == 0 else 0)
    model = autoada.AdaModel(plain, optimizer, policy=adaps.Policy.parse(POLICY.format(technique)))
    result = {"taken over": numbers(optimizer)}
    settle(model)
    if RANK == 0:
        train(model, optimizer, 1)
    else:
        optimizer.step()
    result["trained"] = numbers(optimizer)
    result["weights"] = as_lists(model.state_dict())
    settle(model)
    optimizer.load_state_dict(trained(name, seed=7, steps=2 if RANK == 0 else 1)[1].state_dict())
    # a rank may read alone, as programs that save do
    result["loaded"] = numbers(optimizer) if RANK == 0 else {}
    model.worker.barrier()
    model.close()
    return result


def unfrozen(model: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]) -> dict[str, Any]:
    """The weights after a table and a layer, which no optimizer had, come to the optimizer in turn."""
    step(model)
    for number, part in enumerate((model.deep, model.mlp[0])):
        optimizer.add_param_group(
            {"params": list(part.requires_grad_(True).parameters()), "lr": 0.1 + number}
        )
        step(model)
    return as_lists(model.state_dict())


def partly_frozen() -> tuple[Any, torch.optim.Optimizer]:
    """A model of which the optimizer has the last layer and the small table."""
    model = clicks(seed=0)
    model.deep.requires_grad_(False)
    model.mlp[0].requires_grad_(False)
    trained = [*model.wide.parameters(), *model.mlp[2].parameters()]
    return model, torch.optim.SGD(trained, lr=0.05, momentum=0.9)


def unfrozen_on_rank(technique: str) -> dict[str, Any]:
    """The result of `unfrozen` in the server."""
    plain, optimizer = partly_frozen()
    model = autoada.AdaModel(plain, optimizer, policy=adaps.Policy.parse(POLICY.format(technique)))

    def step(model: Any) -> None:
        if RANK == 0:
            train(model, optimizer, 1)
        else:
            optimizer.step()

    weights = unfrozen(model, optimizer, step)
    settle(model)
    model.close()
    return weights


def on_rank(technique: str) -> dict[str, Any]:
    # it reports how Adam treats idle rows
    logging.getLogger("autoada.optimizer.rules").setLevel(logging.ERROR)
    states = {name: moved(name, technique) for name in OPTIMIZERS}
    return {"unfrozen": unfrozen_on_rank(technique), **states}
