"""The part of a wrapped model's checkpoint that is not in the server's tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adaps import CheckpointError
from adaps.checkpoint.safetensors_file import DTYPES
from autoada.model.staleness import StalenessLimit
from autoada.model.wrapped_parameters import WrappedParameters
from autoada.optimizer.schedules import options_of, set_options
from autoada.prediction.random_generators import random_state, set_random_state
from autoada.training.loader_state import Positioned

if TYPE_CHECKING:
    from adaps.checkpoint import Restored

_BYTES = {torch.uint16, torch.uint32, torch.uint64}
_PLAIN = {torch.from_numpy(np.empty(0, dtype)).dtype for dtype in DTYPES.values()} - _BYTES
"""Dtypes of arrays in files. Values of other dtypes, such as bfloat16, are stored as bytes."""


@dataclass(eq=False)
class WorkerState:
    """State of one worker: buffers, options of optimizers, random generators, steps, position in the data."""

    _module: nn.Module
    _optimizers: Sequence[torch.optim.Optimizer]
    _wrapped: WrappedParameters
    _device: torch.device
    _staleness: StalenessLimit

    def take(self, loader: Positioned | None, extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the complete state and the user's `extra`, as an argument of `adaps.Node.checkpoint`."""
        parts: dict[str, Mapping[str, Any]] = {
            "buffer": {name: _array(buffer) for name, buffer in self._module.named_buffers()},
            "steps": {state.name: state.steps for state in self._wrapped.parameter_states},
            "dense": self._wrapped.dense_shapes,
            "training": {"steps": self._staleness.steps},
            "random": random_state(self._device),
            "extra": extra or {},
        }
        if loader is not None:
            parts["position"], parts["start"] = loader.position.state()
        parts["options"] = {str(i): options_of(group) for i, group in enumerate(self._groups())}
        parts["shared"] = {
            name: kept for each in self._wrapped.stepped for name, kept in each.state().items()
        }
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def check(self, restored: Restored) -> None:
        """Raise CheckpointError if `put` would give values to other parameters or buffers than they had."""
        parts = _parts(restored)
        dense = self._wrapped.dense_shapes
        saved = parts.get("dense", dense)  # Earlier versions kept no shapes.
        for one, other in itertools.zip_longest(saved.items(), dense.items()):
            if one != other:
                raise CheckpointError(
                    f"the checkpoint has {_described(one)} where the model has {_described(other)}: restore "
                    "into a model that defines the same parameters in the same order"
                )
        kept = {name: _form(array) for name, array in parts.get("buffer", {}).items()}
        for name, buffer in self._module.named_buffers():
            form = _form(_array(buffer))
            if kept.get(name) != form and (name in kept or self._is_persistent(name)):
                raise CheckpointError(
                    f"the buffer {name!r} is {form} in the model and {kept.get(name, 'not there')} in the "
                    "checkpoint: restore into the same model"
                )
        for stepped in self._wrapped.stepped:
            stepped.check_state(parts.get("shared", {}))

    def put(self, restored: Restored, loader: Positioned | None, shares: int) -> dict[str, Any]:
        """Restore the state of a checkpoint for `shares` workers, and return the user's part."""
        parts = _parts(restored)
        for name, buffer in self._module.named_buffers():
            if name in parts.get("buffer", {}):
                with torch.no_grad():
                    buffer.copy_(_tensor(parts["buffer"][name], buffer))
        for state in self._wrapped.parameter_states:
            state.restore_steps(parts.get("steps", {}).get(state.name))
        self._staleness.resume(parts.get("training", {}).get("steps", 0))
        for i, group in enumerate(self._groups()):
            set_options(group, parts.get("options", {}).get(str(i), {}))
        for stepped in self._wrapped.stepped:
            stepped.set_state(parts["shared"])
        if loader is not None and "position" in parts:
            start = parts.get("start") if restored.same_workers else None
            loader.position.resume(parts["position"], start, restored.shares / shares)
        if restored.same_workers and "random" in parts:
            set_random_state(parts["random"], self._device)
        return parts.get("extra", {})

    def _is_persistent(self, buffer: str) -> bool:
        """Whether a buffer is a part of state dictionaries. Others may appear during training."""
        module, _, name = buffer.rpartition(".")
        return name not in self._module.get_submodule(module)._non_persistent_buffers_set

    def _groups(self) -> list[dict[str, Any]]:
        """Return the groups of all optimizers, which may have been replaced since the last call."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]


def _parts(restored: Restored) -> dict[str, dict[str, Any]]:
    """Return the values of each part of a worker's state, by their names."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in restored.extra.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = value
    return parts


def _described(dense: tuple[str, Sequence[int]] | None) -> str:
    if dense is None:
        return "no further dense parameter"
    name, shape = dense
    return f"the dense parameter {name!r} of shape {tuple(shape)}"


def _form(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    host = tensor.detach().to("cpu").contiguous()
    return (host if host.dtype in _PLAIN else host.view(-1).view(torch.uint8)).numpy()


def _tensor(array: npt.NDArray[Any], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return tensor if like.dtype in _PLAIN else tensor.view(like.dtype).reshape(like.shape)
