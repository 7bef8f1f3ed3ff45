"""Tables whose keys are any 64-bit ids, on a cluster of one."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps import _core
from adaps.policy import Admission, Eviction, Home, Policy, PolicyError, RowSelection, Rule
from adaps.tables import managed_specs

CAPACITY = 50
TABLE = adaps.Table(
    "items", length=3, keys="int64", capacity=CAPACITY, init=adaps.Uniform(seed=7), optimizer=adaps.SGD(lr=1)
)
LEAST, MOST = -(2**63), 2**63 - 1


@pytest.fixture
def node() -> Iterator[adaps.Node]:
    with adaps.Node([TABLE, adaps.Table("rows", 9, 3, init=adaps.Uniform(seed=7))], workers=2) as node:
        yield node


@pytest.fixture
def kv(node: adaps.Node) -> adaps.Worker:
    return node.worker(0)


def rows_of(node: adaps.Node, ids: Any, name: str = "items") -> npt.NDArray[np.int64]:
    rows = np.full(len(ids), -1)
    node.worker(0).rows_of(node.table(name), ids, rows)
    return rows


def values_of(node: adaps.Node, ids: Any) -> npt.NDArray[np.float32]:
    out = np.empty((len(ids), 3), np.float32)
    node.worker(0).pull(node.table("items").keys(rows_of(node, ids)), out)
    return out


def test_any_64_bit_ids_get_rows_that_they_keep(node: adaps.Node) -> None:
    ids = [5, 0, -1, LEAST, MOST, 5, -1]
    first = rows_of(node, ids)
    assert len(set(first.tolist())) == 5
    assert first[0] == first[5]
    assert first[2] == first[6]
    assert rows_of(node, [MOST, 5, 77]).tolist()[:2] == [first[4], first[0]]
    assert rows_of(node, ids).tolist() == first.tolist()
    assert node.table("items").stats()["ids_assigned"] == 6
    assert node.table("items").rows == CAPACITY


def test_rows_replace_the_ids_in_the_same_array(kv: adaps.Worker, node: adaps.Node) -> None:
    ids = np.array([9, 8, 9])
    assert kv.rows_of(node.table("items"), ids, ids) is None
    assert ids.tolist() == rows_of(node, [9, 8, 9]).tolist()


def test_an_asynchronous_call_is_complete_at_once_if_no_message_is_needed(
    kv: adaps.Worker, node: adaps.Node
) -> None:
    rows = np.empty(2, np.int64)
    assert kv.rows_of(node.table("items"), [3, 4], rows, asynchronous=True) == -1
    assert rows.tolist() == rows_of(node, [3, 4]).tolist()


def test_initial_values_follow_from_the_id_and_not_from_the_row(node: adaps.Node) -> None:
    rows_of(node, [100, 101, 102])
    out = np.empty((1, 3), np.float32)
    node.worker(0).pull(node.table("rows").keys([5]), out)
    assert values_of(node, [5]).tolist() == out.tolist()
    with adaps.Node([TABLE]) as other:
        assert values_of(other, [LEAST, 5]).tolist() == values_of(node, [LEAST, 5]).tolist()


def test_rows_of_ids_are_trained_like_other_rows(node: adaps.Node, kv: adaps.Worker) -> None:
    before = values_of(node, [7, 8])
    kv.push_gradients(node.table("items").keys(rows_of(node, [8, 8])), np.ones((2, 3), np.float32))
    kv.push_sums([(node.table("items"), rows_of(node, [7, 7]), np.ones((2, 3), np.float32))])
    assert np.allclose(values_of(node, [7, 8]), before - 2)


def test_new_ids_of_a_full_table_are_refused_before_anything_is_assigned(node: adaps.Node) -> None:
    rows_of(node, range(48))
    rows = np.full(4, -1)
    with pytest.raises(
        adaps.AdapsError, match=r"'items' is full: node 0 assigns 50 of its 50 rows, .*capacity"
    ):
        node.worker(0).rows_of(node.table("items"), [0, 100, 101, 102], rows)
    assert rows.tolist() == [-1] * 4
    assert node.table("items").stats()["ids_assigned"] == 48
    assert len(set(rows_of(node, [100, 101, 100, 0]).tolist())) == 3


def test_a_row_without_an_id_is_refused(node: adaps.Node, kv: adaps.Worker) -> None:
    rows = rows_of(node, [1, 2])
    keys = node.table("items").keys([*rows, 30])
    out = np.zeros((3, 3), np.float32)
    calls: list[Callable[[], object]] = [
        lambda: kv.pull(keys, out),
        lambda: kv.push(keys, out),
        lambda: kv.push_gradients(keys, out),
        lambda: kv.set(keys, out),
        lambda: kv.intent(keys, 0),
        lambda: kv.wait_intent(keys),
    ]
    for call in calls:
        with pytest.raises(IndexError, match="row 30 of table 'items' has no id on this node"):
            call()
    assert not out.any()


def test_calls_for_all_rows_are_refused(node: adaps.Node) -> None:
    table, rows = node.table("items"), np.zeros((CAPACITY, 3), np.float32)
    with adaps.Node([TABLE]) as alone, pytest.raises(ValueError, match="its keys are ids"):
        alone.worker(0).step_rows(alone.table("items"), rows, [(0, rows)])
    with pytest.raises(ValueError, match="its keys are ids"):
        node.worker(0).step_copies(table, rows, rows.copy(), np.zeros(CAPACITY, np.int64), [(0, rows)])


def test_rows_of_needs_a_table_with_ids_and_fitting_arrays(node: adaps.Node, kv: adaps.Worker) -> None:
    rows = np.empty(1, np.int64)
    with pytest.raises(ValueError, match="table 'rows' has no ids"):
        kv.rows_of(node.table("rows"), [1], rows)
    with pytest.raises(ValueError, match="room for 1 rows, but 2 ids"):
        kv.rows_of(node.table("items"), [1, 2], rows)
    with pytest.raises(TypeError, match="ids"):
        kv.rows_of(node.table("items"), np.array([1.5]), rows)
    with pytest.raises(TypeError, match="rows_out"):
        kv.rows_of(node.table("items"), [1], np.empty(1, np.float32))
    assert node.table("items").stats()["ids_assigned"] == 0


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"capacity": 0}, "capacity of table 'items' is 0"),
        ({"capacity": -3}, "capacity of table 'items' is -3"),
        ({"capacity": 2**32}, "it must be at most 4294967295"),
        ({"capacity": None}, "has keys and no capacity"),
        ({"keys": None}, "has capacity=50 without keys"),
        (
            {"keys": None, "capacity": None, "rows": 9, "evict": "lru"},
            "has evict='lru' without keys; .*or no evict",
        ),
        (
            {"keys": None, "capacity": None, "rows": 9, "admit": {"seen": 3}},
            "has admit={'seen': 3} without keys",
        ),
        ({"evict": "lur"}, "table 'items': evict 'lur' does not exist"),
        ({"evict": {"ttl": 0}}, "table 'items': evict ttl is 0; it must be an integer from 1"),
        ({"admit": {"seen": 0}}, "table 'items': admit seen is 0; it must be an integer from 1 to 8"),
        ({"keys": "int32"}, "keys of table 'items': 'int32' does not exist"),
        ({"rows": 7}, "has both keys and rows=7"),
        ({"sampling": adaps.Uniform()}, "has both keys and sampling"),
    ],
)
def test_descriptions_that_do_not_fit_ids_are_refused(changed: dict[str, Any], error: str) -> None:
    given = {"length": 3, "keys": "int64", "capacity": CAPACITY, **changed}
    with pytest.raises(ValueError, match=error):
        adaps.Table("items", **given)


def test_a_description_can_be_replaced_in_part() -> None:
    table = dataclasses.replace(TABLE, name="others")
    assert (table.rows, table.keys, table.name) == (CAPACITY, "int64", "others")


def test_a_rule_replaces_a_tables_own_order_and_admission() -> None:
    own = dataclasses.replace(TABLE, evict={"ttl": 9}, admit={"seen": 2})
    rule = Rule("items", evict=Eviction("lru"), admit=Admission(3))
    for rules, evict, ttl, seen in (
        ([Rule("*")], _core.Evict.TTL, 9, 2),
        ([rule, Rule("*")], _core.Evict.LRU, 0, 3),
    ):
        (spec,) = managed_specs([own], Policy("a", rules), 1)
        assert (spec.evict, spec.ttl, spec.admit_seen) == (evict, ttl, seen)
    assert (TABLE.spec().evict, TABLE.spec().admit_seen) == (_core.Evict.NONE, 1)


@pytest.mark.parametrize(("evict", "most"), [(None, 32), ("intent", 40), ("lru", 40), ("lfu", 40)])
def test_a_full_table_takes_few_bytes_per_id(evict: str | None, most: int) -> None:
    count = 20_000
    table = dataclasses.replace(TABLE, capacity=count, rows=0, evict=evict)
    with adaps.Node([table]) as node:
        ids = np.arange(count) << 32
        rows = np.empty(count, np.int64)
        node.worker(0).rows_of(node.table("items"), ids, rows)
        node.worker(0).push(node.table("items").keys(rows), np.ones((count, 3), np.float32))
        assert node.stats()["resident_bytes"] <= count * (most + 3 * 4)


def test_rows_whose_use_has_ended_are_given_to_other_ids_in_the_same_clock() -> None:
    with adaps.Node([dataclasses.replace(TABLE, capacity=4, rows=0, evict="lru")]) as node:
        rows_of(node, range(4))
        with pytest.raises(adaps.AdapsError, match="'items' is full: node 0 assigns 4 of its 4 rows"):
            rows_of(node, [4])
        node.worker(0).end_uses()
        assert rows_of(node, [4])[0] in range(4)
        assert node.table("items").retires_rows
    with adaps.Node([TABLE]) as node:
        assert not node.table("items").retires_rows


def test_a_table_without_rows_and_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of table 'items' is 0"):
        adaps.Table("items", length=3)


def test_full_replication_of_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="'items' has ids as keys and the technique full_replication"):
        adaps.Node([TABLE], techniques="full_replication")


@pytest.mark.parametrize(
    "rules",
    [
        [Rule("items", home=Home("blocks")), Rule("*")],
        [Rule("items", home=Home("node", node=0)), Rule("*")],
        [Rule("items", RowSelection(ranges=((0, 9),)), technique="static"), Rule("*")],
    ],
)
def test_a_policy_that_chooses_homes_or_divides_rows_of_ids_is_refused(rules: list[Rule]) -> None:
    with pytest.raises(PolicyError, match="the table 'items' has ids as keys, so a policy cannot"):
        adaps.Node([TABLE], policy=Policy("a", rules))


@pytest.mark.parametrize("capacity", [CAPACITY, 20])
def test_a_checkpoint_of_ids_restores_values_into_any_sufficient_capacity(
    capacity: int, tmp_path: Path
) -> None:
    ids = [LEAST, 3, 0, 8]
    with adaps.Node([TABLE]) as node:
        node.worker(0).set(node.table("items").keys(rows_of(node, ids)), np.arange(12, dtype=np.float32))
        values_of(node, [55])
        node.checkpoint(tmp_path)
        saved = values_of(node, ids)
    table = adaps.Table(
        "items", length=3, keys="int64", capacity=capacity, init=TABLE.init, optimizer=adaps.SGD(lr=1)
    )
    with adaps.Node([table]) as node:
        written = rows_of(node, [8, 77])
        node.worker(0).set(node.table("items").keys(written), np.ones(6, np.float32))
        node.restore(tmp_path)
        assert values_of(node, ids).tolist() == saved.tolist()
        assert rows_of(node, [8, 77]).tolist() == written.tolist()
        with adaps.Node([TABLE]) as other:
            assert values_of(node, [77]).tolist() == values_of(other, [77]).tolist()


def test_a_checkpoint_with_more_ids_than_the_capacity_is_refused(tmp_path: Path) -> None:
    with adaps.Node([TABLE]) as node:
        values_of(node, range(30))
        node.checkpoint(tmp_path)
    with adaps.Node(
        [
            adaps.Table(
                "items", length=3, keys="int64", capacity=29, init=TABLE.init, optimizer=TABLE.optimizer
            )
        ]
    ) as node:
        with pytest.raises(adaps.CheckpointError, match="'items' is full: node 0 assigns 29"):
            node.restore(tmp_path)
        assert node.table("items").stats()["ids_assigned"] == 0


def test_a_checkpoint_does_not_fit_a_table_of_the_other_kind(tmp_path: Path) -> None:
    with adaps.Node([TABLE]) as node:
        node.checkpoint(tmp_path)
    rows = adaps.Table("items", CAPACITY, 3, init=TABLE.init, optimizer=TABLE.optimizer)
    with (
        adaps.Node([rows]) as node,
        pytest.raises(adaps.CheckpointError, match="has keys int64 in the checkpoint"),
    ):
        node.restore(tmp_path)


def test_an_export_has_all_ids_and_the_newest_value_of_each(tmp_path: Path) -> None:
    with adaps.Node([TABLE]) as node:
        rows_of(node, [4, LEAST])
        node.export(tmp_path).wait()
        node.worker(0).set(node.table("items").keys(rows_of(node, [4])), np.ones(3, np.float32))
        rows_of(node, [-9])
        node.export(tmp_path).wait()
        ids, values = adaps.load_export_ids(tmp_path, "items")
        assert ids.tolist() == [LEAST, -9, 4]
        assert values.tolist() == values_of(node, ids).tolist()
    with pytest.raises(adaps.CheckpointError, match=r"read it with adaps\.load_export_ids"):
        adaps.load_export(tmp_path)


def test_rows_of_ids_catch_up_with_missed_steps_and_other_rows_have_none(tmp_path: Path) -> None:
    rule = adaps.Adam(lr=0.1, weight_decay=0.1)
    ids = adaps.Table("items", length=3, keys="int64", capacity=9, init=TABLE.init, optimizer=rule)
    rows = adaps.Table("rows", 9, 3, init=TABLE.init, optimizer=rule)
    with adaps.Node([ids, rows]) as node:
        kv, out = node.worker(0), np.empty((2, 2, 3), np.float32)
        keys = [node.table("items").keys(rows_of(node, [4, 2])), node.table("rows").keys([4, 2])]
        for table in node.tables:
            table.set_step(1)
        for one in keys:
            kv.push_gradients(one, np.ones((2, 3), np.float32))
        for table in node.tables:
            table.set_step(5)
            table.catch_up()
        for i, one in enumerate(keys):
            kv.pull(one, out[i])
        assert out[0].tolist() == out[1].tolist()
        node.checkpoint(tmp_path)
        assert kv.is_done(-1)


def test_a_row_has_missed_no_step_before_its_first_use() -> None:
    rule = adaps.SGD(lr=0.1, weight_decay=0.1)
    with adaps.Node([dataclasses.replace(TABLE, optimizer=rule)]) as node:
        table, kv, out = node.table("items"), node.worker(0), np.empty((1, 3), np.float32)
        table.set_step(5)
        keys = table.keys(rows_of(node, [4]))
        table.catch_up(keys)
        kv.pull(keys, out)
        with adaps.Node([TABLE]) as other:
            assert out.tolist() == values_of(other, [4]).tolist()
        table.set_step(6)
        table.catch_up(keys)
        before = out.copy()
        kv.pull(keys, out)
        np.testing.assert_allclose(out, before * 0.99, rtol=1e-6)


def test_used_ids_are_those_whose_rows_were_read_or_written(node: adaps.Node, kv: adaps.Worker) -> None:
    table, out = node.table("items"), np.zeros((1, 3), np.float32)
    assert kv.used_ids(table).tolist() == []
    rows_of(node, [1, 2, 3])
    kv.intent(table.keys(rows_of(node, [7])), 0)
    kv.wait_intent(table.keys(rows_of(node, [7])))
    values_of(node, [MOST, LEAST])
    kv.push(table.keys(rows_of(node, [5])), out)
    kv.push_gradients(table.keys(rows_of(node, [0])), out)
    node.worker(1).set(table.keys(rows_of(node, [-4])), out)
    assert kv.used_ids(table).tolist() == [LEAST, -4, 0, 5, MOST]
    table.forget_used()
    values_of(node, [2, 5])
    assert kv.used_ids(table).tolist() == node.worker(1).used_ids(table).tolist() == [2, 5]


def test_used_ids_need_a_table_with_ids(node: adaps.Node, kv: adaps.Worker) -> None:
    for call in (lambda: kv.used_ids(node.table("rows")), lambda: node.table("rows").forget_used()):
        with pytest.raises(ValueError, match="table 'rows' has no ids"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_after_a_restore_the_used_ids_are_those_with_another_value_than_the_initial_one(
    dtype: str, tmp_path: Path
) -> None:
    table = dataclasses.replace(TABLE, dtype=dtype)
    with adaps.Node([table]) as node:
        values_of(node, [3, LEAST])
        node.worker(0).set(node.table("items").keys(rows_of(node, [8])), np.ones(3, np.float32))
        node.checkpoint(tmp_path)
    with adaps.Node([table]) as node:
        values_of(node, [3, 4])
        node.restore(tmp_path)
        assert node.worker(0).used_ids(node.table("items")).tolist() == [8]


def test_packed_rows_of_ids_are_rounded_alike_whatever_rows_they_have() -> None:
    table = adaps.Table("items", length=3, keys="int64", capacity=9, init=TABLE.init, dtype="bfloat16")
    results = []
    for order in ([1, 2, 3], [3, 1, 2]):
        with adaps.Node([table]) as node:
            rows_of(node, order)
            kv, keys = node.worker(0), node.table("items").keys(rows_of(node, [1, 2, 3]))
            for _ in range(5):
                kv.push(keys, np.full((3, 3), 0.001, np.float32))
            results.append(values_of(node, [1, 2, 3]).tolist())
    assert results[0] == results[1]


def test_simulations_of_tables_with_ids_are_refused() -> None:
    stream = adaps.Stream([{"items": np.array([1])}])
    with pytest.raises(ValueError, match="the table 'items' has ids as keys, and streams contain rows"):
        adaps.simulate([stream], tables=[TABLE])


def test_a_call_that_creates_no_rows_writes_minus_one_for_new_ids() -> None:
    with adaps.Node([TABLE]) as node:
        worker, items = node.worker(0), node.table("items")
        created, found = np.empty(2, np.int64), np.empty(3, np.int64)
        worker.rows_of(items, [7, -7], created)
        worker.rows_of(items, [-7, 8, 7], found, create=False)
        assert found.tolist() == [created[1], -1, created[0]]
        assert items.stats()["ids_assigned"] == 2
        ticket = worker.rows_of(items, [9, 7], found[:2], asynchronous=True, create=False)
        assert ticket is not None
        worker.wait(ticket)
        assert found[:2].tolist() == [-1, created[0]]
