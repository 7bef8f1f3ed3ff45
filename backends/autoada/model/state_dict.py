"""State dictionary of a wrapped model, which equals the plain model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoada.parameters.hash_table import HashTable
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.table_tensor import TableTensor


def state_of(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return ``module.state_dict(*args, **kwargs)`` with tables from the server, tied tables only once.

    Values that the module itself, or its hooks, have computed stay. With ``keep_vars``, so do the parameters.
    """
    state: dict[str, Any] = module.state_dict(*args, **kwargs)
    dense = {each.data_ptr() for each in module.parameters() if not isinstance(each, TableTensor)}
    read: dict[object, Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            continue
        if isinstance(value, TableTensor):
            if not value.has_all_rows:
                state[name] = value.values().clone()
            elif isinstance(value.store, RemoteTable) and not isinstance(value.store, HashTable):
                if value.store not in read:
                    read[value.store] = value.store.rows.read()
                state[name] = read[value.store]
        elif type(value) is Tensor and value.layout is torch.strided and value.data_ptr() in dense:
            # Later steps change dense parameters in place.
            key = (value.data_ptr(), value.shape, value.stride())
            if key not in read:
                read[key] = value.clone()
            state[name] = read[key]
    return state
