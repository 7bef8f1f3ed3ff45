"""How many batches ahead each row of a table is announced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import adaps
import autoada
from adaps.policy import Policy, RowSelection, Rule
from autoada.model.node_setup import plan_of
from autoada.model.wrapper import training_state_of
from autoada.training.lookahead_by_row import RowLookahead
from tests.unit.autoada.small_net import IntentLog, Net

MIXED = RowLookahead((10, 20, 30, 50), (4, 0, None, 1))


@pytest.fixture
def model() -> Iterator[autoada.AdaModel]:
    torch.manual_seed(0)
    model = autoada.AdaModel(Net(50))
    training_state_of(model).lookaheads = {"rows.weight": MIXED}  # as among several nodes
    yield model
    model.close()


def rules(*lookaheads: tuple[int, int | None]) -> Policy:
    """A policy for rows.weight, from the end and the lookahead of each range."""
    first, made = 0, []
    for end, ahead in lookaheads:
        made.append(Rule("rows.weight", RowSelection(ranges=((first, end),)), lookahead=ahead))
        first = end
    return Policy("p", [*made, Rule("*")])


def test_rows_are_told_apart_by_their_ranges() -> None:
    assert MIXED.distances == (4, None, 1)
    assert (MIXED.most, MIXED.leaves_some) == (4, True)
    rows = torch.tensor([49, 0, 9, 10, 19, 20, 29, 30])
    selected = {ahead: rows[MIXED.select(rows, ahead)].tolist() for ahead in MIXED.distances}
    assert selected == {4: [0, 9], None: [20, 29], 1: [49, 30]}
    alike = RowLookahead((5, 6, 8), (2, 0, 2))
    assert alike.distances == (2,)
    assert alike.select(torch.arange(8), 2).tolist() == [row != 5 for row in range(8)]


def test_the_policy_says_it_of_ranges() -> None:
    def training(policy: Policy) -> Any:
        return plan_of(Net(50), adaps.SGD(), None, policy, 2).training

    mixed = training(rules((10, 4), (20, 0), (30, None), (40, 1), (50, 1)))
    assert mixed.lookaheads == {"rows.weight": MIXED}
    # Equal lookaheads of two rules are merged; no lookahead gives no entry.
    assert training(rules((10, 4), (50, 4))).lookaheads == {"rows.weight": RowLookahead((50,), (4,))}
    assert training(rules((10, None))).lookaheads == {}
    # Nodes must have the same lookahead for each row.
    agreed = [training(rules((end, 4), (50, 0))).agreement() for end in (10, 11, 10)]
    said = [one["lookahead of rows.weight"] for one in agreed]
    assert said[0] == said[2] != said[1]
    assert said[0].startswith("0, 4 by rows ")


@pytest.mark.parametrize(("given", "others"), [(2, 2), (6, 6), (0, None)])
def test_a_loader_announces_rows_as_far_ahead_as_is_said_of_them(
    model: autoada.AdaModel, given: int, others: int | None
) -> None:
    log = IntentLog(model)
    batches = [
        torch.tensor([step % 10, step % 10 + 10, step % 10 + 20, step % 20 + 30]) for step in range(40)
    ]
    for batch in autoada.AdaDataLoader(batches, given, keys={"rows": lambda batch: batch}, model=model):
        model(batch).sum().backward()
    clocks: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: [], 3: [], 4: []}
    for now, keys, clock in log.calls:
        for key in keys:
            clocks[key // 10].append((clock, clock - now))
    first = {4: 4, None: others, 1: 1}
    assert clocks[1] == []
    for decade, ahead in ((0, first[4]), (2, first[None])):
        expected = [] if ahead is None else [(clock, min(clock, ahead)) for clock in range(40)]
        assert clocks[decade] == expected
    assert sorted(clocks[3] + clocks[4]) == [(clock, min(clock, 1)) for clock in range(40)]


def test_a_loop_by_hand_is_told_keys_by_their_lookahead(model: autoada.AdaModel) -> None:
    ids = torch.tensor([49, 0, 9, 10, 19, 20, 29, 30])
    found = [(ahead, keys.tolist()) for ahead, keys in model.keys_by_lookahead("rows.weight", ids)]
    assert found == [(4, [0, 9]), (None, [20, 29]), (1, [49, 30])]
    training_state_of(model).lookaheads = {}
    ((ahead, keys),) = model.keys_by_lookahead("rows.weight", ids)
    assert (ahead, keys.tolist()) == (None, ids.tolist())
