"""Kinds of the functions that simulations observe."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autoada.prediction.operations import Kind, kind_of


def test_data_of_a_tensor_is_an_alias() -> None:
    kinds = []

    class Observer(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kinds.append(kind_of(func))
            return func(*args, **(kwargs or {}))

    with Observer():
        _ = torch.zeros(()).data
    assert kinds[-1] is Kind.ALIAS
