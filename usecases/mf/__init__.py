"""Matrix factorization: predicts ratings of items by users from biases and factors."""

from __future__ import annotations

from adabench.usecases.mf.task import MfParams, MfUseCase

__all__ = ["USECASE", "MfParams", "MfUseCase"]

USECASE = MfUseCase
