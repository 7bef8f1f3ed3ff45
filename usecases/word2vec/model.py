"""The model: plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SkipGram"]


class SkipGram(nn.Module):
    """Vectors of words, and vectors of what stands around them (Mikolov et al., NIPS 2013).

    Parameters
    ----------
    words, dim : int
        Rows of each of the two tables, and numbers in a row.
    generator : torch.Generator
        Where the initial vectors of words come from; those of contexts are 0.
    """

    def __init__(self, words: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        initial = torch.empty(words, dim).uniform_(-0.5 / dim, 0.5 / dim, generator=generator)
        self.inputs, self.outputs = (
            nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
            for weight in (initial, torch.zeros(words, dim))
        )

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Logits that words stand near others, or vectors of words.

        Parameters
        ----------
        words : Tensor
            int64 (n,).
        contexts : Tensor, optional
            int64 (n, k): k words for each.

        Returns
        -------
        Tensor
            float32 (n, k); without contexts the words' vectors, (n, dim).
        """
        vectors: Tensor = self.inputs(words)
        if contexts is None:
            return vectors
        return torch.einsum("nd,nkd->nk", vectors, self.outputs(contexts))
