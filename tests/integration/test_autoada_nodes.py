"""AutoAda on several nodes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plain_and_wrapped import train

from .autoada_ranks.optimized import OPTIMIZERS as ASYNCHRONOUS
from .autoada_ranks.optimized import plainly
from .autoada_ranks.resumed import OPTIMIZERS, resumed
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


def test_two_nodes_checkpoint_and_three_or_one_go_on_bit_by_bit(launch: Launch, tmp_path: Path) -> None:
    two = launch(f"{FOLDER}.resumed", 2, directory=str(tmp_path), restore=False)
    three = launch(f"{FOLDER}.resumed", 3, directory=str(tmp_path), restore=True)
    for name in OPTIMIZERS:
        one = resumed(str(tmp_path / name), name, restore=True)
        ranks = [result[name] for result in (*two, *three)]
        assert one["before"] != one["after"]
        for rank in ranks:
            assert rank["before"] == one["before"]
            assert rank["after"] == one["after"]
            assert rank["epoch"] == one["epoch"] == 0
        # half of the pass is done: the next batches are those after the sixth
        assert [rank["next"] for rank in ranks] == [6, 7, 6, 7, 8]
        assert one["next"] == 6


def test_a_missing_row_and_a_damaged_item_are_told_where_they_are_and_no_other_node_waits(
    launch: Launch,
) -> None:
    other, damaged = launch(f"{FOLDER}.damaged", 2)
    assert damaged["missing"] == f"row -1 does not exist in table 'wide.weight': rows are 0 to {ROWS - 1}"
    assert damaged["cause"].startswith("DamagedItem: Caught DamagedItem in DataLoader worker process 0.")
    assert "DamagedItem: item 100 is damaged" in damaged["cause"]
    assert damaged["steps"] == 100 // 8 - 1  # without the one that was left out
    assert other["missing"] == ""
    assert other["cause"].startswith("PeerLost: ")
    assert "rank 1" in other["cause"]
    assert (other["left"], damaged["left"]) == (0, 0)


def test_two_nodes_that_wait_for_nobody_reach_what_one_process_reaches(launch: Launch) -> None:
    """Within 0.05 of its loss on held-out batches; an untrained model has a loss of 0.72."""
    names = list(ASYNCHRONOUS)
    one, two = launch(f"{FOLDER}.optimized", 2, names=names)
    for name in names:
        expected = plainly(name)
        for rank in (one, two):
            assert rank[name]["quality"] == pytest.approx(expected, abs=0.05), (name, expected)
    # a custom optimizer makes the same steps on both nodes, bit by bit
    assert one["own"]["dense"] == two["own"]["dense"]


def test_whole_tables_that_the_loop_reads_in_every_step_are_reported_once(launch: Launch) -> None:
    for rank in launch(f"{FOLDER}.penalised", 2):
        messages = [message for message in rank["messages"] if "again and again" in message]
        assert [message.split("'")[1] for message in messages] == ["wide.weight", "deep.weight"]
        assert all(
            "penalised.py:" in message and "compute this in forward" in message for message in messages
        )


def expected_state(shares: int) -> dict[str, list[float]]:
    model = clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    train(model, optimizer, batches(STEPS, shares), loss_of)
    return as_lists(model.state_dict())


def assert_state(state: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        assert state[name] == pytest.approx(values, abs=1e-5), name
