"""Random draws of a simulation: made by a private generator, and given again to the real forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autoada.prediction.operations import Arguments, CallMode, Keywords, Kind, TorchFunction, kind_of, name_of
from autoada.prediction.result import Draw


def draw(
    function: TorchFunction, args: Sequence[Any], kwargs: Mapping[str, Any], generator: torch.Generator
) -> Any:
    """Call the random `function` with `generator`, also if its form takes none."""
    name = name_of(function)
    if kwargs.get("generator") is not None:
        return function(*args, **kwargs)
    if not name.endswith("_like"):
        return function(*args, **kwargs, generator=generator)
    template = args[0]
    options = {key: value for key, value in kwargs.items() if key != "memory_format"}
    options.setdefault("dtype", template.dtype)
    options["generator"] = generator
    shape = tuple(template.shape)
    if name == "rand_like":
        return torch.rand(shape, **options)
    if name == "randn_like":
        return torch.randn(shape, **options)
    low, high = args[1:] if len(args) > 2 else (0, args[1])
    return torch.randint(low, high, shape, **options)


class ReplayDraws(CallMode):
    """Gives the real forward the draws of the simulation, if row ids depend on them.

    Draws are counted in the order of the forward; one that is not in `draws` is made as usual.
    """

    def __init__(self, draws: Mapping[int, Draw]) -> None:
        super().__init__()
        self._draws = draws
        self._number = 0

    def call(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        if kind_of(func) is not Kind.RANDOM:
            return func(*args, **kwargs)
        known = self._draws.get(self._number)
        self._number += 1
        if known is None or known.function != name_of(func):
            return func(*args, **kwargs)
        if known.function.endswith("_"):
            return args[0].copy_(known.value)
        device = kwargs.get("device") or (args[0].device if known.function.endswith("_like") else None)
        # a draw of the simulation was made under inference mode; autograd must be able to save it
        return known.value.to(device).clone()
