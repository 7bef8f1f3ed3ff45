"""State dictionary of a wrapped model, which equals the plain model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from autoada.hash_embedding import HashEmbedding, IdRows, checked_rows
from autoada.parameters.hash_table import HashTable
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
            read[id(parameter)] = _value_of(parameter, state[key])
        state[key] = read[id(parameter)]
    return state


def _value_of(parameter: nn.Parameter, given: Tensor) -> Tensor:
    """Return the value of a parameter, of which the module's own state has `given`."""
    if isinstance(parameter, TableParameter):
        return given if isinstance(parameter.store, HashTable) else parameter.store.rows.read()
    return given.clone()


def load_all_but_tables(
    module: nn.Module, state: Mapping[str, Any], strict: bool
) -> tuple[Any, list[tuple[RemoteTable, Tensor | IdRows]]]:
    """Load all but tables into `module`; return torch's result, and the values of the tables.

    Raises
    ------
    RuntimeError
        If `state` does not fit.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    tables = {name: p for name, p in named.items() if isinstance(p, TableParameter)}
    hashed = {
        f"{path}.weight" if path else "weight": each
        for path, each in module.named_modules(remove_duplicate=False)
        if isinstance(each, HashEmbedding)
    }
    own = {*tables, *(name.removesuffix("weight") + "ids" for name in hashed)}
    loaded = module.load_state_dict(
        {name: value for name, value in state.items() if name not in own}, strict=False
    )
    loaded.missing_keys[:] = missing = [name for name in loaded.missing_keys if name not in state]
    if strict and (missing or loaded.unexpected_keys):
        raise RuntimeError(f"the state lacks {missing}, and has unexpected {loaded.unexpected_keys}")
    given: dict[str, Tensor | IdRows] = {name: state[name] for name in tables if name in state}
    for name in given.keys() & hashed.keys():
        try:
            given[name] = checked_rows(name, state, hashed[name])
        except ValueError as error:
            raise RuntimeError(str(error)) from None
    for name, parameter in tables.items():
        if name in given and name not in hashed and state[name].shape != parameter.shape:
            raise RuntimeError(
                f"{name!r} has the shape {tuple(state[name].shape)}; the model's is {tuple(parameter.shape)}"
            )
    return loaded, [(tables[name].store, value) for name, value in given.items()]
