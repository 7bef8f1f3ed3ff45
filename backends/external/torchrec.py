"""TorchRec: each feature's table is stored in one process, which updates it in the backward pass.

Ids and rows are exchanged by all-to-all over gloo, the rows' optimizer is fused into the backward pass, and
the dense layers use DistributedDataParallel. This is TorchRec's table-wise sharding. If a use case does not
define the features of a table, the table has one feature.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding

from adabench.backends.external._shared import (
    PeerBackend,
    PlainSession,
    ProcessGroup,
    dense_optimizer,
    replace_tables,
    require_plain_context,
    require_row_numbers,
)
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import Unavailable, WorkerContext
from adabench.usecases.interface import Featured, UseCase

DONE, GATHER = 0, 1


class TorchRec(PeerBackend):
    name = "torchrec"
    distributed = True
    packages = ("torchrec", "fbgemm_gpu")

    def open(self, usecase: UseCase, context: WorkerContext, options: BackendOptions) -> TorchRecSession:
        require_plain_context(self.name, context)
        require_row_numbers(self.name, usecase)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchRec warns about its own deprecations
            import torchrec.distributed.sharding_plan  # noqa: F401
        context.per_process(lambda: ProcessGroup(context))
        return TorchRecSession(usecase, context)


class ShardedTable(nn.Module):
    """One table of the model as a collection of tables, one per feature.

    Training looks up rows in the collection, which is a collective operation. Only one process evaluates. It
    looks up rows in a copy of the whole table that `gather` creates.
    """

    def __init__(self, weight: Tensor, first_rows: Tensor | None, context: WorkerContext) -> None:
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

        super().__init__()
        self._rank, self._world = context.rank, context.world_size
        self._featured = first_rows is not None
        self._first_rows = torch.zeros(1, dtype=torch.int64) if first_rows is None else first_rows
        self._edges = [*self._first_rows.tolist(), len(weight)]
        self._features = [f"feature{index}" for index in range(len(self._first_rows))]
        self._rows, self._dim = weight.shape
        # The kernels require rows of whole vectors. The padding of a row stays 0.
        self._padded = -(-self._dim // 4) * 4
        self._ones = torch.ones(0, dtype=torch.int32)
        self._whole: Tensor | None = None
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=feature,
                    embedding_dim=self._padded,
                    num_embeddings=self._edges[index + 1] - self._edges[index],
                    feature_names=[feature],
                )
                for index, feature in enumerate(self._features)
            ],
            device=torch.device("meta"),
        )

    def plan(self, sharder: Any) -> Any:
        """Return a plan with adjacent features in one process, so that rows arrive in feature order."""
        from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise

        return construct_module_sharding_plan(
            self.bags,
            {
                feature: table_wise(self._owner(index), compute_kernel="fused")
                for index, feature in enumerate(self._features)
            },
            sharder,
            local_size=self._world,
            world_size=self._world,
            device_type="cpu",
        )

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        """Set the initial rows of the tables in this process."""
        for index, own in self._own_tables():
            own.zero_()
            own[:, : self._dim] = weight[self._edges[index] : self._edges[index + 1]]

    @torch.no_grad()
    def gather(self) -> None:
        """Copy all tables to process 0. Collective."""
        own = dict(self._own_tables())
        whole = torch.empty(self._rows if self._rank == 0 else 0, self._padded)
        for index in range(len(self._features)):
            owner = self._owner(index)
            if self._rank == 0:
                part = whole[self._edges[index] : self._edges[index + 1]]
                if owner == 0:
                    part.copy_(own[index])
                else:
                    dist.recv(part, src=owner)
            elif self._rank == owner:
                dist.send(own[index].contiguous(), dst=0)
        self._whole = whole[:, : self._dim]

    def forward(self, ids: Tensor) -> Tensor:
        from torchrec import KeyedJaggedTensor

        if not self.training:
            assert self._whole is not None
            return embedding(ids, self._whole)
        columns = ids - self._first_rows if self._featured else ids.reshape(-1, 1)
        values = columns.reshape(-1, len(self._features)).t().reshape(-1)
        if len(self._ones) != len(values):
            self._ones = torch.ones(len(values), dtype=torch.int32)
        looked_up = self.bags(KeyedJaggedTensor(self._features, values, lengths=self._ones)).values()
        rows: Tensor = looked_up.view(*ids.shape, self._padded)
        return rows if self._padded == self._dim else rows[..., : self._dim]

    def _owner(self, feature: int) -> int:
        return feature * self._world // len(self._features)

    def _own_tables(self) -> Iterator[tuple[int, Tensor]]:
        for name, sharded in self.bags.state_dict().items():
            for shard in sharded.local_shards():
                yield self._features.index(name.split(".")[-2]), shard.tensor


class TorchRecSession(PlainSession):
    def __init__(self, usecase: UseCase, context: WorkerContext) -> None:
        from torch.distributed.optim import _apply_optimizer_in_backward  # type: ignore[attr-defined]
        from torchrec.distributed import DistributedModelParallel, ShardingEnv
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.types import ShardingPlan

        model = usecase.model()
        first_rows = usecase.feature_rows() if isinstance(usecase, Featured) else {}
        weights: list[Tensor] = []
        self._tables: list[ShardedTable] = []

        def make(name: str, table: nn.Embedding) -> ShardedTable:
            weights.append(table.weight.detach())
            self._tables.append(ShardedTable(weights[-1], first_rows.get(name), context))
            return self._tables[-1]

        replace_tables(model, make)
        in_tables = {id(parameter) for table in self._tables for parameter in table.parameters()}
        dense = [parameter for parameter in model.parameters() if id(parameter) not in in_tables]
        optimizer = dense_optimizer(usecase, nn.ParameterList(dense))
        sharder = EmbeddingBagCollectionSharder()
        plan = {}
        for path, module in model.named_modules():
            if isinstance(module, ShardedTable):
                plan[f"{path}.bags"] = module.plan(sharder)
                _apply_optimizer_in_backward(type(optimizer), module.bags.parameters(), _fused(optimizer))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
            parallel = DistributedModelParallel(
                model,
                env=ShardingEnv.from_process_group(dist.group.WORLD),
                device=torch.device("cpu"),
                plan=ShardingPlan(plan),
                sharders=[sharder],
            )
        super().__init__(parallel, optimizer)
        for table, weight in zip(self._tables, weights, strict=True):
            table.load(weight)
        self._rank = context.rank
        self._command = torch.zeros(1, dtype=torch.int64)
        self.model.register_forward_pre_hook(self._before_forward)
        self._gathered = False

    def step(self, loss: Tensor) -> None:
        self._gathered = False
        super().step(loss)

    def synchronize(self) -> None:
        """End an epoch. Other processes send their tables to process 0 on request until then. Collective."""
        if self._rank == 0:
            self._broadcast(DONE)
        else:
            while self._received() == GATHER:
                self._gather()

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        """Gather the whole tables at the first evaluation after training."""
        if not module.training and not self._gathered:
            self._broadcast(GATHER)
            self._gather()

    def _gather(self) -> None:
        for table in self._tables:
            table.gather()
        self._gathered = True

    def _broadcast(self, command: int) -> None:
        dist.broadcast(self._command.fill_(command), src=0)

    def _received(self) -> int:
        dist.broadcast(self._command, src=0)
        return int(self._command)


def _fused(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return settings of the use case's optimizer for TorchRec's fused optimizer."""
    known: tuple[str, ...]
    if isinstance(optimizer, torch.optim.Adagrad):
        known = ("lr", "eps")
    elif isinstance(optimizer, torch.optim.SGD):
        known = ("lr",)
    else:
        raise Unavailable(f"{type(optimizer).__name__} is not fused here: only Adagrad and SGD are")
    ignored = ("momentum", "weight_decay", "lr_decay", "initial_accumulator_value")
    for name in ignored:
        if optimizer.defaults.get(name, 0):
            raise Unavailable(f"{name} is {optimizer.defaults[name]}: the fused optimizer needs 0")
    return {name: optimizer.defaults[name] for name in known}


BACKEND = TorchRec
