"""Analogies (Mikolov et al., 2013), such as the word that relates to Greece as Berlin relates to Germany."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common.text_columns import readable
from adabench.usecases.interface import DataError
from adabench.usecases.word2vec.read import normal

FORMAT = "lines of four words, of which the last is the answer"
CANDIDATES = 30_000
"""Answers and words of questions are among this number of the most frequent words."""
_AT_ONCE = 512


class Analogies(NamedTuple):
    """Questions with four known words.

    Attributes
    ----------
    words : array
        Words of the questions, int64 (4, n): a word, its related word, another word, and the answer.
    candidates : int
        Number of words that can be answers; these are the words with the lowest numbers.
    """

    words: NDArray[np.int64]
    candidates: int


def read_analogies(path: Path, numbers: Mapping[str, int]) -> Analogies:
    """Return the questions of a file whose words are candidates. Lines that begin with ``:`` are headings.

    Raises
    ------
    DataError
        If the file cannot be read, or if no question consists of candidates.
    """
    with readable(path, f"it must have {FORMAT}"):
        lines = normal(path.read_text("utf-8-sig")).splitlines()
    found, count = list[list[int]](), 0
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith(":"):
            continue
        if len(words) != 4:
            raise DataError(f"{path}, line {number}: {line[:60]!r} must be one of {FORMAT}")
        count += 1
        known = [numbers.get(word, CANDIDATES) for word in words]
        if max(known) < CANDIDATES:
            found.append(known)
    if not found:
        raise DataError(
            f"{path}: each of the {count} questions has a word that is too rare in the text: at least one "
            "question must have frequent words only"
        )
    return Analogies(np.array(found, dtype=np.int64).T, min(CANDIDATES, len(numbers)))


def accuracy(analogies: Analogies, vectors: Tensor) -> float:
    """Return the share of questions whose answer is the word with the nearest vector.

    The nearest vector is determined by the cosine to the second vector minus the first plus the third, all
    normalized. The words of the question are excluded.

    Returns
    -------
    float
        Share in [0, 1]; NaN if a vector contains NaN.
    """
    if torch.isnan(vectors).any():
        return float("nan")
    units = torch.nn.functional.normalize(vectors)
    right = 0
    for questions in torch.from_numpy(analogies.words).split(_AT_ONCE, dim=1):
        one, its, other, answer = questions
        near = (units[its] - units[one] + units[other]) @ units.T
        near.scatter_(1, questions[:3].T, -torch.inf)
        right += int((near.argmax(dim=1) == answer).sum())
    return right / len(analogies.words[0])
