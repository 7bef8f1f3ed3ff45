"""Optimizers for use cases."""

from typing import Literal

import torch
from torch import nn

OptimizerName = Literal["adagrad", "sgd"]
OPTIMIZERS: tuple[OptimizerName, ...] = ("adagrad", "sgd")


def make_optimizer(model: nn.Module, lr: float, name: OptimizerName = "adagrad") -> torch.optim.Optimizer:
    """Return one optimizer for all parameters, including parameters with sparse gradients."""
    # This is Torch's default. It is set explicitly, because Torch otherwise warns when the optimizer gets a
    # sparse gradient.
    torch.sparse.check_sparse_tensor_invariants.disable()
    if name == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr)
