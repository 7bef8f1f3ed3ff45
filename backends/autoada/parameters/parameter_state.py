"""The optimizer state of one parameter, in rows of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import adaps
from adaps import NodeTable
from adaps.optimizers import Optimizer as Rule
from autoada.optimizer.rules import check_state, has_step, initial_states, initial_value, state_names
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.server_rows import ServerRows, chunks
from autoada.parameters.table_gradients import row_sparse
from autoada.parameters.table_parameter import TableParameter

MOMENTS = (adaps.Adam, adaps.AdamW, adaps.SparseAdam)


@dataclass(eq=False)
class ParameterState:
    """Reads and writes the optimizer state of one parameter, in the layout of `torch.optim`.

    The rows of a table count its steps.
    """

    name: str
    parameter: nn.Parameter
    table: NodeTable
    _keys: Callable[[], Tensor]
    _rule: Rule
    _access: ServerAccess
    _rows: ServerRows | None = None

    def __post_init__(self) -> None:
        self._names = state_names(self._rule)
        self._initial = initial_value(self._rule)
        self._steps = 0
        self._began_sparse: bool | None = None
        self.counts_here = self._rows is None and bool(self._names) and not isinstance(self._rule, MOMENTS)
        """Whether `count_step` has to count the steps. Otherwise the rows count them, or have no state."""

    @property
    def steps(self) -> int:
        """Steps with a gradient so far."""
        if self._rows is not None:
            return self._rows.steps
        if not isinstance(self._rule, MOMENTS):
            return self._steps
        # All rows of a dense parameter have the same number, and all workers agree on the least key. There is
        # none if there is no row.
        key = self._keys().sort().values[:1]
        state = torch.zeros(self.table.state_length, dtype=torch.float32, device="cpu")
        if len(key) > 0:
            self._access.worker.pull_state(key, state)
        return int(state[-1])

    @steps.setter
    def steps(self, count: int) -> None:
        self._steps = count
        if self._rows is not None:
            self._rows.steps = count
            if count > 0 or self.table.step > 0:
                self.table.set_step(count, idle_rows=self._rows.applies_missed_steps)

    def restore_steps(self, count: int | None) -> None:
        """Take over the number of steps of a checkpoint; None if it has none of this parameter."""
        if self._rows is not None:
            self._rows.steps = count or 0
        else:
            self._steps = 1 if count is None else count  # earlier versions kept the state without the number

    def count_step(self) -> None:
        """Count a step with a gradient."""
        self._steps += 1

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if the server has no place for a state."""
        check_state(self.name, self.parameter.shape, state, self._rule)

    def settle(self) -> None:
        """Have rows make up for the steps that they have missed."""
        if self._rows is not None:
            self._rows.apply_missed_steps()

    def read(self) -> dict[str, Any]:
        """The state as the optimizer would keep it; empty before the first step, as there."""
        self.settle()
        steps = self.steps
        if not self._names or (steps == 0 and not isinstance(self._rule, adaps.Adagrad)):
            return {}
        keys, length, width = self._keys(), self.table.length, self.table.state_length
        # Rows of ids that were not used have no key.
        rows = len(keys) if self._rows is None else self.parameter.shape[0]
        parts = torch.full((len(self._names), rows, length), self._initial, dtype=torch.float32, device="cpu")
        for some in chunks(len(keys), width):
            state = torch.empty(some.stop - some.start, width, dtype=torch.float32, device="cpu")
            self._access.worker.pull_state(keys[some], state)
            for i, part in enumerate(parts):
                part[some] = state[:, i * length : (i + 1) * length]
        result: dict[str, Any] = {}
        if has_step(self._rule):
            as_number = isinstance(self._rule, adaps.SparseAdam)
            # As in PyTorch, which uses float32 also if the default dtype is a half-precision one.
            dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
            result["step"] = steps if as_number else torch.tensor(float(steps), dtype=dtype, device="cpu")
        device = "cpu" if self._rows is not None else self.parameter.device
        for name, part in zip(self._names, parts, strict=True):
            values = part.view(-1)[: self.parameter.shape.numel()].view(self.parameter.shape)
            result[name] = values.to(device, self.parameter.dtype, copy=True)
            if name == "momentum_buffer" and self._has_sparse_momentum():
                ids = values.flatten(1).any(1).nonzero()[:, 0]
                result[name] = row_sparse(ids, result[name][ids], self.parameter.shape).coalesce()
        return result

    def _has_sparse_momentum(self) -> bool:
        """Whether PyTorch's buffer, a sum that begins with a gradient, would be sparse."""
        if self._began_sparse is not None:
            return self._began_sparse
        return isinstance(self.parameter, TableParameter) and bool(
            self.parameter.store.gradients.began_sparse
        )

    def steps_of(self, state: Mapping[str, Any]) -> int:
        """The number of steps after which the optimizer has this state."""
        if "step" in state:
            return int(state["step"])
        if has_step(self._rule):
            return 0
        return max(self.steps, 1 if state else 0)

    def is_initial(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is the one that the rows have before their first step."""
        values = [state[name] for name in self._names if state.get(name) is not None]
        return all(value.is_meta or bool((value.to_dense() == self._initial).all()) for value in values)

    def write(self, state: Mapping[str, Any], steps: int) -> None:
        """Replace the state in the server by a state of the optimizer, after a number of steps."""
        keys, length, width = self._keys(), self.table.length, self.table.state_length
        if width == 0:
            return
        given = {
            i: state[name].detach().to_dense().reshape(-1)
            for i, name in enumerate(self._names)
            if state.get(name) is not None
        }
        buffer = state.get("momentum_buffer")
        self._began_sparse = None if buffer is None else buffer.is_sparse
        for some in chunks(len(keys), width):
            rows = initial_states(self._rule, some.stop - some.start, length, width, steps)
            for i, values in given.items():
                part = torch.full((len(rows) * length,), self._initial, dtype=torch.float32, device="cpu")
                values = values[some.start * length : some.stop * length]
                part[: len(values)] = values.to("cpu", torch.float32)
                rows[:, i * length : (i + 1) * length] = part.view(len(rows), length)
            self._access.worker.set_state(keys[some], rows)
