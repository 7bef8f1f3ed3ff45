"""Click-through rate prediction on Criteo: Wide & Deep over 13 dense and 26 categorical features."""

from __future__ import annotations

from adabench.usecases.ctr.task import CtrParams, CtrUseCase

__all__ = ["USECASE", "CtrParams", "CtrUseCase"]

USECASE = CtrUseCase
