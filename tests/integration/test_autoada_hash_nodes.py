"""Tables of ids on several nodes equal plain PyTorch with all batches together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hash_clicks import batches_of_ids, hash_clicks, rows_by_id, steps

Launch = Callable[..., list[dict[str, Any]]]

STEPS = 12


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
def test_nodes_together_equal_plain_pytorch(nodes: int, launch: Launch, tmp_path: Path) -> None:
    results = launch("tests.integration.autoada_ranks.hashed", nodes, steps=STEPS, directory=str(tmp_path))
    model = hash_clicks()
    model(torch.tensor([[0, 2, 3]]))
    steps(model, [torch.optim.SGD(model.parameters(), lr=0.5)], batches_of_ids(STEPS, 24))
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
    results = launch("tests.integration.autoada_ranks.retiring", nodes, steps=60, capacity=capacity)
    assert sum(result["retired"] for result in results) > 0
    for result in results:
        assert result["trained"] == results[0]["trained"]
        assert result["scores"] == pytest.approx(result["expected"], abs=1e-5)
        for rows in result["trained"].values():
            assert 0 < len(rows) == len({number for number, _ in rows}) <= capacity
