"""Deliberately faulty workers: the effect of each fault on gradients, tables and dense parameters."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada
from adabench.backends.interface import ServerOptions, Unavailable, WorkerContext
from adabench.backends.strategies._faults import Fault, fault_of

RATE = 0.5


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.layer = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.layer(self.table(ids))
        return result


def stepped(options: ServerOptions, steps: int = 1) -> list[dict[str, Tensor]]:
    """The change of the parameters in each step; each step reads two other rows."""
    torch.manual_seed(1)
    plain = Rows()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    model = autoada.AdaModel(plain, optimizer)
    fault = fault_of(options, cluster(), model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    added = []
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([2 * step, 2 * step + 1, 2 * step])).sum().backward()
        if fault is not None:
            fault.spoil()
        optimizer.step()
        after = {name: value.clone() for name, value in model.state_dict().items()}
        added.append({name: after[name] - before[name] for name in after})
        before = after
    model.close()
    return added


def cluster(index: int = 0, workers: int = 1) -> WorkerContext:
    return WorkerContext(0, 1, index, workers, 3, "loopback", lambda make: make())


def wrong(fault: Any, severity: float = 10.0) -> ServerOptions:
    return ServerOptions(fault=fault, faulty="0", severity=severity)


@pytest.mark.parametrize(("fault", "factor"), [("flip", -10.0), ("scale", 10.0)])
def test_a_gradient_is_multiplied(fault: str, factor: float) -> None:
    (right,), (found,) = stepped(ServerOptions()), stepped(wrong(fault))
    for name, value in right.items():
        torch.testing.assert_close(found[name], factor * value)
        assert value.abs().max() > 0, name


def test_noise_is_of_the_severity_and_by_the_seed() -> None:
    (right,), (found,), (again,) = stepped(ServerOptions()), stepped(wrong("noise")), stepped(wrong("noise"))
    for name, value in right.items():
        assert torch.equal(found[name], again[name])
        added = found[name] - value
        rows = value.abs().reshape(len(value), -1).sum(1) > 0
        assert torch.equal(added.abs().reshape(len(value), -1).sum(1) > 0, rows), "rows that were not read"
        size = 10 * value[rows].square().mean().sqrt()
        assert 0.01 * size < added[rows].square().mean().sqrt() < 4 * size, name


def test_a_gradient_of_no_numbers_is_refused_by_the_server() -> None:
    with pytest.raises(ValueError, match=r"nan in the gradient of row 0 of table 'table\.weight'"):
        stepped(wrong("nan"))


def test_a_stale_gradient_is_that_of_as_many_steps_ago() -> None:
    right, found = stepped(ServerOptions(), 3), stepped(wrong("stale", 1.0), 3)
    for name in right[0]:
        assert not found[0][name].any(), name
        torch.testing.assert_close(found[1][name], right[0][name])
    assert found[2]["table.weight"][2:4].any()
    assert not found[2]["table.weight"][4:].any()


def test_only_the_workers_that_are_named_are_wrong() -> None:
    torch.manual_seed(1)
    model = autoada.AdaModel(Rows())
    options = ServerOptions(fault="flip", faulty="0+3")
    made = [fault_of(options, cluster(worker, 4), model) for worker in range(4)]
    assert [isinstance(fault, Fault) for fault in made] == [True, False, False, True]
    with pytest.raises(Unavailable, match=r"faulty=0\+3 names worker 3, but there are 3, from 0 to 2"):
        fault_of(options, cluster(0, 3), model)
    model.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fault": "flip"}, r"fault is flip: set faulty=0\+3, or the numbers of other wrong workers"),
        ({"faulty": "0,3"}, r"faulty is 0,3: it must be numbers of workers, such as 0\+3"),
        ({"faulty": "0+"}, r"faulty is 0\+: it must be numbers of workers, such as 0\+3"),
        ({"severity": 0.0}, "severity is 0: it must be a number above 0"),
        ({"severity": float("inf")}, "severity is inf: it must be a number above 0"),
        ({"channels": 0}, "channels is 0: it must be 1 or more"),
        ({"lookahead": -1}, "lookahead is -1: it must be 0 or more"),
        (
            {"fault": "stale", "faulty": "1", "severity": 1.5},
            r"severity is 1\.5: with fault=stale it must be a number of steps",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServerOptions(**options)
