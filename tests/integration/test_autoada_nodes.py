"""AutoAda on several nodes: states, checkpoints, tables of ids, negatives, and word vectors."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import adaps
from adabench.usecases.word2vec import Word2VecParams, Word2VecUseCase
from tests.conftest import Launch
from tests.hash_clicks import batches_of_ids, hash_clicks, rows_by_id, steps
from tests.plain_and_wrapped import train
from tests.unit.plain_training import epochs_of

from .autoada_ranks.drawn import bytes_of_draws, drawn_negatives, word_vectors
from .autoada_ranks.loops import damaged_item, penalised, state_loaded, state_saved, synchronous
from .autoada_ranks.optimized import OPTIMIZERS as ASYNCHRONOUS
from .autoada_ranks.optimized import optimized, plainly
from .autoada_ranks.raw_ids import hashed, retiring
from .autoada_ranks.resumed import OPTIMIZERS, all_resumed, resumed
from .autoada_ranks.task import RATE, ROWS, as_lists, batches, clicks, loss_of, node_for, train_share

STEPS = 30


def test_synchronous_sgd_on_two_nodes_equals_one_process_with_the_batches_together(launch: Launch) -> None:
    results = launch(synchronous, 2, shares=2, steps=STEPS)
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
    saved = launch(state_saved, 2, file=str(file))
    loaded = launch(state_loaded, 3, file=str(file))
    plain = clicks(seed=9).eval()
    plain.load_state_dict(torch.load(file))
    with torch.no_grad():
        expected = plain(torch.arange(ROWS).view(-1, 4)).flatten().tolist()
    for result in [*saved, *loaded]:
        assert result["scores"] == pytest.approx(expected, abs=1e-6)


def test_two_nodes_checkpoint_and_three_or_one_go_on_bit_by_bit(launch: Launch, tmp_path: Path) -> None:
    two = launch(all_resumed, 2, directory=str(tmp_path), restore=False)
    three = launch(all_resumed, 3, directory=str(tmp_path), restore=True)
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
    other, damaged = launch(damaged_item, 2)
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
    one, two = launch(optimized, 2, names=names)
    for name in names:
        expected = plainly(name)
        for rank in (one, two):
            assert rank[name]["quality"] == pytest.approx(expected, abs=0.05), (name, expected)
    # a custom optimizer makes the same steps on both nodes, bit by bit
    assert one["own"]["dense"] == two["own"]["dense"]


def test_whole_tables_that_the_loop_reads_in_every_step_are_reported_once(launch: Launch) -> None:
    for rank in launch(penalised, 2):
        messages = [message for message in rank["messages"] if "again and again" in message]
        assert [message.split("'")[1] for message in messages] == ["wide.weight", "deep.weight"]
        assert all("loops.py:" in message and "compute this in forward" in message for message in messages)


def expected_state(shares: int) -> dict[str, list[float]]:
    model = clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    train(model, optimizer, batches(STEPS, shares), loss_of)
    return as_lists(model.state_dict())


def assert_state(state: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        assert state[name] == pytest.approx(values, abs=1e-5), name


def assert_rows(found: dict[str, list[Any]], expected: dict[str, torch.Tensor]) -> None:
    """The ids and their rows are equal."""
    for table, rows in found.items():
        wanted = rows_by_id(expected, table)
        given = dict(rows)
        assert given.keys() == wanted.keys()
        for number, row in wanted.items():
            assert given[number] == pytest.approx(row, abs=1e-5)


def without_unused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state without the rows that only the first lookup read, which still have their initial values."""
    plain = hash_clicks()
    unused = {"wide": torch.tensor([0, 2, 3]), "deep": torch.tensor([0, 2, 3]) * 7 + 1}
    result = dict(state)
    for table, ids in unused.items():
        initial = plain.get_submodule(table)(ids)
        rows = rows_by_id(state, table)
        same = [
            number for number, row in zip(ids.tolist(), initial.tolist(), strict=True) if rows[number] == row
        ]
        kept = ~torch.isin(state[f"{table}.ids"], torch.tensor(same, dtype=torch.int64))
        result[f"{table}.ids"] = state[f"{table}.ids"][kept]
        result[f"{table}.weight"] = state[f"{table}.weight"][kept]
    return result


@pytest.mark.parametrize("nodes", [2, 3])
def test_tables_of_ids_equal_plain_pytorch_with_all_batches_together(
    nodes: int, launch: Launch, tmp_path: Path
) -> None:
    results = launch(hashed, nodes, steps=12, directory=str(tmp_path))
    model = hash_clicks()
    model(torch.tensor([[0, 2, 3]]))
    steps(model, [torch.optim.SGD(model.parameters(), lr=0.5)], batches_of_ids(12, 24))
    state = model.state_dict()
    model.eval()
    scores = model(torch.arange(9).view(3, 3)).flatten().tolist()
    for result in results:
        assert_rows(result["trained"], state)
        assert_rows(result["restored"], without_unused(state))
        assert_rows(result["loaded"], state)
        assert result["scores"] == pytest.approx(scores, abs=1e-5)
        assert "rows predicted" in result["summary"]
    before, loaded = results[0]["sums"]
    assert sum(row != [0.0] for row in before) > 20
    assert loaded == before


@pytest.mark.parametrize("nodes", [2, 3])
def test_nodes_give_rows_to_other_ids_and_agree_on_the_state(nodes: int, launch: Launch) -> None:
    capacity = 260
    results = launch(retiring, nodes, steps=60, capacity=capacity)
    assert sum(result["retired"] for result in results) > 0
    for result in results:
        assert result["trained"] == results[0]["trained"]
        assert result["scores"] == pytest.approx(result["expected"], abs=1e-5)
        for rows in result["trained"].values():
            assert 0 < len(rows) == len({number for number, _ in rows}) <= capacity


def test_two_nodes_train_on_what_each_draws(launch: Launch) -> None:
    results = launch(drawn_negatives, 2)
    for scheme in adaps.SAMPLING_SCHEMES:
        first, second = (result[scheme] for result in results)
        assert first["sum"] == pytest.approx(second["sum"], abs=1e-4)  # both see what both have pushed
        for result in (first, second):
            assert result["rows"] == 60 * 20
            assert result["fallback"] == 0  # half of the rows are local or arrive in time
            assert result["announced"] > 60 * (10 + 1)  # the node's own ten rows, and the drawn ones


def test_local_draws_send_a_fifth_of_what_naive_ones_do(launch: Launch) -> None:
    """The bytes for reading and changing remote rows; all rows but the drawn ones are local."""
    steps, nodes = 60, 4
    results = launch(bytes_of_draws, nodes, steps=steps, schemes=["naive", "local"])
    sent, elsewhere = {}, {}
    for scheme in ("naive", "local"):
        counted = [result[scheme] for result in results]
        sent[scheme] = sum(one["bytes_sent_request"] + one["bytes_sent_answer"] for one in counted)
        elsewhere[scheme] = sum(one["pulled_remote"] for one in counted)
        assert sum(one["sampled_fallback"] for one in counted) == 0
    assert elsewhere["naive"] > nodes * steps * 64 / 3  # three in four of which belong to other nodes
    # each was read with its row, and each change has 32 floats
    assert sent["naive"] > 2 * 32 * 4 * elsewhere["naive"]
    assert 5 * sent["local"] <= sent["naive"]


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
    reports = launch(word_vectors, nodes, params=PARAMS, batch=BATCH)
    losses = [report["loss"] for report in reports]
    assert losses == pytest.approx([losses[0]] * nodes, rel=1e-5)  # all see what all have learned
    assert losses[0] <= 1.01 * plain_loss()
