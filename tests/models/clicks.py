"""Clicks as the libraries of click-through models take them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

BATCH = 128
FIELDS = 8
ROWS = 1000
LENGTH = 16


def categories(generator: Generator) -> tuple[Tensor, Tensor]:
    """Ids of shape (samples, fields), and labels."""
    ids = torch.randint(0, ROWS, (BATCH, FIELDS), generator=generator)
    return ids, labels(generator)


def labels(generator: Generator) -> Tensor:
    return torch.randint(0, 2, (BATCH,), generator=generator).float()


def cross_entropy(model: Any, batch: tuple[Any, Tensor]) -> Tensor:
    """For models that give probabilities."""
    inputs, label = batch
    return F.binary_cross_entropy(model(inputs), label)
