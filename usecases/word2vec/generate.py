"""Generates a text with sentences about topics, so that words of one topic are similar."""

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.validation import require_memory

SEED = 20_131_016
"""Constant, so that equal numbers of words give equal data for all seeds of runs."""

LENGTH = 20
"""Number of words of a sentence."""
TOPICS = 40
COMMON = 60
"""Number of words without a topic, which can occur anywhere."""
COMMON_SHARE = 0.4
WORDS_PER_NAME = 60
"""Number of words of the text for each different word."""
SKEW = 0.8
"""Exponent of a word's probability within its topic, which falls with its rank."""
PAIRS = 1000
BYTES_PER_WORD = 100
"""Memory during generation."""


def generate(count: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], int]:
    """Draw sentences of about `count` words in total; equal numbers give equal sentences.

    Returns
    -------
    sentences : array
        Words of the sentences, int32 (sentences, LENGTH).
    pairs : array
        Pairs of words from topics, int64 (2, pairs). In half of them, both words have the same topic.
    alike : array
        Whether a pair's words have the same topic, 1 or 0, float64 (pairs,).
    words : int
        Maximum number of different words.

    Raises
    ------
    DataError
        If the words exceed the machine's memory.
    """
    require_memory("words", count, BYTES_PER_WORD)
    rng = np.random.default_rng(SEED)
    shape = max(1, count // LENGTH), LENGTH
    own = max(2, count // WORDS_PER_NAME // TOPICS)  # number of words of a topic
    topics = rng.integers(TOPICS, size=shape[0])
    drawn = COMMON + topics[:, None] * own + _skewed(rng, own, shape)
    anywhere = rng.random(shape) < COMMON_SHARE
    drawn[anywhere] = _skewed(rng, COMMON, (int(anywhere.sum()),))
    first = rng.integers(TOPICS, size=PAIRS)
    second = np.where(
        np.arange(PAIRS) % 2 == 0, first, (first + rng.integers(1, TOPICS, size=PAIRS)) % TOPICS
    )
    pairs = np.stack([COMMON + topic * own + _skewed(rng, own, (PAIRS,)) for topic in (first, second)])
    pairs = pairs[:, pairs[0] != pairs[1]]
    alike = (pairs - COMMON) // own
    words = COMMON + TOPICS * own
    numbers = rng.permutation(words)  # hides the topics from the words' numbers
    return (numbers[drawn].astype(np.int32), numbers[pairs], (alike[0] == alike[1]).astype(np.float64), words)


def _skewed(rng: np.random.Generator, words: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    weights = np.arange(1, words + 1) ** -SKEW
    drawn: NDArray[np.int64] = rng.choice(words, size=shape, p=weights / weights.sum())
    return drawn
