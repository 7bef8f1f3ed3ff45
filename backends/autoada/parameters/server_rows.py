"""All rows of one table of the server: read, written and drawn on this node."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor, nn

from autoada.parameters.server_access import ServerAccess

CHUNK_FLOATS = 1 << 22
"""Number of floats in one call of the server that writes values, or reads or writes state."""
FEW_ROWS = 1 << 16
"""The keys of all rows are kept for tables of at most this many rows."""


class ServerRows:
    """Rows of one table of the server, as the model sees them: on its device and in its dtype."""

    def __init__(
        self, name: str, parameter: nn.Parameter, access: ServerAccess, applies_missed_steps: bool
    ) -> None:
        self.name = name
        self.shape = parameter.shape
        self.row_shape = parameter.shape[1:]
        self.length = prod(self.row_shape)
        self.dtype = parameter.dtype
        self.worker = access.worker
        self.table = access.node.table(name)
        self.transfer = access.transfer
        self.applies_missed_steps = applies_missed_steps
        """Whether a row applies its missed steps without a gradient when it is next read. Only a single
        worker does this; with several workers such rows do not change."""
        self.is_shared = not access.alone
        self.is_primary = access.is_primary
        """Whether all workers write this worker's values."""
        self.is_loading = False
        """Whether all workers load a state, which only the primary worker writes."""
        self.first_key = self.table.first_key
        self.steps = 0
        """Number of steps with a gradient so far, of this worker."""
        self._all_keys: Tensor | None = None

    @property
    def all_keys(self) -> Tensor:
        """Keys of all rows, in row order."""
        if self._all_keys is not None:
            return self._all_keys
        keys: Tensor = self.table.keys(torch.arange(self.shape[0], device="cpu"))
        if self.shape[0] <= FEW_ROWS:  # making them takes longer than reading the rows
            self._all_keys = keys
        return keys

    def pull(self, keys: Tensor) -> Tensor:
        """The rows of keys, shape ``(keys, ...)``."""
        self.apply_missed_steps(keys)
        count = keys.shape[0]
        rows = host = self.transfer.host_array(count, *self.row_shape)
        self.worker.pull(keys, host if len(self.row_shape) == 1 else host.view(count, self.length))
        if not self.transfer.direct:
            rows = self.transfer.to_device(host)
        return rows if self.dtype is torch.float32 else rows.to(self.dtype)

    def count_step(self) -> None:
        """Begin a step; as in torch.optim, a step without a gradient for the parameter does not count."""
        self.steps += 1
        self.table.set_step(self.steps, self.applies_missed_steps)

    def apply_missed_steps(self, keys: Tensor | None = None) -> None:
        """Have some rows, or all, make up for their steps without a gradient."""
        if self.applies_missed_steps:
            self.table.catch_up(keys)

    def resume(self, same_workers: bool) -> None:
        """Go on from a checkpoint, of this number of workers or of another."""
        self.table.set_step(self.steps, idle_rows=self.applies_missed_steps)
        if self.applies_missed_steps and not same_workers:
            self.table.forget_missed()  # several workers let rows miss steps

    def read(self, keys: Tensor | None = None) -> Tensor:
        """A copy of the rows of keys, or of the whole table, in host memory."""
        self.apply_missed_steps(keys)
        keys = self.all_keys if keys is None else keys
        rows = torch.empty(len(keys), *self.row_shape, dtype=torch.float32, device="cpu")
        self.worker.pull(keys, rows.view(len(rows), self.length))
        return rows.to(self.dtype)

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Overwrite rows; each id occurs once."""
        keys = self.table.keys(ids.to("cpu", torch.int64).contiguous())
        self.apply_missed_steps(keys)  # steps that the old values have missed must not change the new ones
        flat = values.detach().reshape(len(keys), self.length)
        for some in chunks(len(keys), self.length):
            self.worker.set(keys[some], flat[some].to("cpu", torch.float32).contiguous())


def chunks(rows: int, floats: int) -> Iterator[slice]:
    """Divide rows of a number of floats between calls of the server."""
    count = max(1, CHUNK_FLOATS // max(1, floats))
    for start in range(0, rows, count):
        yield slice(start, min(rows, start + count))
