"""AutoAda on several nodes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from .autoada_ranks.task import RATE, ROWS, as_lists, batches, clicks, loss_of, node_for, train_share

Launch = Callable[..., list[dict[str, Any]]]

STEPS = 30
FOLDER = "tests.integration.autoada_ranks"


def test_synchronous_sgd_on_two_nodes_equals_one_process_with_the_batches_together(launch: Launch) -> None:
    results = launch(f"{FOLDER}.synchronous", 2, shares=2, steps=STEPS)
    for result in results:
        assert_state(result["state"], expected_state(shares=2))
    rows_read = 2 * STEPS // 2 * 2 * ROWS
    assert sum(result["late"] for result in results) <= 0.02 * rows_read


def test_synchronous_sgd_on_two_threads_equals_one_process_with_the_batches_together() -> None:
    with node_for(shares=2, workers=2) as node, ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda worker: train_share(node, worker, STEPS), range(2)):
            assert_state(result["state"], expected_state(shares=2))


def test_a_state_saved_by_two_nodes_loads_into_three_and_into_plain_pytorch(
    launch: Launch, tmp_path: Path
) -> None:
    file = tmp_path / "state.pt"
    saved = launch(f"{FOLDER}.checkpoint", 2, save=True, file=str(file), seed=0)
    loaded = launch(f"{FOLDER}.checkpoint", 3, save=False, file=str(file), seed=5)
    plain = clicks(seed=9).eval()
    plain.load_state_dict(torch.load(file))
    with torch.no_grad():
        expected = plain(torch.arange(ROWS).view(-1, 4)).flatten().tolist()
    for result in [*saved, *loaded]:
        assert result["scores"] == pytest.approx(expected, abs=1e-6)


def expected_state(shares: int) -> dict[str, list[float]]:
    model = clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in batches(STEPS, shares):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return as_lists(model.state_dict())


def assert_state(state: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        assert state[name] == pytest.approx(values, abs=1e-5), name
