"""A table of the parameter server whose rows are numbered by the server at the first use of their ids."""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from adaps.optimizers import Optimizer as Rule
from autoada.hash_embedding import HashEmbedding, IdRows, initial_rows, int64_ids
from autoada.optimizer.rules import initial_states
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.server_rows import ServerRows

__all__ = ["HashRows", "HashTable"]

_REMEMBERED = 256
"""Number of resolved batches of ids that are kept for their use."""


class HashRows(ServerRows):
    """Rows of a `HashEmbedding` in the server, which map its ids to row numbers.

    Rows that are announced ahead get a number. They become part of the state when they are used, which the
    server records.

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
        self._is_on_primary_node = access.node.rank == 0
        self._order = torch.empty(0, dtype=torch.int64, device="cpu")
        """Ids in the order of the state dictionaries so far. New ids follow them."""
        self._resolved: deque[tuple[Tensor, Tensor]] = deque(maxlen=_REMEMBERED)

    def resolve(self, ids: Tensor) -> Tensor:
        """Return what `rows_of` will return when these ids are used, and keep it until then.

        If rows are retired, it is found again, because an id without intent may lose its row until then.
        """
        wanted = int64_ids(ids)
        numbers = self._find(wanted)
        if not self.table.retires_rows:
            self._resolved.append((wanted.clone(), numbers))
        return numbers.clone().view(ids.shape).to(ids.device)  # the model may change its own numbers

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row; `adaps.AdapsError` if there are more ids than rows."""
        wanted = int64_ids(ids)
        known = self._take_resolved(wanted)
        numbers = self._find(wanted) if known is None else known
        return numbers.view(ids.shape).to(ids.device)

    def find(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row, or -1 for an id without a row."""
        numbers = self._find(int64_ids(ids), create=False)
        return numbers.view(ids.shape).to(ids.device)

    def saved(self, weight: nn.Parameter) -> IdRows:
        """Return all ids and rows, in host memory."""
        ids, numbers = self.numbered()
        return IdRows(ids, self.read(self.table.keys(numbers)))

    def numbered(self) -> tuple[Tensor, Tensor]:
        """Return all ids in the order of a state dictionary, and the numbers of their rows.

        An id keeps its position in later results of this worker, because the states of a model and of its
        optimizer belong together.
        """
        ids = torch.from_numpy(self.worker.used_ids(self.table))
        numbers = self._find(ids)
        if self.table.retires_rows:  # Rows with their initial values are listed, too.
            rows = torch.empty(len(ids), self.length, dtype=torch.float32, device="cpu")
            self.worker.pull(self.table.keys(numbers), rows)
            is_changed = (rows != initial_rows(self._init, ids, self.length)).any(1)
            ids, numbers = ids[is_changed], numbers[is_changed]
        known = torch.searchsorted(ids, self._order[torch.isin(self._order, ids)])
        is_new = torch.ones_like(ids, dtype=torch.bool)
        is_new[known] = False
        new = is_new.nonzero().view(-1)
        positions = torch.cat([known, new[numbers[new].argsort()]])
        self._order = ids[positions]
        return self._order.clone(), numbers[positions]

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
        """Continue from a checkpoint, in which the rows may have had other numbers.

        Rows with their initial values are as if they had never been used. These include all rows that are not
        in the checkpoint.
        """
        super().resume(same_workers)
        self._resolved.clear()

    def load(self, state: IdRows) -> None:
        """Replace all rows by those of a state dictionary, which the `AdaModel` loads."""
        if not self.is_loading:
            raise ValueError(
                "a HashEmbedding in the parameter server cannot load a state by itself: use "
                "load_state_dict() of its AdaModel"
            )
        if self.is_primary:
            self.write_state(state)

    def write_state(self, state: IdRows) -> None:
        """Replace all rows. Ids that `state` does not have are as if they had never been used."""
        ids, numbers = self.numbered()
        others = ~torch.isin(ids, state.ids)
        self.write(numbers[others], initial_rows(self._init, ids[others], self.length))
        self._set_initial_states(numbers[others])
        self.table.forget_used()
        if self.table.retires_rows:
            self.worker.end_uses()  # the rows of other ids may be needed
        self.write(self.rows_of(state.ids), state.rows)
        self._order = state.ids.clone()

    def state_written(self) -> None:
        """Continue with the rows that the primary worker has written, which its node has used."""
        if not self._is_on_primary_node:
            self.table.forget_used()

    def _find(self, ids: Tensor, create: bool = True) -> Tensor:
        with torch.inference_mode(False):  # a later call outside of this mode may use the numbers
            numbers = torch.empty_like(ids)
        self.worker.rows_of(self.table, ids, numbers, create=create)
        return numbers

    def _take_resolved(self, ids: Tensor) -> Tensor | None:
        """Return the rows that `resolve` found for these ids, and drop them with the older ones."""
        for position, (given, numbers) in enumerate(self._resolved):
            if torch.equal(given, ids):
                for _ in range(position + 1):
                    self._resolved.popleft()
                return numbers
        return None

    def _set_initial_states(self, rows: Tensor) -> None:
        """Give rows the optimizer state that they have before their first use."""
        if (width := self.table.state_length) > 0:
            states = initial_states(self._rule, len(rows), self.length, width, 0)
            self.worker.set_state(self.table.keys(rows), states)


class HashTable(RemoteTable):
    """The store of a `HashEmbedding`'s weight: rows are looked up by their numbers, and nothing else."""

    rows: HashRows

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row numbers of ids that will be used."""
        return self.rows.resolve(ids)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            f"{self.name!r} is the weight of a HashEmbedding in the parameter server, where rows have other "
            "numbers than in plain PyTorch, and only lookups of the numbers that rows_of(ids) returns are "
            "possible: use the module's output, or state_dict() for all rows"
        )

    # Rows have other numbers than in plain PyTorch, and only the server writes them.
    whole = viewed = fetch = begin_update = end_views = _refuse
