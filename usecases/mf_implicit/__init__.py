"""Matrix factorization of implicit feedback: items are ranked by what users liked. The code is `mf`'s."""

from __future__ import annotations

from adabench.usecases.mf.implicit import MfImplicitParams, MfImplicitUseCase

__all__ = ["USECASE", "MfImplicitParams", "MfImplicitUseCase"]

USECASE = MfImplicitUseCase
