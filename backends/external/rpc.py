"""A parameter server over torch.distributed.rpc: every process serves a block of each table's rows.

A forward pulls the distinct rows of a lookup from the processes that store them. A step pushes their
gradients to these processes, where the use case's optimizer updates the rows. The dense layers use
DistributedDataParallel over gloo.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.nn.functional import embedding

from adabench.backends.external._shared import (
    PeerBackend,
    PlainSession,
    ProcessGroup,
    data_parallel,
    dense_optimizer,
    replace_tables,
    require_plain_context,
    require_row_numbers,
)
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import WorkerContext
from adabench.usecases.interface import UseCase


class Rpc(PeerBackend):
    name = "rpc"
    distributed = True

    def open(self, usecase: UseCase, context: WorkerContext, options: BackendOptions) -> RpcSession:
        require_plain_context(self.name, context)
        require_row_numbers(self.name, usecase)
        return RpcSession(usecase, context)


class Blocks:
    """The blocks of rows that this process serves, one of each table, and the optimizer that updates them."""

    serving: ClassVar[Blocks | None] = None
    """The instance for calls from other processes."""

    def __init__(self, usecase: UseCase, blocks: list[Tensor]) -> None:
        self._blocks = nn.ParameterList(blocks)
        self._optimizer = usecase.optimizer(self._blocks) if blocks else None
        self._lock = Lock()

    def pull(self, table: int, rows: Tensor) -> Tensor:
        with self._lock:
            found: Tensor = self._blocks[table].detach().index_select(0, rows)
            return found

    def push(self, table: int, rows: Tensor, gradients: Tensor) -> None:
        """Update distinct, ascending rows."""
        block = self._blocks[table]
        assert self._optimizer is not None
        with self._lock:
            block.grad = torch.sparse_coo_tensor(
                rows.unsqueeze(0), gradients, block.shape, is_coalesced=True, check_invariants=False
            )
            self._optimizer.step()
            block.grad = None


def _pull(table: int, rows: Tensor) -> Tensor:
    assert Blocks.serving is not None
    return Blocks.serving.pull(table, rows)


def _push(table: int, rows: Tensor, gradients: Tensor) -> None:
    assert Blocks.serving is not None
    Blocks.serving.push(table, rows, gradients)


class Servers:
    """The part of the parameter server in one process. The owner closes it."""

    def __init__(self, context: WorkerContext, blocks: Blocks) -> None:
        self._group = ProcessGroup(context)
        self._rpc = context.world_size > 1
        Blocks.serving = blocks
        if self._rpc:
            # Uses sockets, because shared memory, the default on one host, is polled without a pause.
            options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
            rpc.init_rpc(
                _name(context.rank),
                rank=context.rank,
                world_size=context.world_size,
                rpc_backend_options=options,
            )

    def close(self) -> None:
        if self._rpc:
            rpc.shutdown()
        Blocks.serving = None
        self._group.close()


class RemoteTable(nn.Module):
    """Looks up rows in the blocks of all processes, and records the rows until their gradients are pushed."""

    def __init__(self, number: int, rows: int, context: WorkerContext) -> None:
        super().__init__()
        self._number = number
        self._rank, self._world = context.rank, context.world_size
        block = -(-rows // self._world)
        self._starts = [min(rank * block, rows) for rank in range(self._world + 1)]
        self._inner = torch.tensor(self._starts[1:-1], dtype=torch.int64)
        self._read: list[tuple[Tensor, Tensor]] = []

    def own_block(self, weight: Tensor) -> Tensor:
        return weight.detach()[self._starts[self._rank] : self._starts[self._rank + 1]].clone()

    def forward(self, ids: Tensor) -> Tensor:
        distinct, inverse = torch.unique(ids, return_inverse=True)
        rows = self._pull(distinct)
        if torch.is_grad_enabled():
            self._read.append((distinct, rows.requires_grad_()))
        return embedding(inverse, rows)

    def push(self) -> list[torch.futures.Future[None]]:
        """Send the gradients of rows that were read since the last call. Returns futures of their arrival."""
        sent = []
        for distinct, rows in self._read:
            assert rows.grad is not None
            gradients = rows.grad.split(self._counts(distinct))
            for rank, (local, part) in enumerate(zip(self._by_owner(distinct), gradients, strict=True)):
                if rank == self._rank:
                    _push(self._number, local, part)
                elif len(local):
                    sent.append(rpc.rpc_async(_name(rank), _push, args=(self._number, local, part)))
        self._read.clear()
        return sent

    def _pull(self, distinct: Tensor) -> Tensor:
        owned = self._by_owner(distinct)
        asked = {
            rank: rpc.rpc_async(_name(rank), _pull, args=(self._number, local))
            for rank, local in enumerate(owned)
            if rank != self._rank and len(local)
        }
        own = _pull(self._number, owned[self._rank])
        parts = [asked[rank].wait() if rank in asked else own for rank in sorted({*asked, self._rank})]
        return torch.cat(parts) if len(parts) > 1 else own

    def _counts(self, distinct: Tensor) -> list[int]:
        edges = [0, *torch.searchsorted(distinct, self._inner).tolist(), len(distinct)]
        return [end - start for start, end in pairwise(edges)]

    def _by_owner(self, distinct: Tensor) -> list[Tensor]:
        """Return ascending rows, divided by the process that stores them, as offsets in its block."""
        parts = distinct.split(self._counts(distinct))
        return [part - start for part, start in zip(parts, self._starts, strict=False)]


class RpcSession(PlainSession):
    def __init__(self, usecase: UseCase, context: WorkerContext) -> None:
        model = usecase.model()
        self._tables: list[RemoteTable] = []
        blocks: list[Tensor] = []

        def make(name: str, table: nn.Embedding) -> RemoteTable:
            remote = RemoteTable(len(blocks), table.num_embeddings, context)
            self._tables.append(remote)
            blocks.append(remote.own_block(table.weight))
            return remote

        replace_tables(model, make)
        context.per_process(lambda: Servers(context, Blocks(usecase, blocks)))
        super().__init__(data_parallel(model), dense_optimizer(usecase, model))
        self._sent: list[torch.futures.Future[None]] = []

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        torch.futures.wait_all(self._sent)
        self._sent = [future for table in self._tables for future in table.push()]
        self._optimizer.step()

    def synchronize(self) -> None:
        torch.futures.wait_all(self._sent)
        self._sent = []
        dist.barrier()


def _name(rank: int) -> str:
    return f"node{rank}"


BACKEND = Rpc
