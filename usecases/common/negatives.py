"""Random draws of negative samples."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Uniform:
    """Draws rows with equal probabilities."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return drawn row numbers, int64."""
        return torch.randint(self._rows, shape, generator=generator)


class Weighted:
    """Draws rows with probabilities proportional to weights.

    Parameters
    ----------
    weights : array
        Weight of each row, (rows,): not negative, and at least one is positive.
    """

    def __init__(self, weights: NDArray[np.floating[Any]]) -> None:
        sums = np.cumsum(weights, dtype=np.float64)
        self._until = torch.from_numpy(sums / sums[-1])
        self._last = int(np.flatnonzero(weights)[-1])

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return drawn row numbers, int64."""
        places = torch.rand(shape, generator=generator, dtype=torch.float64)
        return torch.searchsorted(self._until, places, right=True).clamp_(max=self._last)
