"""A table of the parameter server whose rows are numbered by the server at the first use of their ids."""

from __future__ import annotations

import weakref
from collections import deque
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import adaps
from adaps.optimizers import Optimizer as Rule
from autoada.hash_embedding import HashEmbedding, IdMap, IdRows, initial_rows, int64_ids
from autoada.optimizer.rules import initial_states
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.server_rows import ServerRows

__all__ = ["ID_FLOATS", "HashRows", "HashTable", "id_table_name"]

ID_FLOATS = 5
"""Floats of a row of the table of ids: 1 if the row has an id, and four parts of the id with 16 bits."""
_PARTS = 16 * torch.arange(4)
_started: weakref.WeakKeyDictionary[adaps.Node, dict[str, Tensor]] = weakref.WeakKeyDictionary()
"""Rows of each table of ids that a node has used. All workers of the node share them."""
_READ_ROWS = 1 << 20
"""Rows of the table of ids that are read at once."""
_REMEMBERED = 256
"""Number of resolved batches of ids that are kept for their use."""


def id_table_name(table: str) -> str:
    """Return the name of the server's table that contains the ids of the rows of `table`."""
    return f"{table}.ids"


class HashRows(ServerRows):
    """Rows of a `HashEmbedding` in the server, which map its ids to row numbers.

    Rows that are announced ahead get a number. They become part of the state when they are used. A node knows
    only the ids that it has announced or used. So that one node can read all rows, nodes write the ids that
    they use to another table of the server, if there are several nodes.

    Parameters
    ----------
    name : str
        Qualified name of the parameter.
    parameter : nn.Parameter
        The model's parameter.
    access : ServerAccess
        Access to the server.
    applies_missed_steps : bool
        Whether a row applies its missed steps without a gradient when it is next read.
    module : HashEmbedding
        Module with the initial values of rows.
    rule : adaps.Adagrad or another rule
        Update rule of the table.
    """

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        access: ServerAccess,
        applies_missed_steps: bool,
        module: HashEmbedding,
        rule: Rule,
    ) -> None:
        super().__init__(name, parameter, access, applies_missed_steps)
        self._init = module.init
        self._rule = rule
        self._ids = access.node.table(id_table_name(name)) if access.node.world_size > 1 else None
        self._order = np.empty(0, dtype=np.int64)
        """Ids in the order of the state dictionaries so far. New ids follow them."""
        self._started = _started.setdefault(access.node, {}).setdefault(name, _no_rows(self.shape[0]))
        """Rows that this node has used since the last state was loaded, (capacity,) of bool."""
        self._resolved: deque[tuple[Tensor, Tensor]] = deque(maxlen=_REMEMBERED)
        self._ahead = _RowsAhead(self)
        self._publishing: list[int] = []
        """Tickets of the calls that write ids for other nodes."""

    def ahead(self) -> IdMap:
        """Return the map for ids that will be used later."""
        return self._ahead

    def resolve(self, ids: Tensor) -> Tensor:
        """Return what `rows_of` will return when these ids are used, and keep it until then.

        If rows are retired, it is found again, because an id without intent may lose its row until then.
        """
        numbers = self._find(int64_ids(ids))
        if not self.table.retires_rows:
            self._resolved.append((ids.reshape(-1).clone(), numbers))
        return numbers.clone().view(ids.shape).to(ids.device)  # the model may change its own numbers

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row; `adaps.AdapsError` if there are more ids than rows."""
        numbers = self._take_resolved(ids.reshape(-1))
        if numbers is None:
            numbers = self._find(int64_ids(ids))
        if not self._started[numbers].all():
            self._start(int64_ids(ids), numbers)
        return numbers.view(ids.shape).to(ids.device)

    def saved(self, weight: nn.Parameter) -> IdRows:
        """Return all ids and rows, in host memory."""
        ids, numbers = self.numbered()
        keys = self.table.keys(numbers)
        self.apply_missed_steps(keys)
        rows = torch.empty(len(ids), self.length, dtype=torch.float32)
        self.worker.pull(keys, rows)
        return IdRows(ids, rows.to(weight.dtype))

    def numbered(self) -> tuple[Tensor, Tensor]:
        """Return all ids in the order of a state dictionary, and the numbers of their rows.

        An id keeps its position in later results of this worker, because the states of a model and of its
        optimizer belong together.
        """
        ids, numbers = self._all_ids()
        by_id = np.argsort(ids)
        order = self._order[np.isin(self._order, ids)]
        at = by_id[np.searchsorted(ids, order, sorter=by_id)]
        others = np.ones(len(ids), dtype=np.bool_)
        others[at] = False
        positions = np.concatenate([at, np.flatnonzero(others)])
        self._order = ids[positions]
        return torch.from_numpy(self._order.copy()), torch.from_numpy(numbers[positions])

    @property
    def all_keys(self) -> Tensor:
        """Keys of the rows that exist, in the order of a state dictionary."""
        keys: Tensor = self.table.keys(self.numbered()[1])
        return keys

    def apply_missed_steps(self, keys: Tensor | None = None) -> None:
        """Have some rows, or all that exist, make up for their steps without a gradient."""
        if self.applies_missed_steps:
            super().apply_missed_steps(self.all_keys if keys is None else keys)

    def count_step(self) -> None:
        """Begin a step, after the ids of its rows were written for other nodes."""
        self._wait_published()
        super().count_step()

    def resume(self, same_workers: bool) -> None:
        """Collective: continue from a checkpoint, in which the rows may have had other numbers.

        Rows with their initial values are as if they had never been used. These include all rows that are not
        in the checkpoint.
        """
        super().resume(same_workers)
        self._resolved.clear()
        ids, numbers = (torch.from_numpy(each) for each in self.table.known_ids())
        rows = torch.empty(len(ids), self.length)
        self.worker.pull(self.table.keys(numbers), rows)
        changed = (rows != initial_rows(self._init, ids, self.length)).any(1)
        ids, numbers = ids[changed], numbers[changed]
        if self._ids is not None:
            self._publish_again(ids, numbers)
        self._started[:] = False
        self._started[numbers] = True

    def write_state(self, state: IdRows) -> None:
        """Replace all rows. Ids that `state` does not have are as if they had never been used."""
        ids, numbers = self.numbered()
        others = ~torch.isin(ids, state.ids)
        self.write(numbers[others], initial_rows(self._init, ids[others], self.length))
        self._set_initial_states(numbers[others], 0)
        if self._ids is not None:
            self._forget(numbers[others])
        self._started[:] = False
        self.write(self.rows_of(state.ids), state.rows)
        self._order = state.ids.numpy().copy()

    def state_written(self) -> None:
        """Continue with the rows that the primary worker has written."""
        if self._ids is not None and not self.is_primary:
            numbers = torch.from_numpy(self._all_ids()[1])
            self._started[:] = False
            self._started[numbers] = True

    def _find(self, ids: Tensor) -> Tensor:
        with torch.inference_mode(False):  # a later call outside of this mode may use the numbers
            numbers = torch.empty_like(ids)
        self.worker.rows_of(self.table, ids, numbers)
        return numbers

    def _take_resolved(self, ids: Tensor) -> Tensor | None:
        """Return the rows that `resolve` found for these ids, and drop them with the older ones."""
        for position, (given, numbers) in enumerate(self._resolved):
            alike = (given.shape, given.dtype, given.device) == (ids.shape, ids.dtype, ids.device)
            if alike and torch.equal(given, ids):
                for _ in range(position + 1):
                    self._resolved.popleft()
                return numbers
        return None

    def _start(self, ids: Tensor, numbers: Tensor) -> None:
        """Publish the ids of new rows, and let these rows miss no step before the present one."""
        new = ~self._started[numbers]
        distinct, first = np.unique(numbers[new].numpy(), return_index=True)
        rows = torch.from_numpy(distinct)
        self._started[rows] = True
        if self._ids is not None:
            self._publish(ids[new][first], rows)
        if self.applies_missed_steps and self.steps > 0:
            self._set_initial_states(rows, self.steps)

    def _set_initial_states(self, rows: Tensor, steps: int) -> None:
        """Give rows the optimizer state of a row without a gradient that has missed none of `steps` steps."""
        if (width := self.table.state_length) > 0:
            states = initial_states(self._rule, len(rows), self.length, width, steps)
            self.worker.set_state(self.table.keys(rows), states)

    def _publish(self, ids: Tensor, rows: Tensor) -> None:
        """Begin to write the ids of rows to the table of ids."""
        assert self._ids is not None
        values = torch.ones(len(rows), ID_FLOATS)
        values[:, 1:] = (ids[:, None] >> _PARTS) & 0xFFFF
        ticket = self.worker.set(self._ids.keys(rows), values, asynchronous=True)
        assert ticket is not None
        self._publishing.append(ticket)

    def _wait_published(self) -> None:
        for ticket in self._publishing:
            self.worker.wait(ticket)
        self._publishing.clear()

    def _publish_again(self, ids: Tensor, rows: Tensor) -> None:
        """Collective: replace the table of ids, which is as it was when the checkpoint was written."""
        assert self._ids is not None
        if self.is_primary:
            self._forget(torch.from_numpy(self._published()[1]))
        self.worker.end_setup()
        self._publish(ids, rows)
        self._wait_published()
        self.worker.end_setup()

    def _forget(self, rows: Tensor) -> None:
        """Remove the ids of rows from the table of ids."""
        assert self._ids is not None
        self.worker.set(self._ids.keys(rows), torch.zeros(len(rows), ID_FLOATS))

    def _published(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ids in the table of ids and their rows, in the order of the rows."""
        assert self._ids is not None
        self._wait_published()
        ids, rows = [], []
        for some in torch.arange(self.shape[0]).split(_READ_ROWS):
            values = torch.empty(len(some), ID_FLOATS)
            self.worker.pull(self._ids.keys(some), values)
            used = values[:, 0].nonzero()[:, 0]
            ids.append((values[used, 1:].long() << _PARTS).sum(1))
            rows.append(some[used])
        return torch.cat(ids).numpy(), torch.cat(rows).numpy()

    def _all_ids(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ids of all nodes and their rows, in the order of the rows."""
        if self._ids is None:
            ids, rows = self.table.known_ids()
            started = self._started.numpy()[rows]
            return ids[started], rows[started]
        ids, rows = self._published()
        # A node must have resolved an id before it can use the id's row.
        self.worker.rows_of(self.table, ids, np.empty_like(ids))
        return ids, rows


def _no_rows(count: int) -> Tensor:
    """Return `count` times False, which takes memory only where it is overwritten."""
    return torch.from_numpy(np.zeros(count, dtype=np.bool_))


class _RowsAhead:
    """The map of `HashRows` for ids that will be used later, whose rows are found only once."""

    def __init__(self, rows: HashRows) -> None:
        self._rows = weakref.proxy(rows)

    def rows_of(self, ids: Tensor) -> Tensor:
        numbers: Tensor = self._rows.resolve(ids)
        return numbers


class HashTable(RemoteTable):
    """The store of a `HashEmbedding`'s weight: rows are looked up by their numbers, and nothing else."""

    rows: HashRows

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row numbers of ids that will be used."""
        return self.rows.resolve(ids)

    def whole(self) -> NoReturn:
        """Refused, as rows have other numbers than in plain PyTorch."""
        self._refuse()

    def viewed(self, ids: Tensor) -> NoReturn:
        """Refused, as rows have other numbers than in plain PyTorch."""
        self._refuse()

    def fetch(self, ids: Tensor) -> NoReturn:
        """Refused, as the server writes the rows."""
        self._refuse()

    def begin_update(self, depends: bool = True) -> NoReturn:
        """Refused, as the server writes the rows."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{self.name!r} is the weight of a HashEmbedding in the parameter server, where rows have other "
            "numbers than in plain PyTorch, and only lookups of the numbers that rows_of(ids) returns are "
            "possible: use the module's output, or state_dict() for all rows"
        )
