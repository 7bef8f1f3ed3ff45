"""Word vectors trained by several nodes together, compared with those of plain PyTorch in one process."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from adabench.usecases.word2vec import Word2VecParams, Word2VecUseCase
from tests.unit.plain_training import epochs_of

Launch = Callable[..., list[dict[str, Any]]]

PARAMS: dict[str, Any] = {"words": 60_000, "lr": 0.05}
BATCH = 16
"""Sentences in a step of all nodes together."""


@cache
def plain_loss() -> float:
    usecase = Word2VecUseCase(Word2VecParams(**PARAMS, batch=BATCH), None, 1)
    *_, last = epochs_of(usecase)
    return usecase.evaluate(last.model, last.loaders.test)["loss"]


@pytest.mark.parametrize("nodes", [2, 4])
def test_nodes_learn_as_much_as_one_process(launch: Launch, nodes: int) -> None:
    reports = launch("tests.integration.autoada_ranks.word_vectors", nodes, params=PARAMS, batch=BATCH)
    losses = [report["loss"] for report in reports]
    assert losses == pytest.approx([losses[0]] * nodes, rel=1e-5)  # all see what all have learned
    assert losses[0] <= 1.01 * plain_loss()
