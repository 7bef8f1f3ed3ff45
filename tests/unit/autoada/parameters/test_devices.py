"""A model on an accelerator: which data are transferred, and in which order, on a simulated device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from autoada.parameters import dense_buffer, layout
from autoada.parameters.server_access import Transfer
from autoada.prediction.argument_recording import ArgumentRecorder
from tests.plain_and_wrapped import train as steps

ROWS = 20


class Apart(Transfer):
    """The CPU as a device with separate memory.

    Sent host memory is overwritten at once, and nothing arrives in host memory before it was waited for.
    """

    made: Apart

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.direct = False
        self.sent = 0
        self._late: list[tuple[Tensor, Tensor]] = []
        Apart.made = self

    def host_array(self, *shape: int) -> Tensor:
        return torch.full(shape, math.nan)

    def to_device(self, host: Tensor) -> Tensor:
        values = host.clone()
        host.fill_(math.nan)
        self.sent += values.numel()
        return values

    def start_to_host(self, values: Tensor) -> Tensor:
        host = self.host_array(*values.shape)
        self._late.append((host, values.clone()))
        return host

    def finish(self) -> None:
        for host, values in self._late:
            host.copy_(values)
        self._late.clear()


class Hollow(Transfer):
    """The meta device, which complains as others do when an operation mixes devices; gradients are 0."""

    def host_array(self, *shape: int) -> Tensor:
        return torch.empty(shape)

    def start_to_host(self, values: Tensor) -> Tensor:
        assert values.is_meta
        return torch.zeros(values.shape)

    def finish(self) -> None:
        pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4, max_norm=1.0)
        self.bags = nn.EmbeddingBag(ROWS, 4)
        self.kinds = nn.Embedding(3, 4)
        self.unused = nn.Linear(2, 2)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Any:
        x = self.items(ids).sum(1) + self.bags(ids) + self.bags.weight[ids[:, 0]]
        return self.out(x @ self.kinds.weight.T @ self.kinds.weight)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, ROWS, (8, 3), generator=generator), torch.rand(8, 1, generator=generator))
        for _ in range(count)
    ]


def train(wrapped: bool, ahead: bool = False) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model: Any = Net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loader: Any = batches(30)
    if wrapped:
        model = autoada.AdaModel(model, optimizer)
    if ahead:
        loader = autoada.AdaDataLoader(loader, 3)
    return steps(model, optimizer, loader, lambda model, batch: F.mse_loss(model(batch[0]), batch[1])), model


@pytest.mark.parametrize("ahead", [False, True])
def test_rows_and_gradients_go_through_host_memory_in_the_right_order(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    monkeypatch.setattr("autoada.model.wrapper.Transfer", Apart)
    plain, expected = train(wrapped=False)
    losses, model = train(wrapped=True, ahead=ahead)
    assert losses == pytest.approx(plain, abs=1e-5, rel=0)
    state = model.state_dict()
    for name, values in expected.state_dict().items():
        torch.testing.assert_close(state[name], values, rtol=0, atol=1e-5)
    assert Apart.made.sent > 30 * (3 * 4 + 4 + 1)  # at least the small table and the dense parameters
    model.load_state_dict(expected.state_dict())
    ids = batches(1)[0][0]
    torch.testing.assert_close(model.eval()(ids), expected.eval()(ids), rtol=0, atol=1e-6)
    model.close()


def test_everything_that_forward_meets_is_on_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoada.model.wrapper.Transfer", Hollow)
    monkeypatch.setattr(layout, "DEVICES", ("meta",))
    monkeypatch.setattr(dense_buffer.DenseParameters, "keep_changes", lambda self: None)  # compares values
    net = Net()
    net.unused.to("meta")
    net.out.to("meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    net.items.max_norm = None  # compares values
    model = autoada.AdaModel(net, optimizer)
    start = model.state_dict()["items.weight"]
    for ids, _ in batches(3):
        assert model.items.weight.device == torch.device("meta")
        output = model(ids)
        assert output.device == torch.device("meta")
    assert torch.equal(model.state_dict()["items.weight"], start)
    model.close()


def test_parameters_on_several_devices_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "DEVICES", ("cpu", "meta"))
    net = Net()
    net.out.to("meta")
    with pytest.raises(ValueError, match=r"'unused\.weight' is on cpu and 'out\.weight' on meta"):
        autoada.AdaModel(net)


def test_moves_of_the_loop_are_left_out_where_row_ids_are_found() -> None:
    batch = {"ids": torch.arange(6).int(), "label": torch.rand(6)}
    recording = ArgumentRecorder(batch)
    recording.start()
    ids = batch["ids"].to("meta").to(torch.int64)
    shifted = ids + torch.arange(6, device="meta")
    also = batch["ids"].to("meta", torch.int16)
    recording.stop()
    recorded = recording.arguments((shifted,), {"also": also})
    other = {"ids": torch.arange(6, 12).int(), "label": torch.rand(6)}
    args, kwargs = recorded(other)
    assert torch.equal(args[0], other["ids"] + torch.arange(6))
    assert args[0].dtype is torch.int64
    assert torch.equal(kwargs["also"], other["ids"].short())
    assert torch.equal(other["ids"], torch.arange(6, 12).int())
