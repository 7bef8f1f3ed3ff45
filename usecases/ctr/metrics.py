"""Quality of predicted click probabilities: log-loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def logloss(labels: NDArray[np.generic], logits: NDArray[np.float64]) -> float:
    """Return the mean negative log-likelihood, in nats, of labels at probabilities sigmoid(logits)."""
    signed = np.where(labels == 1, -logits, logits)
    with np.errstate(invalid="ignore"):  # the NaN of a diverged model is the result, not an error here
        return float(np.logaddexp(0.0, signed).mean())
