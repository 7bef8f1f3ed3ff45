"""Cells of a notebook: interrupted, run again, and with several models in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.autoada.small_net import Net, batches_of

ROWS = 30
STEPS = 12


IMPORTS = "import torch, autoada as aa"
WRAP = """
torch.manual_seed(0)
net = Net(rows)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model = aa.AdaModel(net, optimizer)
loader = aa.AdaDataLoader(batches, lookahead)
"""
TRAIN = """
losses = []
for ids, label in loader:
    loss = (model(ids) - label).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
INTERRUPTED = TRAIN.replace(
    "    loss.backward()", "    if len(losses) == 3: raise KeyboardInterrupt\n    loss.backward()"
)


class Kernel:
    """Runs cells in one namespace and keeps their exceptions, as IPython does."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.raised: list[BaseException] = []

    def run(self, cell: str) -> None:
        try:
            exec(cell, self.names)
        except BaseException as error:
            self.raised.append(error)  # with its frames: the loop that was interrupted is not closed
            raise


def batches() -> list[tuple[Tensor, Tensor]]:
    return batches_of(ROWS, STEPS, samples=5, seed=4)


def plain(cells: int, interrupted: bool = False) -> list[float]:
    """Losses of plain PyTorch in the last of several runs of a cell, optionally after an interrupted run."""
    torch.manual_seed(0)
    net = Net(ROWS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kernel = Kernel(model=net, optimizer=optimizer, loader=batches())
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            kernel.run(INTERRUPTED)
    for _ in range(cells):
        kernel.run(TRAIN)
    losses: list[float] = kernel.names["losses"]
    return losses


@pytest.mark.parametrize("lookahead", ["auto", 2])
def test_a_cell_that_was_interrupted_runs_again(lookahead: Any) -> None:
    kernel = Kernel(Net=Net, rows=ROWS, batches=batches(), lookahead=lookahead)
    for cell in (IMPORTS, WRAP):
        kernel.run(cell)
    with pytest.raises(KeyboardInterrupt):
        kernel.run(INTERRUPTED)
    for cells in (1, 2):
        kernel.run(TRAIN)
        assert kernel.names["losses"] == pytest.approx(plain(cells, interrupted=True), abs=1e-5)
    assert kernel.names["model"].node.stats()["intents_late"] == 0
    kernel.run("model.close()")


@pytest.mark.parametrize("lookahead", ["auto", 2])
def test_a_cell_that_wraps_runs_again_beside_the_model_before(lookahead: Any) -> None:
    kernel = Kernel(Net=Net, rows=ROWS, batches=batches(), lookahead=lookahead)
    for cell in (IMPORTS, WRAP, TRAIN, "before = model", WRAP, TRAIN):
        kernel.run(cell)
    assert kernel.names["losses"] == pytest.approx(plain(1), abs=1e-5)
    assert kernel.names["before"].worker.current_clock == STEPS
    assert kernel.names["model"].worker.current_clock == STEPS
    kernel.run("model, loader = before, aa.AdaDataLoader(batches, lookahead)")
    kernel.run("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    with pytest.raises(RuntimeError, match="was not passed to AdaModel, but its parameters are in the"):
        kernel.run(TRAIN)
