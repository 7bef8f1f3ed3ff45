"""A third party's plugins for tests: a tiny use case that can misbehave, and a backend over gloo."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adabench.backends.interface import Options, Unavailable, WorkerContext
from adabench.usecases.interface import DataError, Loaders, Params

Batch = tuple[Tensor, Tensor]


class FakeParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mishap` happens on rank 1 (or the only one) in the second step."""

    epochs: int = 2
    dim: int = 4
    mishap: Literal["", "raise", "hang", "nan", "orphan", "memory", "address-space", "cgroup"] = ""
    cgroup: str = ""
    note: str = ""
    widths: tuple[int, ...] = (1,)
    big: bool = False


class FakeLine:
    """Linear regression; `rmse` falls."""

    name: ClassVar[str] = "fake-line"
    Params: ClassVar[type[Params]] = FakeParams
    metric: ClassVar[str] = "rmse"
    maximize: ClassVar[bool] = False
    tolerance: ClassVar[float] = 0.05

    def __init__(self, params: FakeParams, data: Path | None, seed: int) -> None:
        if data is not None and not data.exists():
            raise DataError(f"there is no data file {data}")
        self.params = params
        self.seed = seed
        self.steps = 0

    @property
    def fingerprint(self) -> str:
        return "sha256:fake"

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Linear(self.params.dim, 1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loaders(self, rank: int, world: int) -> Loaders:
        self.rank = rank if world > 1 else 1
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(8 * world, 16, self.params.dim, generator=generator)
        batches = [(one, one.sum(1, keepdim=True)) for one in x]
        return Loaders(batches[rank::world], batches[:2], batches[2:4])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.steps += 1
        if self.params.mishap and self.rank == 1 and self.steps == 2:
            self._misbehave()
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        if self.params.mishap == "nan":
            return {"rmse": float("nan")}
        with torch.no_grad():
            errors = [float(nn.functional.mse_loss(model(x), y)) for x, y in loader]
        return {"rmse": (sum(errors) / len(errors)) ** 0.5}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        return {"no.weight": torch.zeros(1, dtype=torch.int64)}

    def samples(self, batch: Batch) -> int:
        return len(batch[0])

    def _misbehave(self) -> None:
        if self.params.mishap == "raise":
            raise RuntimeError("the second step\nwent wrong")
        if self.params.mishap == "memory":
            raise MemoryError("nothing left")
        if self.params.mishap == "address-space":
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
            torch.ones(1 << 40)
        if self.params.mishap == "cgroup":
            (Path(self.params.cgroup) / "cgroup.procs").write_text(f"{os.getpid()}")
            torch.ones(1 << 27)
        if self.params.mishap == "orphan":
            # A child in a session of its own outlives its parent unless the harness finds and ends it.
            child = "import time; time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.params.mishap == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("hanging", flush=True)
            threading.Event().wait()


class FakeOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lookahead: int = 0
    timing: bool = True


class FakeGloo:
    """Averages gradients among node processes."""

    name: ClassVar[str] = "fake-gloo"
    Options: ClassVar[type[Options]] = FakeOptions
    distributed: ClassVar[bool] = True

    def open(self, usecase: FakeLine, cluster: WorkerContext, options: FakeOptions) -> FakeSession:
        if cluster.world_size > 2:
            raise Unavailable(f"fake-gloo works on at most 2 nodes, not on {cluster.world_size}")
        group = cluster.per_process(_Group)
        return FakeSession(usecase, cluster, group)


class _Group:
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.closed = False

    def close(self) -> None:
        dist.destroy_process_group()
        self.closed = True


class FakeSession:
    def __init__(self, usecase: FakeLine, cluster: WorkerContext, group: _Group) -> None:
        self.model = usecase.model()
        self._optimizer = usecase.optimizer(self.model)
        self._cluster = cluster
        self._group = group
        self._trained = False

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        return iter(loader)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self._optimizer.step()
        self._trained = True

    def synchronize(self) -> None:
        dist.barrier()

    def counters(self) -> dict[str, float]:
        if not self._trained:
            return {}
        return {
            "pulled_local": 3.0,
            "pulled_remote": 1.0,
            "bytes_sent": 10.0 * (1 + self._cluster.rank),
            "network_is_lan": float(os.environ["ADAPS_NETWORK"] == "lan"),
        }

    def close(self) -> None:
        """The group is closed by its owner."""


class FakeAbsent(FakeGloo):
    """A peer whose package is not installed."""

    name: ClassVar[str] = "fake-absent"

    def __init__(self) -> None:
        raise Unavailable("the package no_such_package is not installed")
