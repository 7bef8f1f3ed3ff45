"""gensim's skip-gram with negative sampling, in one thread, on the same sentences; only for `word2vec`.

Vector size, window, negatives, subsampling and epochs are taken from the use case. The learning rate is
gensim's, and decreases linearly over all epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from adabench.backends.external._shared import PeerBackend, PeerSession, require_usecase
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import WorkerContext
from adabench.usecases.interface import UseCase


class GensimOptions(BackendOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `gensim`.

    Attributes
    ----------
    first_rate : float
        Learning rate of the first step. Later steps have lower rates.
    last_rate : float
        Learning rate of the last step.
    """

    first_rate: float = 0.025
    last_rate: float = 0.0001


class Gensim(PeerBackend):
    name = "gensim"
    Options = GensimOptions
    packages = ("gensim",)

    def open(self, usecase: UseCase, context: WorkerContext, options: GensimOptions) -> GensimSession:
        require_usecase(self.name, usecase, "word2vec")
        return GensimSession(usecase, context, options)


class GensimSession(PeerSession):
    def __init__(self, usecase: Any, context: WorkerContext, options: GensimOptions) -> None:
        from gensim.models.word2vec import Word2Vec

        self.model: nn.Module = usecase.model()
        self._options, self._epochs, self._epoch = options, usecase.params.epochs, 0
        counts, train = usecase.text.counts, usecase.text.train
        self._sentences = [
            [str(word) for word in train.words[start:end]]
            for start, end in zip(train.starts, train.starts[1:], strict=False)
        ]
        params = usecase.params
        self._theirs = Word2Vec(
            vector_size=params.dim,
            window=params.window,
            negative=params.negatives,
            sample=params.sample,
            sg=1,
            min_count=0,
            workers=1,
            seed=context.seed,
        )
        self._theirs.build_vocab_from_freq(
            {str(word): int(count) for word, count in enumerate(counts)}, corpus_count=train.size
        )
        # gensim does not count pairs. The use case's draws contain about as many.
        self._pairs: int = sum(usecase.samples(batch) for batch in usecase.loaders(0, 1).train)

    def train_epoch(self, loader: Iterable[Any]) -> int:
        first, last = self._options.first_rate, self._options.last_rate
        begin, end = (
            first + (last - first) * epoch / self._epochs for epoch in (self._epoch, self._epoch + 1)
        )
        self._theirs.train(
            self._sentences, total_examples=len(self._sentences), epochs=1, start_alpha=begin, end_alpha=end
        )
        self._epoch += 1
        return self._pairs

    def synchronize(self) -> None:
        """Copy the learned rows into the model that the use case evaluates."""
        vectors = self._theirs.wv
        places = torch.tensor([vectors.key_to_index[str(word)] for word in range(len(vectors))])
        self.model.load_state_dict(
            {
                "inputs.weight": torch.from_numpy(vectors.vectors)[places],
                "outputs.weight": torch.from_numpy(self._theirs.syn1neg)[places],
            }
        )


BACKEND = Gensim
