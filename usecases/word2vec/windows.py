"""Words with their contexts, and randomly drawn words as negatives."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from adabench.usecases.common.batches import Draw, generator_of, numbers_of_ranges
from adabench.usecases.common.negatives import Weighted
from adabench.usecases.word2vec.data import Sentences


class Batch(NamedTuple):
    """Pairs of words that occur near each other, and drawn words for each.

    Attributes
    ----------
    words : Tensor
        Words, int64 (pairs,).
    contexts : Tensor
        Contexts, int64 (pairs, 1 + k). A row begins with the near word.
    """

    words: Tensor
    contexts: Tensor


class Windows(Dataset[Batch]):
    """Sentences by their indices, as pairs of words.

    Frequent words are randomly omitted before windows are formed. Each word's window has a random width, from
    1 to `window`, on both sides.

    Parameters
    ----------
    sentences : Sentences
        Sentences of a split.
    kept : Tensor
        Probability of each word to be kept, float32 (words,).
    window, negatives : int
        Maximum number of words on each side, and number of words drawn for each pair.
    drawn : Weighted
        Distribution for the drawn words.
    """

    def __init__(
        self, sentences: Sentences, kept: Tensor, window: int, negatives: int, drawn: Weighted
    ) -> None:
        self._sentences = sentences
        self._text = torch.from_numpy(sentences.words)
        self._kept, self._window = kept, window
        self._negatives, self._drawn = negatives, drawn

    def __getitem__(self, draw: Draw) -> Batch:
        generator = generator_of(draw)
        words, sentence = self._some(draw.rows.numpy())
        stays = torch.rand(len(words), generator=generator) < self._kept[words]
        words, sentence = words[stays], sentence[stays]
        pairs = _near(sentence, self._window, generator)
        shape = (pairs.shape[1], self._negatives)
        drawn = self._drawn(shape, generator)
        return Batch(words[pairs[0]], torch.cat([words[pairs[1]][:, None], drawn], dim=1))

    def _some(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the words of some sentences, and the index of each word's sentence."""
        starts = self._sentences.starts
        sentence, places = numbers_of_ranges(starts[rows], starts[rows + 1])
        return self._text[torch.from_numpy(places)].long(), torch.from_numpy(sentence)


def _near(sentence: Tensor, window: int, generator: torch.Generator) -> Tensor:
    """Return positions of words, and positions of other words in their windows: int64 (2, pairs)."""
    count = len(sentence)
    widths = torch.randint(1, window + 1, (count,), generator=generator)
    steps = torch.cat([torch.arange(-window, 0), torch.arange(1, window + 1)])
    places = torch.arange(count)
    others = places[:, None] + steps
    inside = (others >= 0) & (others < count) & (steps.abs() <= widths[:, None])
    inside &= sentence[others.clamp(0, max(0, count - 1))] == sentence[:, None]
    of, step = inside.nonzero(as_tuple=True)
    return torch.stack([of, others[of, step]])
