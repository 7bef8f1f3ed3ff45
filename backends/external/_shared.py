"""Common parts of the external systems: requirements, sessions, the process group, and a model's tables."""

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
from adabench.usecases.interface import UseCase, hashed_tables


def is_installed(package: str) -> bool:
    """Whether a package can be imported. Modules are ignored.

    An editable installation has this folder on the path, which contains modules with such names.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.submodule_search_locations is not None


def require_usecase(name: str, usecase: UseCase, wanted: str) -> None:
    """Raise `Unavailable` for any use case except the one that the backend can train."""
    if usecase.name != wanted:
        raise Unavailable(f"{name} trains only {wanted}, not {usecase.name}: use -u {wanted}")


def require_row_numbers(name: str, usecase: UseCase) -> None:
    """Raise `Unavailable` for tables with ids of any value, whose rows each process would number itself."""
    if hashed := sorted(hashed_tables(usecase)):
        raise Unavailable(f"{name} needs row numbers, but {hashed[0]} has ids: use keys=dense")


def require_plain_context(name: str, context: WorkerContext) -> None:
    """Raise `Unavailable` for features of the parameter server: worker threads, and links that it shapes."""
    if context.workers > 1:
        raise Unavailable(
            f"{name} has one worker per process, not {context.workers}: use --workers 1 and more --nodes"
        )
    if context.world_size > 1 and context.network not in {"loopback", "sockets"}:
        raise Unavailable(
            f"{name} has its own sockets, which the network {context.network!r} does not slow down: use "
            f"--network loopback, or namespaces:{context.network}"
        )


class PeerBackend:
    """A backend without the parameter server. Each external system derives its own class.

    Attributes
    ----------
    packages : tuple of str
        Packages that must be installed. The extra with the backend's name installs them.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    distributed: ClassVar[bool] = False
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        for package in self.packages:
            if not is_installed(package):
                raise Unavailable(f"{package} is not installed: pip install 'adabench[{self.name}]'")


class PeerSession:
    """A session without counters and shared objects. Each external system overrides some methods."""

    def synchronize(self) -> None:
        """Do nothing: there is one worker."""

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Do nothing: the owner of the process's objects closes them."""


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
    """The group of all node processes. The owner closes it. `backend` is one of torch.distributed."""

    def __init__(self, context: WorkerContext, backend: str = "gloo") -> None:
        if context.world_size > 1:
            dist.init_process_group(backend)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)

    def close(self) -> None:
        dist.destroy_process_group()


def data_parallel(model: nn.Module) -> nn.Module:
    """Return the model with gradients that are averaged over all processes.

    Buffers are not shared, because only one process evaluates and must not wait for the others. A model
    without parameters except its tables is returned unchanged.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    with warnings.catch_warnings():
        # Newer releases warn that the option was renamed, and still accept the old name.
        warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
        return DistributedDataParallel(model, broadcast_buffers=False)


def dense_optimizer(usecase: UseCase, model: nn.Module) -> torch.optim.Optimizer:
    """Return the use case's optimizer for the parameters of a model without its tables.

    Optimizers need a parameter. If there is none, the optimizer gets a number without a gradient.
    """
    left = list(model.parameters()) or [nn.Parameter(torch.zeros(1))]
    return usecase.optimizer(nn.ParameterList(left))


def replace_tables(model: nn.Module, make: Callable[[str, nn.Embedding], nn.Module]) -> None:
    """Replace every table with a sparse gradient by ``make(qualified name of the weight, table)``.

    Raises
    ------
    Unavailable
        If a table does more than look up rows.
    """
    for path, module in list(model.named_modules()):
        if not isinstance(module, nn.Embedding) or not module.sparse:
            continue
        for option in ("padding_idx", "max_norm", "scale_grad_by_freq"):
            if getattr(module, option) not in (None, False):
                raise Unavailable(f"table {path} uses {option}: only tables without it can be distributed")
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make(f"{path}.weight", module))
