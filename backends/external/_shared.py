"""Shared parts of the peer systems: where they run, sessions, the process group, and a model's tables."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import Unavailable, WorkerContext
from adabench.usecases.interface import UseCase


def is_installed(package: str) -> bool:
    """Whether a package can be imported.

    A module does not count: an editable install has this folder, with files of such names, on the path.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.submodule_search_locations is not None


def require_usecase(name: str, usecase: UseCase, wanted: str) -> None:
    """Raise `Unavailable` for any use case but the one that the backend can train."""
    if usecase.name != wanted:
        raise Unavailable(f"{name} trains {wanted} alone, not {usecase.name}: say -u {wanted}")


def require_plain_context(name: str, context: WorkerContext) -> None:
    """Raise `Unavailable` for what only the parameter server has: worker threads, and links it shapes."""
    if context.workers > 1:
        raise Unavailable(
            f"{name} has one worker per process, not {context.workers}: say --workers 1 and more --nodes"
        )
    if context.world_size > 1 and context.network not in {"loopback", "sockets"}:
        raise Unavailable(
            f"{name} has sockets of its own, which the network {context.network!r} does not slow down: "
            f"say --network loopback, or namespaces:{context.network}"
        )


class PeerBackend:
    """A backend without the parameter server; a peer system derives its own class.

    Attributes
    ----------
    packages : tuple of str
        Packages that must be installed.
    command : str
        The command that installs them.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    distributed: ClassVar[bool] = False
    packages: ClassVar[tuple[str, ...]] = ()
    command: ClassVar[str] = "make peers"

    def __init__(self) -> None:
        for package in self.packages:
            if not is_installed(package):
                raise Unavailable(f"{package} is not installed: say '{self.command}'")


class PeerSession:
    """A session without counters that shares no objects; a peer system overrides what it has."""

    def synchronize(self) -> None:
        """Do nothing: there is one worker."""

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Do nothing: objects of the process are closed by their owner."""


class PlainSession(PeerSession):
    """Trains with plain PyTorch and the use case's own optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self._optimizer = optimizer

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class ProcessGroup:
    """The gloo group of all node processes; the owner closes it."""

    def __init__(self, context: WorkerContext) -> None:
        if context.world_size > 1:
            dist.init_process_group("gloo")
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def close(self) -> None:
        dist.destroy_process_group()


def data_parallel(model: nn.Module) -> nn.Module:
    """The model with gradients that are averaged over all processes.

    Buffers are not shared: only one process evaluates, and must not wait for the others. A model without
    parameters apart from its tables is returned as it is.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    with warnings.catch_warnings():
        # Newer releases warn of the option's new name, and still accept the old one.
        warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def dense_optimizer(usecase: UseCase, model: nn.Module) -> torch.optim.Optimizer:
    """The use case's optimizer for the parameters of a model without its tables.

    Optimizers need a parameter; if there is none, this one has a number that no gradient reaches.
    """
    left = list(model.parameters()) or [nn.Parameter(torch.zeros(1))]
    return usecase.optimizer(nn.ParameterList(left))


def replace_tables(model: nn.Module, make: Callable[[str, nn.Embedding], nn.Module]) -> None:
    """Put ``make(qualified name of the weight, table)`` in the place of every table with a sparse gradient.

    Raises
    ------
    Unavailable
        For a table that does more than look rows up.
    """
    for path, module in list(model.named_modules()):
        if not isinstance(module, nn.Embedding) or not module.sparse:
            continue
        for option in ("padding_idx", "max_norm", "scale_grad_by_freq"):
            if getattr(module, option) not in (None, False):
                raise Unavailable(f"table {path} uses {option}: only tables without it can be shared out")
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make(f"{path}.weight", module))
