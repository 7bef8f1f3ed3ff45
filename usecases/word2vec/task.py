"""The use case `word2vec`: word vectors by skip-gram with negative sampling, with held-out loss as metric."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from adabench.usecases.common.batches import (
    DealsBatches,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    evaluating,
    strided_share,
)
from adabench.usecases.common.negatives import Weighted
from adabench.usecases.common.validation import require_positive, require_sizes, require_weight
from adabench.usecases.interface import Loaders, Params
from adabench.usecases.word2vec.analogies import accuracy
from adabench.usecases.word2vec.data import Sentences, load
from adabench.usecases.word2vec.model import SkipGram
from adabench.usecases.word2vec.pairs import correlation
from adabench.usecases.word2vec.windows import Batch, Windows

FLATTENED = 0.75
"""Exponent of the words' counts in the probability to draw them."""


class Word2VecParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `word2vec`.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of sentences per step and worker.
    dim : int
        Number of floats of a word's vector.
    lr : float
        Learning rate of the optimizer.
    window : int
        Maximum distance between a word and its contexts, in words.
    negatives : int
        Number of words drawn for each pair.
    sample : float
        Approximate share of the text above which a word is randomly omitted; 0 omits no words.
    min_count : int
        Minimum number of occurrences in the training split. Rarer words are removed, except from generated
        text.
    words : int
        Number of words to generate if no data are given.
    """

    epochs: int = 4
    batch: int = 32
    dim: int = 32
    lr: float = 0.1
    window: int = 5
    negatives: int = 5
    sample: float = 1e-3
    min_count: int = 5
    words: int = 200_000

    def __post_init__(self) -> None:
        require_sizes(self, ("epochs", "batch", "dim", "window", "negatives", "min_count", "words"))
        require_positive(self, ("lr",))
        require_weight(self, ("sample",))


class Word2VecUseCase(DealsBatches[Word2VecParams]):
    """Learns which words occur near each other (Mikolov et al., NIPS 2013).

    `adabench.usecases.word2vec.read` describes the formats of `data`. The seed determines the initial
    vectors, the order of the data and the random draws, but not the data or their splits.
    """

    name: ClassVar[str] = "word2vec"
    Params: ClassVar[type[Params]] = Word2VecParams
    metric: ClassVar[str] = "loss"
    maximize: ClassVar[bool] = False
    tolerance: ClassVar[float] = 0.02

    def __init__(self, params: Word2VecParams, data: Path | None, seed: int) -> None:
        super().__init__(params, seed)
        self.text = load(data, params.words, params.min_count)
        self._fingerprint = self.text.fingerprint
        self._kept = _kept(self.text.counts, params.sample)
        self._drawn = Weighted(self.text.counts**FLATTENED)

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        return SkipGram(len(self.text.counts), self._params.dim, generator)

    def loaders(self, rank: int, world: int) -> Loaders:
        text, batch = self.text, self._params.batch
        sizes = self._sizes(rank, world)
        share = strided_share(text.train.size, rank, sizes, "sentences")
        shuffled = ShuffledBatches(share, sizes[rank], self._seed, rank)
        in_order = (
            batch_loader(self._windows(split), OrderedBatches(np.arange(split.size), batch))
            for split in (text.valid, text.test)
        )
        return Loaders(batch_loader(self._windows(text.train), shuffled), *in_order)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean over the pairs of -log sigmoid of the near logit and the negated drawn logits."""
        # A step may have no pairs, because words are randomly omitted.
        return self._losses(model, batch).sum() / max(1, len(batch.words))

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Return the mean loss of held-out pairs, with equal draws in every epoch, and word similarities.

        Each file of word pairs, or the topics of generated words, has a metric: Spearman's correlation
        between its scores and the cosines of vectors, over the pairs with known words. Each file of analogies
        also has a metric: the share of correctly answered questions.
        """
        count, total = 0, 0.0
        with evaluating(model):
            for batch in loader:
                total += float(self._losses(model, batch).sum(dtype=torch.float64))
                count += len(batch.words)
            found = {
                name: correlation(pairs, model(torch.from_numpy(pairs.words.reshape(-1))))
                for name, pairs in self.text.pairs.items()
            }
            for name, analogies in self.text.analogies.items():
                found[name] = accuracy(analogies, model(torch.arange(analogies.candidates)))
        if count == 0:
            raise ValueError("the loader to evaluate over is empty: it must hold at least one pair of words")
        return {"loss": total / count, **found}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        return {"inputs.weight": batch.words, "outputs.weight": batch.contexts.flatten()}

    def samples(self, batch: Batch) -> int:
        return len(batch.words)

    def _losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each pair."""
        logits: Tensor = model(batch.words, batch.contexts)
        near, drawn = batch.contexts[:, :1], batch.contexts[:, 1:]
        # A drawn word that is near is not a negative.
        against = softplus(logits[:, 1:]).masked_fill(drawn == near, 0)
        return softplus(-logits[:, 0]) + against.sum(1)

    def _windows(self, sentences: Sentences) -> Windows:
        params = self._params
        return Windows(sentences, self._kept, params.window, params.negatives, self._drawn)


def _kept(counts: NDArray[np.int64], sample: float) -> Tensor:
    """Return the probability to keep each word, by word2vec.c's formula, which differs from the paper."""
    if sample == 0:
        return torch.ones(len(counts))
    ratio = sample * counts.sum() / np.maximum(counts, 1)
    return torch.from_numpy(np.minimum(1, np.sqrt(ratio) + ratio)).float()
