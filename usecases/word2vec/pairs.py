"""Word pairs with similarity scores, such as WordSim-353."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common.rank_statistics import mean_ranks
from adabench.usecases.common.text_columns import readable
from adabench.usecases.interface import DataError
from adabench.usecases.word2vec.read import normal

FORMAT = "lines of two words and a number, separated by tabs"
FEWEST = 3
"""Minimum number of pairs for a meaningful rank correlation."""


class Pairs(NamedTuple):
    """Pairs of known words.

    Attributes
    ----------
    words : array
        Words of the pairs, int64 (2, n).
    scores : array
        Similarity scores, float64 (n,). Higher scores mean more similar words.
    """

    words: NDArray[np.int64]
    scores: NDArray[np.float64]


def read_pairs(path: Path, numbers: Mapping[str, int]) -> Pairs:
    """Return the pairs of a file with known words. Lines that begin with ``#`` are comments.

    Raises
    ------
    DataError
        If the file cannot be read, or if fewer than `FEWEST` pairs have known words.
    """
    with readable(path, f"it must have {FORMAT}"):
        lines = path.read_text("utf-8-sig").splitlines()
    found, scores, count = list[tuple[int, int]](), list[float](), 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        count += 1
        cells = line.split("\t")
        try:
            one, other, score = normal(cells[0].strip()), normal(cells[1].strip()), float(cells[2])
        except (IndexError, ValueError) as error:
            raise DataError(f"{path}, line {number}: {line[:60]!r} must be one of {FORMAT}") from error
        if not np.isfinite(score):
            raise DataError(f"{path}, line {number}: {line[:60]!r} must have a finite number")
        if one in numbers and other in numbers:
            found.append((numbers[one], numbers[other]))
            scores.append(score)
    if len(found) < FEWEST:
        raise DataError(
            f"{path}: both words are frequent enough in the text for {len(found)} of {count} pairs: at least "
            f"{FEWEST} such pairs are needed"
        )
    return Pairs(np.array(found, dtype=np.int64).T, np.array(scores))


def correlation(pairs: Pairs, vectors: Tensor) -> float:
    """Return Spearman's rank correlation between the scores and the cosines of vectors.

    Parameters
    ----------
    pairs : Pairs
        Word pairs with scores.
    vectors : Tensor
        Vectors of all pairs' words, (2 n, dim): first the first words, then the second words.

    Returns
    -------
    float
        Correlation in [-1, 1]; 0 if all cosines or all scores are equal, NaN if a cosine is NaN.
    """
    one, other = vectors.chunk(2)
    cosines = torch.cosine_similarity(one.double(), other.double()).numpy()
    if np.isnan(cosines).any():
        return float("nan")
    ranks = [mean_ranks(values) for values in (cosines, pairs.scores)]
    centred = [values - values.mean() for values in ranks]
    scale = np.sqrt(np.prod([values @ values for values in centred]))
    return float(centred[0] @ centred[1] / scale) if scale > 0 else 0.0
