"""Node classification: a two-layer graph convolution on learned embeddings, with neighbor sampling."""

from adabench.usecases.gcn.download import fetch
from adabench.usecases.gcn.task import GcnUseCase

__all__ = ["USECASE", "GcnUseCase", "fetch"]

USECASE = GcnUseCase
