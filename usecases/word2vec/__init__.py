"""Word vectors: skip-gram with negative sampling."""

from adabench.usecases.word2vec.task import Word2VecParams, Word2VecUseCase

__all__ = ["USECASE", "Word2VecParams", "Word2VecUseCase"]

USECASE = Word2VecUseCase
