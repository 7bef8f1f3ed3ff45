"""A table of the parameter server whose rows are numbered by the server at the first use of their ids."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from adaps.optimizers import Optimizer as Rule
from autoada.hash_embedding import HashEmbedding, IdRows, initial_rows, int64_ids
from autoada.optimizer.rules import initial_states
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.server_rows import ServerRows

__all__ = ["HashRows", "HashTable"]


class HashRows(ServerRows):
    """Rows of a `HashEmbedding` in the server, which map its ids to row numbers.

    Parameters
    ----------
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
        self._order = torch.empty(0, dtype=torch.int64)
        """Ids in the order of the state dictionaries so far. New ids follow them."""
        self._started = torch.zeros(self.shape[0] if applies_missed_steps else 0, dtype=torch.bool)
        """Rows whose missed steps are counted."""

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row; `adaps.AdapsError` if there are more ids than rows."""
        given = int64_ids(ids)
        numbers = torch.empty_like(given)
        self.worker.rows_of(self.table, given, numbers)
        if self.applies_missed_steps:
            self._start(numbers)
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

        An id keeps its position in later results of this worker, because a model's and an optimizer's state
        belong together.
        """
        ids, numbers = self.worker.ids_of(self.table)
        by_id = np.argsort(ids.numpy())
        known = np.isin(self._order.numpy(), ids.numpy())
        order = self._order.numpy()[known]
        at = by_id[np.searchsorted(ids.numpy(), order, sorter=by_id)]
        others = np.ones(len(ids), dtype=np.bool_)
        others[at] = False
        positions = torch.from_numpy(np.concatenate([at, np.flatnonzero(others)]))
        self._order = ids[positions]
        return self._order, numbers[positions]

    @property
    def all_keys(self) -> Tensor:
        """Keys of the rows that exist, in the order of a state dictionary."""
        keys: Tensor = self.table.keys(self.numbered()[1])
        return keys

    def apply_missed_steps(self, keys: Tensor | None = None) -> None:
        """Have some rows, or all that exist, make up for their steps without a gradient."""
        if self.applies_missed_steps:
            super().apply_missed_steps(self.all_keys if keys is None else keys)

    def resume(self, same_workers: bool) -> None:
        """Continue from a checkpoint, in which the rows may have had other numbers."""
        super().resume(same_workers)
        self._started.fill_(False)
        if self.applies_missed_steps:
            self._started[self.numbered()[1]] = True

    def write_state(self, state: IdRows) -> None:
        """Replace all rows. Ids that `state` does not have are as if they had never been used."""
        ids, numbers = self.numbered()
        others = ~torch.isin(ids, state.ids)
        self.write(numbers[others], initial_rows(self._init, ids[others], self.length))
        self.write(self.rows_of(state.ids), state.rows)
        self._order = state.ids

    def _start(self, numbers: Tensor) -> None:
        """Let new rows miss no step before the present one."""
        new = numbers[~self._started[numbers]].unique()
        self._started[new] = True
        if self.steps > 0 and len(new) > 0:
            states = initial_states(self._rule, len(new), self.length, self.table.state_length, self.steps)
            self.worker.set_state(self.table.keys(new), states)


class HashTable(RemoteTable):
    """The store of a `HashEmbedding`'s weight: rows are looked up by their numbers, and nothing else."""

    rows: HashRows

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row numbers of ids, which may be new."""
        return self.rows.rows_of(ids)

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
