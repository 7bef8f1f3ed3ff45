"""Wide & Deep (Cheng et al. 2016) for Criteo: the sum of the logits of a linear model and of a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from adabench.usecases.common.hashing import hash_table
from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS

EMBEDDING_STD = 0.01
"""Standard deviation of initial embeddings. It is small, so that untrained ids hardly affect a prediction."""


class WideAndDeep(nn.Module):
    """A model that returns the logits of clicks.

    Parameters
    ----------
    rows : int
        Number of rows of the two embedding tables: distinct ids of all fields, or their maximum number.
    dim : int
        Width of a deep embedding.
    hidden : sequence of int
        Widths of the perceptron's hidden layers, at least one.
    wide : bool
        Whether there is a linear model in addition to the perceptron.
    generator : torch.Generator
        Random generator for the initial weights. The global generator is not used, so threads can create
        models concurrently.
    hashed : bool
        Whether ids can have any value. The weight of the linear model is then the first number of an
        embedding's row, so that each id is looked up once. It begins with a random value instead of 0.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        hidden: Sequence[int],
        wide: bool,
        generator: torch.Generator,
        *,
        hashed: bool = False,
    ) -> None:
        super().__init__()
        # Constructors would draw from the global generator. On the meta device, an embedding's constructor
        # would also import a large part of torch.
        self.wide = _table(rows, 1) if wide and not hashed else None
        self.wide_dense = skip_init(nn.Linear, DENSE_FIELDS, 1) if wide else None
        self.deep = hash_table(rows, dim + wide, EMBEDDING_STD, generator) if hashed else _table(rows, dim)
        self._widths = [int(wide), dim]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([DENSE_FIELDS + SPARSE_FIELDS * dim, *hidden]):
            layers += [skip_init(nn.Linear, inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, skip_init(nn.Linear, hidden[-1], 1))
        self._initialise(generator)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return logits (batch,) of dense features (batch, 13) and ids (batch, 26)."""
        embedded = self.deep(ids)
        weights = None if self.wide is None else self.wide(ids)
        if weights is None and self.wide_dense is not None:
            weights, embedded = embedded.split(self._widths, dim=-1)
        logits: Tensor = self.mlp(torch.cat([dense, embedded.flatten(start_dim=1)], dim=1))
        if weights is not None and self.wide_dense is not None:
            logits = weights.sum(dim=1) + self.wide_dense(dense) + logits
        return logits.squeeze(1)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        if self.wide is not None:
            nn.init.zeros_(self.wide.weight)
        if self.wide_dense is not None:
            nn.init.zeros_(self.wide_dense.weight)
            nn.init.zeros_(self.wide_dense.bias)
        if isinstance(self.deep, nn.Embedding):
            nn.init.normal_(self.deep.weight, std=EMBEDDING_STD, generator=generator)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
                nn.init.zeros_(layer.bias)


def _table(rows: int, dim: int) -> nn.Embedding:
    """Return an embedding with sparse gradients, whose weight is not initialised."""
    weight = torch.empty(rows, dim)
    table: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
    return table
