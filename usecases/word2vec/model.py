"""The model in plain PyTorch."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

NUMBERS_AT_ONCE = 1 << 18
"""Number of floats of context vectors that are processed together, so that they fit into a core's cache."""


class SkipGram(nn.Module):
    """Vectors of words, and vectors of their contexts (Mikolov et al., NIPS 2013).

    Parameters
    ----------
    words, dim : int
        Number of rows of each of the two tables, and width of a row.
    generator : torch.Generator
        Random generator for the initial vectors of words. The vectors of contexts start at 0.
    """

    def __init__(self, words: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        initial = torch.empty(words, dim).uniform_(-0.5 / dim, 0.5 / dim, generator=generator)
        self.inputs, self.outputs = (
            nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
            for weight in (initial, torch.zeros(words, dim))
        )

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Return logits that words occur near others, or vectors of words.

        Parameters
        ----------
        words : Tensor
            Words, int64 (n,).
        contexts : Tensor, optional
            Contexts, int64 (n, k): k words for each word.

        Returns
        -------
        Tensor
            Logits, float32 (n, k); without contexts the words' vectors, (n, dim).
        """
        if contexts is None:
            vectors: Tensor = self.inputs(words)
            return vectors
        # Words occur repeatedly in a batch. Each row is read once, and its gradient is summed once.
        inputs, one = words.unique(return_inverse=True)
        outputs, others = contexts.unique(return_inverse=True)
        rows = self.inputs(inputs), self.outputs(outputs)
        logits: Tensor = _Products.apply(*rows, one, others)  # type: ignore[no-untyped-call]
        return logits


class _Products(torch.autograd.Function):
    """Products of rows ``inputs[one[n]]`` and ``outputs[others[n, k]]``, (n, k), with good cache locality.

    An array of the rows themselves, one for each pair, would be many times larger than the caches.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, outputs: Tensor, one: Tensor, others: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, outputs, one, others)
        found = [
            torch.bmm(inputs[word][:, None], outputs[near].transpose(1, 2))[:, 0]
            for word, near in _parts(inputs, one, others)
        ]
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs, one, others = ctx.saved_tensors
        of_inputs, of_outputs = torch.zeros_like(inputs), torch.zeros_like(outputs)
        done = 0
        for word, near in _parts(inputs, one, others):
            gradient = gradients[0][done : done + len(word)]
            done += len(word)
            of_inputs.index_add_(0, word, torch.bmm(gradient[:, None], outputs[near])[:, 0])
            of_near = gradient[:, :, None] * inputs[word][:, None]
            of_outputs.index_add_(0, near.flatten(), of_near.flatten(0, 1))
        return of_inputs, of_outputs, None, None


def _parts(inputs: Tensor, one: Tensor, others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    some = max(1, NUMBERS_AT_ONCE // (inputs.shape[1] * others.shape[1]))
    return zip(one.split(some), others.split(some), strict=True)
