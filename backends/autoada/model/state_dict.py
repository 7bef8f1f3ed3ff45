"""State dictionary of a wrapped model, which equals the plain model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.table_parameter import TableParameter


def state_of(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return ``module.state_dict(*args, **kwargs)`` with tables from the server, tied tables only once."""
    state: dict[str, Any] = module.state_dict(*args, **kwargs)
    prefix = kwargs.get("prefix", "")
    read: dict[int, Tensor] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        key = prefix + name
        if key not in state:
            continue
        if id(parameter) not in read:
            # Dense parameters are views of a buffer, which later steps change.
            read[id(parameter)] = (
                parameter.table.rows.read() if isinstance(parameter, TableParameter) else state[key].clone()
            )
        state[key] = read[id(parameter)]
    return state


def load_all_but_tables(
    module: nn.Module, state: Mapping[str, Any], strict: bool
) -> tuple[Any, list[tuple[RemoteTable, Tensor]]]:
    """Load all but tables into `module`; return torch's result, and the values of the tables.

    Raises
    ------
    RuntimeError
        If `state` does not fit.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    tables = {name: p for name, p in named.items() if isinstance(p, TableParameter)}
    loaded = module.load_state_dict(
        {name: value for name, value in state.items() if name not in tables}, strict=False
    )
    loaded.missing_keys[:] = missing = [name for name in loaded.missing_keys if name not in state]
    if strict and (missing or loaded.unexpected_keys):
        raise RuntimeError(f"the state lacks {missing}, and has unexpected {loaded.unexpected_keys}")
    for name, parameter in tables.items():
        if name in state and state[name].shape != parameter.shape:
            raise RuntimeError(
                f"{name!r} has the shape {tuple(state[name].shape)}; the model's is {tuple(parameter.shape)}"
            )
    return loaded, [(parameter.table, state[name]) for name, parameter in tables.items() if name in state]
