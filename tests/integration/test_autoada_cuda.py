"""A model on a CUDA device trains as plain PyTorch does there, on one node and on two that share it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoada
from tests.conftest import Launch
from tests.integration.autoada_ranks.task import settle
from tests.integration.guarantees.common import RANK

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

ROWS, WIDTH = 500, 16
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.001),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)
        self.bags = nn.EmbeddingBag(ROWS, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.out = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.norm(self.items(ids).sum(1) + self.bags(ids)))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, ROWS, (1920, 3), generator=generator)
    return TensorDataset(ids, torch.rand(1920, 1, generator=generator))


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Net().cuda()


def make_wrapped(name: str) -> tuple[autoada.AdaModel, torch.optim.Optimizer]:
    net = make()
    optimizer = OPTIMIZERS[name](net.parameters())
    return autoada.AdaModel(net, optimizer), optimizer


def train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    scaler: torch.amp.GradScaler | None = None,
    dtype: torch.dtype | None = None,
) -> list[float]:
    losses = []
    for ids, label in loader:
        with torch.autocast("cuda", dtype) if dtype else nullcontext():
            loss = F.mse_loss(model(ids.cuda(non_blocking=True)), label.cuda(non_blocking=True))
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("lookahead", [3, "auto"])
def test_losses_and_parameters_are_those_of_plain_pytorch(name: str, lookahead: Any) -> None:
    loader = DataLoader(data(), batch_size=64, pin_memory=True)
    expected = make()
    plain = train(expected, OPTIMIZERS[name](expected.parameters()), loader)
    model, optimizer = make_wrapped(name)
    assert train(model, optimizer, autoada.AdaDataLoader(loader, lookahead)) == pytest.approx(plain, abs=1e-5)
    for key, values in model.state_dict().items():
        torch.testing.assert_close(values.cuda(), expected.state_dict()[key], rtol=1e-4, atol=1e-5)
    batch = data()[:8][0].cuda()
    torch.testing.assert_close(model.eval()(batch), expected.eval()(batch), rtol=1e-4, atol=1e-5)
    assert model(batch).device.type == "cuda"
    model.close()


def test_workers_of_the_loader_and_half_precision_by_autocast() -> None:
    loader = DataLoader(data(), batch_size=64, pin_memory=True, num_workers=2)
    expected = make()
    plain = train(expected, OPTIMIZERS["SGD"](expected.parameters()), loader, dtype=torch.bfloat16)
    model, optimizer = make_wrapped("SGD")
    losses = train(model, optimizer, autoada.AdaDataLoader(loader, 3), dtype=torch.bfloat16)
    assert losses == pytest.approx(plain, rel=1e-2)
    model.close()


def test_scaled_losses_train_or_are_refused_in_a_sentence() -> None:
    loader = DataLoader(data(), batch_size=64)
    expected = make()
    plain = train(
        expected,
        OPTIMIZERS["SGD"](expected.parameters()),
        loader,
        torch.amp.GradScaler("cuda"),
        torch.float16,
    )
    model, optimizer = make_wrapped("SGD")
    scaler = torch.amp.GradScaler("cuda")
    losses = train(model, optimizer, autoada.AdaDataLoader(loader, 3), scaler, torch.float16)
    assert losses == pytest.approx(plain, rel=1e-2)
    model.close()


def test_a_checkpoint_of_a_model_on_the_device_is_restored_there(tmp_path: Path) -> None:
    loader = DataLoader(data(), batch_size=64)
    model, optimizer = make_wrapped("Adagrad")
    ahead = autoada.AdaDataLoader(loader, 3)
    train(model, optimizer, ahead)
    before = copy.deepcopy(model.state_dict())
    model.checkpoint(tmp_path / "kept", ahead)
    train(model, optimizer, ahead)
    model.restore(tmp_path / "kept", ahead)
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, before[name], rtol=0, atol=0)
    model.close()


def test_a_compiled_model_trains_as_the_plain_one() -> None:
    loader = DataLoader(data(), batch_size=64)
    expected = make()
    plain = train(expected, OPTIMIZERS["SGD"](expected.parameters()), loader)
    model, optimizer = make_wrapped("SGD")
    losses = train(torch.compile(model), optimizer, autoada.AdaDataLoader(loader, 3))
    assert losses == pytest.approx(plain, abs=1e-4)
    model.close()


def sharing_a_device() -> dict[str, Any]:
    """A node of two that share a CUDA device; each trains half of the data."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Flatten(), nn.Linear(3 * WIDTH, 1)).cuda()
    true = torch.randn(ROWS, device="cuda")
    ids = torch.randint(0, ROWS, (6400, 3))
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
    model = autoada.AdaModel(net, optimizer)
    losses = []
    for _ in range(3):
        total = 0.0
        mine: Any = ids[RANK::2].contiguous()
        for batch in autoada.AdaDataLoader(DataLoader(mine, batch_size=64, pin_memory=True)):
            on_device = batch.cuda(non_blocking=True)
            loss = F.mse_loss(model(on_device).squeeze(1), true[on_device].sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    settle(model)
    with torch.no_grad():
        final = model.eval()(torch.arange(60, device="cuda").view(-1, 3)).flatten().tolist()
    stats = model.node.stats()
    pulled = sum(stats[f"pulled_{where}"] for where in ("local", "replica", "remote"))
    model.worker.barrier()
    model.close()
    local = 1 - stats["pulled_remote"] / pulled
    return {"losses": losses, "final": final, "local": local, "intents": stats["intents"]}


def test_two_nodes_that_share_a_device_have_one_model(launch: Launch) -> None:
    reports = launch(sharing_a_device, 2)
    first, second = reports
    assert first["final"] == pytest.approx(second["final"], abs=1e-5)
    for report in reports:
        assert report["losses"][-1] < 0.7 * report["losses"][0]
        assert report["local"] > 0.95
        assert report["intents"] > 0
