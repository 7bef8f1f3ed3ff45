"""Knowledge graph embeddings: ComplEx, DistMult, RotatE and TransE, with negatives that a batch shares."""

from adabench.usecases.kge.task import KgeParams, KgeUseCase

__all__ = ["USECASE", "KgeParams", "KgeUseCase"]

USECASE = KgeUseCase
