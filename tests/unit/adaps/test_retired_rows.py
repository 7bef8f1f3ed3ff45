"""Tables whose rows are given to other ids, and tables that admit ids late, on a cluster of one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps import _core

CAPACITY = 10
TABLE = adaps.Table("items", length=2, keys="int64", capacity=CAPACITY, init=adaps.Constant(0.5))

MakeNode = Callable[..., adaps.Node]


@pytest.fixture
def make_node(monkeypatch: pytest.MonkeyPatch) -> MakeNode:
    """Return a function that creates a node whose table has some settings of the core."""

    def make(**settings: Any) -> adaps.Node:
        without = adaps.Table.spec

        def spec(table: adaps.Table, *arguments: Any) -> _core.TableSpec:
            made = without(table, *arguments)
            for name, value in settings.items():
                setattr(made, name, value)
            return made

        with monkeypatch.context() as patched:
            patched.setattr(adaps.Table, "spec", spec)
            return adaps.Node([TABLE], channels=1)

    return make


def rows_of(node: adaps.Node, ids: Any) -> npt.NDArray[np.int64]:
    rows = np.full(len(ids), -7)
    node.worker(0).rows_of(node.table("items"), ids, rows)
    return rows


def pull(node: adaps.Node, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    out = np.empty((len(rows), 2), np.float32)
    node.worker(0).pull(node.table("items").keys(rows), out)
    return out


def use(node: adaps.Node, ids: Any, value: float) -> None:
    """Set the rows of ids in one clock."""
    keys = node.table("items").keys(rows_of(node, ids))
    node.worker(0).set(keys, np.full((len(ids), 2), value, np.float32))
    node.worker(0).advance_clock()


def test_an_id_that_lost_its_row_restarts_with_the_initial_value(make_node: MakeNode) -> None:
    with make_node(evict=_core.Evict.LRU) as node:
        use(node, range(10), 1.0)
        use(node, range(5, 10), 2.0)
        use(node, range(20, 25), 3.0)
        assert (pull(node, rows_of(node, range(5, 10))) == 2.0).all()
        node.worker(0).advance_clock()
        assert (pull(node, rows_of(node, range(5))) == 0.5).all()
        stats = node.table("items").stats()
        assert stats["ids_assigned"] <= CAPACITY
        assert stats["ids_retired"] >= 10


def test_a_row_of_an_earlier_clock_is_refused(make_node: MakeNode) -> None:
    with make_node(evict=_core.Evict.INTENT) as node:
        rows = rows_of(node, [1])
        node.worker(0).advance_clock()
        with pytest.raises(IndexError, match="of table 'items' is from an earlier clock"):
            pull(node, rows)


def test_a_capacity_that_cannot_hold_the_rows_in_use_is_an_error_with_both_numbers(
    make_node: MakeNode,
) -> None:
    with make_node(evict=_core.Evict.LFU) as node:
        rows_of(node, range(8))
        with pytest.raises(adaps.AdapsError, match="assigns 10 of its 10 rows, and too few of them"):
            rows_of(node, range(100, 103))


def test_an_id_gets_a_row_in_the_request_in_which_it_is_admitted(make_node: MakeNode) -> None:
    with make_node(admit_seen=3) as node:
        assert rows_of(node, [4, 4, 9]).tolist() == [-1, -1, -1]
        assert rows_of(node, [4]).tolist() == [-1]
        assert rows_of(node, [9, 4]).tolist() == [-1, 0]
        assert rows_of(node, [4, 8]).tolist() == [0, -1]
        assert node.table("items").stats()["ids_not_admitted"] == 5
        with pytest.raises(IndexError, match="-1"):
            pull(node, np.array([-1]))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_later_export_deletes_the_ids_that_lost_their_rows(
    make_node: MakeNode, tmp_path: Path, replaced: bool
) -> None:
    with make_node(evict=_core.Evict.LRU) as node:
        use(node, range(10), 1.0)
        node.export(tmp_path / "saved").wait()
        for first, value in (20, 2.0), (30, 3.0):
            use(node, range(first, first + 5), value)
            if replaced:
                (tmp_path / "saved").rename(tmp_path / f"before {first}")
            node.export(tmp_path / "saved").wait()
            ids, values = adaps.load_export_ids(tmp_path / "saved", "items")
            assert len(ids) == node.table("items").stats()["ids_assigned"]
            assert set(range(first, first + 5)) <= set(ids.tolist())
            assert values[ids >= first].tolist() == [[value, value]] * 5
            assert (values[ids < 20] == 1.0).all()


def test_a_checkpoint_contains_each_row_with_its_present_id(make_node: MakeNode, tmp_path: Path) -> None:
    with make_node(evict=_core.Evict.LRU) as node:
        use(node, range(10), 1.0)
        use(node, range(20, 25), 2.0)
        node.checkpoint(tmp_path)
    with make_node(evict=_core.Evict.LRU) as node:
        node.restore(tmp_path)
        assert node.table("items").stats()["ids_assigned"] == CAPACITY
        assert (pull(node, rows_of(node, range(20, 25))) == 2.0).all()
