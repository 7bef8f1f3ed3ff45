"""A quick regression in place of slower models, for tests of what surrounds them."""

from typing import Any

import numpy as np
import pytest

from adabench.analysis import regression


class Line:
    """Ordinary least squares of a target."""

    def __init__(self, features: Any, target: Any) -> None:
        self._centre, self._mean = features.mean(axis=0), target.mean()
        self._weights = np.linalg.lstsq(features - self._centre, target - self._mean)[0]

    def predict(self, features: Any) -> Any:
        """The target of each row."""
        return (features - self._centre) @ self._weights + self._mean


def fits_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let regressions fit a line wherever they would fit a process or trees."""
    monkeypatch.setattr(regression, "_fitted", lambda learn, features, target: [Line(features, target)])
