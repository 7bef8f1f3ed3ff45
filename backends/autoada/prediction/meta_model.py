"""Meta models: a model's classes and attributes around parameters that have a shape but no data."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from autoada.hash_embedding import HashEmbedding, LocalIdMap
from autoada.prediction.random_generators import GENERATORS, set_states, states_of
from autoada.prediction.tables import LARGE

_CONTAINER_DEPTH = 3
_ENTRIES = 64
"""Containers with more entries are data."""
_CONTAINERS = (list, tuple, dict, OrderedDict, defaultdict, set, deque)
_ADDED = nn.Module().__dict__.keys() - {"_buffers"}
"""Attributes of each module that forward does not change."""
_COMPILED = "_orig_mod"


class MetaModel:
    """Runs the forward of `model` without touching it.

    Modules are copied shallowly, and containers up to three levels deep. Each parameter becomes one meta
    tensor, so ties remain. Buffers in host memory are shared; other buffers are copied to host memory. The
    cost does not depend on the size of a table. `tables` has the qualified names of the parameters with reads
    to collect, by ``id(parameter)``.
    """

    def __init__(self, model: nn.Module, tables: Mapping[int, str]) -> None:
        self._wanted = tables
        self._copies: dict[int, nn.Module] = {}
        self._originals: list[nn.Parameter] = []
        self.generators: list[Any] = []
        """Copies of the random generators that modules hold."""
        self.parameters: dict[int, nn.Parameter] = {}
        """Meta parameters by ``id(real parameter)``."""
        self.tables: dict[int, str] = {}
        """Qualified names of the tables by ``id(meta parameter)``."""
        self.compiled = False
        """Whether a part of the live model is compiled."""
        self.module = self._module(model)
        self._attributes = [vars(module) for module in self._copies.values()]
        self._containers: list[Any] = []
        """Containers in attributes that forward may change."""
        for attributes in self._attributes:
            for name, value in attributes.items():
                self._containers += () if name in _ADDED else _containers_in(value)
        self.large = {
            id(self.parameters[id(parameter)]): name
            for name, parameter in model.named_parameters()
            if id(parameter) in self.parameters
            and id(parameter) not in tables
            and parameter.dim() > 1
            and parameter.shape[0] >= LARGE
        }
        """Qualified names of other parameters with many rows, by ``id(meta parameter)``."""

    def state(self) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """Return attributes, containers of few entries and random generators, which forward may change."""
        few = [each for each in self._containers if len(each) <= _ENTRIES]
        saved = [(container, copy.copy(container)) for container in (*self._attributes, *few)]
        return saved, states_of(self.generators)

    def restore(self, state: tuple[list[tuple[Any, Any]], list[Any]]) -> None:
        """Undo changes since `state`, except for changes of tensors in place."""
        for container, before in state[0]:
            container.clear()
            (container.update if hasattr(container, "update") else container.extend)(before)
        set_states(self.generators, state[1])

    def adopt(self, storage: int) -> bool:
        """Give the meta model a copy of each tensor at this address; return False if it has none."""
        found = False
        for module in self._copies.values():
            for attributes in (module._buffers, module.__dict__):
                for name, value in list(attributes.items()):
                    if _lies_at(value, storage):
                        with torch.inference_mode():
                            attributes[name] = value.clone()
                        found = True
        return found

    def plain_attributes(self) -> dict[tuple[int, str], Any]:
        """Return numbers and strings in modules, which a forward that counts its calls changes."""
        return {
            (i, name): value
            for i, module in enumerate(self._copies.values())
            for name, value in module.__dict__.items()
            if type(value) in (int, float, str)
        }

    def _module(self, module: nn.Module) -> nn.Module:
        if type(module).__name__ == "OptimizedModule":
            self.compiled = True
            module = getattr(module, _COMPILED, module)
        self.compiled |= getattr(module, "_compiled_call_impl", None) is not None
        if id(module) in self._copies:
            return self._copies[id(module)]
        meta_model = object.__new__(type(module))
        self._copies[id(module)] = meta_model
        attributes = meta_model.__dict__
        for name, value in module.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                attributes[name] = self._attribute(dict(value.items()), 0)
            elif name == "id_map" and isinstance(module, HashEmbedding):
                is_local = isinstance(value, LocalIdMap)
                attributes[name] = value if is_local else SimpleNamespace(rows_of=value.resolve)
            elif name == "_compiled_call_impl":
                attributes[name] = None
            else:
                attributes[name] = self._attribute(value, 0)
        if "_flat_weight_refs" in attributes:  # nn.RNNBase checks its weights through weak references
            attributes["_flat_weight_refs"] = [weakref.ref(w) for w in attributes["_flat_weights"]]
        if isinstance(module, _NormBase):
            meta_model._buffers["num_batches_tracked"] = None
        return meta_model

    def _parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                "the model has a lazy parameter without a shape: run one forward pass before wrapping it"
            )
        key = id(parameter)
        if key not in self.parameters:
            meta = nn.Parameter(
                torch.empty_strided(
                    tuple(parameter.shape), parameter.stride(), dtype=parameter.dtype, device="meta"
                ),
                requires_grad=False,
            )
            self.parameters[key] = meta
            self._originals.append(parameter)  # An identity is only unique while its object lives.
            if key in self._wanted:
                self.tables[id(meta)] = self._wanted[key]
        return self.parameters[key]

    def _attribute(self, value: Any, depth: int) -> Any:
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, nn.Parameter):
            return self._parameter(value)
        if isinstance(value, Tensor):
            return value if value.is_cpu or value.is_meta else value.cpu()
        if isinstance(value, GENERATORS):
            same = value.clone_state() if isinstance(value, torch.Generator) else copy.deepcopy(value)
            self.generators.append(same)
            return same
        if depth == _CONTAINER_DEPTH:
            return value
        if type(value) is list:
            return [self._attribute(item, depth + 1) for item in value]
        if type(value) is tuple:
            return tuple(self._attribute(item, depth + 1) for item in value)
        if type(value) in (dict, OrderedDict, defaultdict):
            same = value.copy()
            same.update((key, self._attribute(item, depth + 1)) for key, item in value.items())
            return same
        if type(value) in (set, deque):
            return value.copy()
        if inspect.ismethod(value) and isinstance(value.__self__, nn.Module):
            return value.__func__.__get__(self._module(value.__self__))
        return value


def _containers_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return the containers that a meta model has copied of an attribute."""
    if depth == _CONTAINER_DEPTH or type(value) not in _CONTAINERS or len(value) > _ENTRIES:
        return
    if type(value) is not tuple:
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        yield from _containers_in(item, depth + 1)


def _lies_at(value: Any, storage: int) -> bool:
    return isinstance(value, Tensor) and not value.is_meta and value.untyped_storage().data_ptr() == storage
