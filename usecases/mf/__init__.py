"""Matrix factorization: predicts ratings of items by users from biases and factors."""

from adabench.usecases.mf.task import MfParams, MfUseCase

__all__ = ["USECASE", "MfParams", "MfUseCase"]

USECASE = MfUseCase
