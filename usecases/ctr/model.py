"""Wide & Deep (Cheng et al. 2016) for Criteo: the sum of the logits of a linear model and of a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
        Whether ids can have any value.
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
        make = partial(hash_table, generator=generator) if hashed else _table
        self.wide = make(rows, 1, 0.0) if wide else None
        self.wide_dense = skip_init(nn.Linear, DENSE_FIELDS, 1) if wide else None
        self.deep = make(rows, dim, EMBEDDING_STD)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([DENSE_FIELDS + SPARSE_FIELDS * dim, *hidden]):
            layers += [skip_init(nn.Linear, inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, skip_init(nn.Linear, hidden[-1], 1))
        self._initialise(generator)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return logits (batch,) of dense features (batch, 13) and ids (batch, 26)."""
        logits: Tensor = self.mlp(torch.cat([dense, self.deep(ids).flatten(start_dim=1)], dim=1))
        if self.wide is not None and self.wide_dense is not None:
            logits = self.wide(ids).sum(dim=1) + self.wide_dense(dense) + logits
        return logits.squeeze(1)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        if self.wide is not None and self.wide_dense is not None:
            if isinstance(self.wide, nn.Embedding):
                nn.init.zeros_(self.wide.weight)
            nn.init.zeros_(self.wide_dense.weight)
            nn.init.zeros_(self.wide_dense.bias)
        if isinstance(self.deep, nn.Embedding):
            nn.init.normal_(self.deep.weight, std=EMBEDDING_STD, generator=generator)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
                nn.init.zeros_(layer.bias)


def _table(rows: int, dim: int, std: float) -> nn.Embedding:
    """Return an embedding with sparse gradients, whose weight is not initialised."""
    weight = torch.empty(rows, dim)
    table: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
    return table
