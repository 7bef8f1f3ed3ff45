"""The optimizers that use cases train with."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

__all__ = ["OPTIMIZERS", "OptimizerName", "make_optimizer"]

OptimizerName = Literal["adagrad", "sgd"]
OPTIMIZERS: tuple[OptimizerName, ...] = ("adagrad", "sgd")


def make_optimizer(model: nn.Module, lr: float, name: OptimizerName = "adagrad") -> torch.optim.Optimizer:
    """One optimizer of all parameters, also of those whose gradients are sparse."""
    # Torch's default, but chosen: without a choice it warns when a sparse gradient reaches the optimizer.
    torch.sparse.check_sparse_tensor_invariants.disable()
    if name == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr)
