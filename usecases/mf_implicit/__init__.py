"""Matrix factorization with implicit feedback: ranks items for users by liked items. The code is in `mf`."""

from adabench.usecases.mf.implicit import MfImplicitParams, MfImplicitUseCase

__all__ = ["USECASE", "MfImplicitParams", "MfImplicitUseCase"]

USECASE = MfImplicitUseCase
