"""Matrix factorization: ratings of items by users, predicted by biases and factors."""

from __future__ import annotations

from adabench.usecases.mf.task import MfParams, MfUseCase

__all__ = ["USECASE", "MfParams", "MfUseCase"]

USECASE = MfUseCase
