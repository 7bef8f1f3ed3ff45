"""Models whose tables of ids have fewer rows than the training has ids."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest
import torch

import adaps
import autoada
from adaps.policy import Admission, Eviction, Policy, PolicyError, Rule
from tests.hash_clicks import CAPACITY, batches_of_ids, hash_clicks, steps

SMALL = 100
"""Rows that are enough for the batches within the lookahead, and too few for all ids."""


def evicting(order: str) -> Policy:
    return Policy("small", [Rule("tables", evict=Eviction(order)), Rule("*")])


@pytest.mark.parametrize("order", ["intent", "lru", "lfu"])
def test_a_table_with_too_few_rows_for_all_ids_trains(order: str) -> None:
    batches = batches_of_ids(60)
    assert len(torch.cat([ids for ids, _ in batches]).unique()) > 2 * SMALL
    model = hash_clicks(capacity=SMALL)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting(order))) as ada:
        losses = steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=1, model=ada))
        counters = ada.node.table("deep.weight").stats()
    assert len(losses) == len(batches)
    assert all(map(math.isfinite, losses))
    assert counters["ids_assigned"] <= SMALL
    assert counters["ids_retired"] > SMALL


def test_an_evaluation_neither_creates_nor_retires_rows() -> None:
    batches = batches_of_ids(60)
    model = hash_clicks(capacity=SMALL)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada:
        steps(ada, [optimizer], autoada.AdaDataLoader(batches[:40], lookahead=1, model=ada))
        before, state = ada.node.table("deep.weight").stats(), ada.state_dict()
        plain = hash_clicks(capacity=SMALL)
        plain.load_state_dict(state)
        ada.eval()
        with torch.no_grad():
            for ids, _ in batches:
                torch.testing.assert_close(ada(ids), plain(ids))
        after = ada.node.table("deep.weight").stats()
        for name in ("ids_assigned", "ids_retired"):
            assert after[name] == before[name] > 0
        assert ada.state_dict()["deep.ids"].tolist() == state["deep.ids"].tolist()


def test_an_evaluation_with_gradients_can_use_more_ids_than_rows() -> None:
    batches = batches_of_ids(60)
    model = hash_clicks(capacity=SMALL)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada:
        steps(ada, [optimizer], autoada.AdaDataLoader(batches[:6], lookahead=1, model=ada))
        ada.eval()
        first = ada(batches[0][0])
        for ids, _ in batches:
            ada(ids)
        ada(batches[1][0])
        assert torch.isfinite(first).all()
        assert ada.node.table("deep.weight").stats()["ids_retired"] > 0


@pytest.mark.parametrize("lookahead", [0, 3])
def test_batches_are_resolved_again_if_no_intent_kept_their_rows(lookahead: int) -> None:
    batches = batches_of_ids(60)
    rules = [Rule("tables", evict=Eviction("lru"), lookahead=lookahead), Rule("*")]
    model = hash_clicks(capacity=2 * SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with closing(autoada.AdaModel(model, optimizer, policy=Policy("small", rules))) as ada:
        losses = steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=3, model=ada))
        assert ada.node.table("deep.weight").stats()["ids_retired"] > 0
    plain = hash_clicks()
    expected = steps(plain, [torch.optim.SGD(plain.parameters(), lr=0.0)], batches)
    assert losses == pytest.approx(expected, rel=1e-6)


def test_no_row_is_retired_while_there_is_space() -> None:
    batches = batches_of_ids(12)
    plain = hash_clicks()
    expected = steps(plain, [torch.optim.Adagrad(plain.parameters(), lr=0.1)], batches)
    model = hash_clicks()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada:
        found = steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=3, model=ada))
        assert ada.node.table("deep.weight").rows == CAPACITY
        assert ada.node.table("deep.weight").stats()["ids_retired"] == 0
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_batch_with_more_ids_than_rows_is_refused() -> None:
    model = hash_clicks(capacity=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada,
        pytest.raises(adaps.AdapsError, match=r"wide.weight.* 5"),
    ):
        ada(torch.arange(6).view(2, 3))


def test_admission_is_refused_because_lookups_need_rows() -> None:
    policy = Policy("rare", [Rule("wide.weight", admit=Admission(2)), Rule("*")])
    model = hash_clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        PolicyError, match=r"rule 1: admit = { seen = 2 } of wide.weight is executed by a node"
    ):
        autoada.AdaModel(model, optimizer, policy=policy)


def test_the_state_has_the_rows_that_were_not_retired_and_can_be_loaded() -> None:
    batches = batches_of_ids(60)
    model = hash_clicks(capacity=SMALL)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada:
        steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=1, model=ada))
        state = ada.state_dict()
        ids = state["deep.ids"]
        assert len(ids) == len(ids.unique()) <= SMALL
        assert torch.isin(batches[-1][0] * 7 + 1, ids).all()
        plain = hash_clicks(capacity=SMALL)
        plain.load_state_dict(state)
        torch.testing.assert_close(plain(batches[-1][0]), ada(batches[-1][0]))

        other = hash_clicks(capacity=SMALL)
        steps(other, [torch.optim.Adagrad(other.parameters(), lr=0.1)], batches[:3])
        ada.load_state_dict(other.state_dict())
        torch.testing.assert_close(ada(batches[0][0]), other(batches[0][0]))
        assert ada.state_dict()["deep.ids"].tolist() == other.state_dict()["deep.ids"].tolist()


def test_the_next_id_of_a_row_has_missed_no_step() -> None:
    batches = batches_of_ids(60)
    model = hash_clicks(sparse=False, capacity=SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    initial = hash_clicks()
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("lru"))) as ada:
        steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=1, model=ada))
        new = torch.arange(10**6, 10**6 + SMALL // 2).view(-1, 1) * torch.ones(1, 3, dtype=torch.int64)
        ada.eval()
        found = torch.cat([ada.module.get_submodule("deep")(part) for part in new[:, 0].split(8)])
        torch.testing.assert_close(found, initial.deep(new[:, 0]))
        assert ada.node.table("deep.weight").stats()["ids_retired"] > 0


@pytest.mark.parametrize("lookahead", ["auto", 2])
def test_a_single_node_signals_intent_if_its_rows_are_retired(lookahead: Any) -> None:
    model = hash_clicks(capacity=2 * SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with closing(autoada.AdaModel(model, optimizer, policy=evicting("intent"))) as ada:
        steps(ada, [optimizer], autoada.AdaDataLoader(batches_of_ids(12), lookahead=lookahead, model=ada))
        assert ada.node.stats()["intents"] > 0
