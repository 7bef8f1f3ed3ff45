"""Tables for ids of any value."""

from typing import Literal

import torch
from torch import nn

Keys = Literal["dense", "hash"]
"""Kinds of keys of a table: numbers of rows, for which all ids are numbered before training; ids as in the
data, whose rows are created at their first use."""
KEYS: tuple[Keys, ...] = ("dense", "hash")


def hash_table(capacity: int, length: int, std: float, generator: torch.Generator) -> nn.Module:
    """Return an embedding for at most `capacity` ids of any value, with sparse gradients.

    Initial values are normal with mean 0 and deviation `std`, and depend on a number drawn from `generator`.
    """
    # Other use cases need no module of autoada, and start faster without it.
    import adaps
    from autoada.hash_embedding import HashEmbedding

    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return HashEmbedding(length, capacity, init=adaps.Normal(0.0, std, seed), sparse=True)
