"""A node that is given a policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaps
from adabench.harness.study.policies import bytes_per_node
from adaps.policy import Catalogue, Home, Memory, Policy, PolicyError, RowSelection, Rule, Synchronization
from adaps.policy.executed import management_of
from tests.unit.policies import CATALOGUE

TABLES = [adaps.Table("a", 10, 2), adaps.Table("b", 20, 3)]


def test_accesses_are_counted_by_table() -> None:
    with adaps.Node(TABLES, policy=Policy.uniform("static")) as node:
        worker = node.worker(0)
        out = np.empty(2 * 2 + 3 * 3 + 2, dtype=np.float32)
        worker.pull([0, 1, 10, 11, 12, 2], out)
        worker.push([10], np.ones(3, np.float32))
        worker.set([1], np.ones(2, np.float32))
        a, b = (table.stats() for table in node.tables)
        total = node.stats()
    assert (a["pulled_local"], a["pushed_local"], a["set_local"]) == (3, 0, 1)
    assert (b["pulled_local"], b["pushed_local"], b["set_local"]) == (3, 1, 0)
    for name, value in a.items():
        if name in total:
            assert value + b[name] == total[name], name
    assert node.table("a").stats() == a


def test_homes_are_ranges_of_rows() -> None:
    policy = Policy(
        "a",
        [
            Rule("wide.weight", RowSelection(ranges=((0, 10), (90, 100))), home=Home("node", node=1)),
            Rule("wide.weight", home=Home("blocks")),
            Rule(
                "deep.weight",
                technique="replication",
                home=Home("shares", shares=(0.2, 0.8)),
                exchange=4,
                wire="int8",
            ),
            Rule("*", technique="static"),
        ],
    )
    wide, deep, weight, bias = management_of(policy, CATALOGUE, 2)
    assert wide.managed == ((100, ("adaptive", "float32", 0)),)
    assert wide.homes == ((10, 1), (50, 0), (100, 1))
    assert (deep.managed, deep.homes) == (((100, ("replication", "int8", 4)),), ((20, 0), (100, 1)))
    assert (weight.managed, weight.homes) == (((8, ("static", "float32", 0)),), ())
    assert (bias.managed, bias.homes) == (((8, ("static", "float32", 0)),), ())


def test_rows_are_at_home_with_those_of_another_table() -> None:
    rows = RowSelection(ranges=((0, 10), (90, 100)))
    deep = [Rule("deep.weight", rows, home=Home("node", node=1)), Rule("deep.weight", home=Home("blocks"))]
    together = Rule("wide.weight", home=Home("with", table="deep.weight"))
    wide, other, *_ = management_of(Policy("a", [*deep, together, Rule("*")]), CATALOGUE, 2)
    assert wide.homes == other.homes == ((10, 1), (50, 0), (100, 1))
    # Some rows only; the others are by hash.
    some = Rule("wide.weight", rows, home=Home("with", table="deep.weight"))
    policy = Policy("a", [*deep, some, Rule("*")])
    wide, *_ = management_of(policy, CATALOGUE, 2)
    assert wide.homes == ((10, 1), (90, -1), (100, 1))
    assert bytes_per_node(policy, CATALOGUE, 2)["wide.weight"] == [160, 240]
    wide, *_ = management_of(Policy("a", [deep[0], some, Rule("*")]), CATALOGUE, 2)
    assert wide.homes == ((10, 1), (90, -1), (100, 1))
    # Rows that are placed by hash follow the other table.
    policy = Policy("a", [deep[0], together, Rule("*")])
    wide, other, *_ = management_of(policy, CATALOGUE, 2)
    assert wide.homes == ((10, 1), (90, "deep.weight"), (100, 1))
    assert other.homes == ((10, 1), (90, -1), (100, 1))
    assert bytes_per_node(policy, CATALOGUE, 2)["wide.weight"] == [160, 240]
    wide, other, *_ = management_of(Policy("a", [together, Rule("*")]), CATALOGUE, 2)
    assert (wide.homes, other.homes) == (((100, "deep.weight"),), ())


def test_only_tables_of_rows_are_at_home_with_each_other() -> None:
    catalogue = Catalogue.of_shapes([("a", (8, 2)), ("b", (8, 2))], ["a"])
    for one, other in (("a", "b"), ("b", "a")):
        policy = Policy("p", [Rule(one, home=Home("with", table=other)), Rule("*", home=Home("blocks"))])
        with pytest.raises(PolicyError, match=f"home of {one} is with {other}, but b is a dense parameter"):
            management_of(policy, catalogue, 2)


def test_rows_are_managed_by_the_first_rule_that_names_them(tmp_path: Path) -> None:
    np.save(tmp_path / "hot.npy", np.array([99, 3, 4, 50]))
    rules = [
        Rule("tables", RowSelection(file="hot.npy"), "replication"),
        Rule("wide.weight", RowSelection(ranges=((0, 4), (60, 61))), "static", wire="int8"),
        Rule("*", technique="relocation"),
    ]
    policy = Policy("rows", rules, folder=tmp_path)
    hot, cold, rest = ("replication", "float32", 0), ("static", "int8", 0), ("relocation", "float32", 0)
    wide, deep, weight, _ = management_of(policy, CATALOGUE, 2)
    assert wide.managed == (
        *((3, cold), (5, hot), (50, rest), (51, hot), (60, rest), (61, cold), (99, rest)),
        (100, hot),
    )
    assert deep.managed == ((3, rest), (5, hot), (50, rest), (51, hot), (99, rest), (100, hot))
    assert wide.homes == deep.homes == ()
    assert weight.managed == ((8, rest),)


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        (
            Policy("p", [Rule("c"), Rule("*")]),
            {},
            "the policy: rule 1: unknown parameter 'c'; there are a, b",
        ),
        (
            Policy("p", [Rule("a", home=Home("node", node=1)), Rule("*")]),
            {},
            "home node is 1; there are 1 nodes",
        ),
        (
            Policy("p", [Rule("a", technique="static", exchange=3), Rule("*")]),
            {},
            "rule 1: exchange of a has no effect with technique 'static', which makes no copies",
        ),
        (
            Policy("p", [Rule("*", exchange=1 << 40)]),
            {},
            "table 'a' has exchange 1099511627776; it must be 0 to 4294967296 clocks",
        ),
        (
            Policy("p", [Rule("*", lookahead=3)]),
            {},
            "rule 1: lookahead is executed by the code that signals intent",
        ),
        (
            Policy("p", [Rule("*")], synchronization=Synchronization(2)),
            {},
            "every = 2 is executed by the training code, not by a node; give the policy to autoada",
        ),
        (
            Policy("p", [Rule("a", RowSelection(ranges=((0, 1),)), lookahead=2), Rule("*")]),
            {},
            "rule 1: lookahead is executed by the code that signals intent, not by a node",
        ),
        (
            Policy("p", [Rule("a", RowSelection(ranges=((3, 11),)), "static"), Rule("*")]),
            {},
            "the policy: rule 1: rows names row 10; a has 10, from 0 to 9",
        ),
        (
            Policy("p", [Rule("a", RowSelection(file="gone.npy"), "static"), Rule("*")]),
            {},
            r"the policy: rule 1: rows file gone\.npy cannot be read: .*No such file",
        ),
        (
            Policy("p", [Rule("a", RowSelection(hottest=0.1), "static"), Rule("*")]),
            {},
            "the policy: rule 1: rows hottest needs access counts",
        ),
        (Policy("p", [Rule("a", home=Home("with", table="a")), Rule("*")]), {}, "follows a, which follows a"),
        (Policy.uniform("allreduce"), {}, "'allreduce' is for dense parameters; a is a table of rows"),
        (
            Policy.uniform("static"),
            {"techniques": "static"},
            "techniques is 'static' in addition to a policy",
        ),
    ],
)
def test_what_a_node_cannot_execute_is_refused(policy: Policy, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        adaps.Node(TABLES, policy=policy, **options)


def test_a_policy_is_a_policy() -> None:
    with pytest.raises(TypeError, match=r"policy is 'static'; it must be an adaps\.Policy"):
        adaps.Node(TABLES, policy="static")  # type: ignore[arg-type]
    assert issubclass(PolicyError, ValueError)


def test_memory_of_a_policy_limits_the_rows_in_memory_of_its_table(tmp_path: Path) -> None:
    policy = Policy("small", [Rule("a", memory=Memory.of("200B")), Rule("*")])
    with adaps.Node(TABLES, policy=policy, path=tmp_path) as node:
        worker, table = node.worker(0), node.table("a")
        for row in range(10):
            worker.set(table.keys([row]), np.full(2, row, np.float32))
        values = np.empty((10, 2), np.float32)
        worker.pull(table.keys(range(10)), values)
        assert node.stats()["rows_written"] > 0
        assert node.uses_intent
    assert values[:, 0].tolist() == list(range(10))
    assert list(tmp_path.iterdir()) == []


def test_memory_of_a_policy_needs_a_folder_and_space_for_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAPS_PATH", raising=False)

    def node(memory: int, **options: Any) -> None:
        adaps.Node(TABLES, policy=Policy("small", [Rule("a", memory=Memory(memory)), Rule("*")]), **options)

    with pytest.raises(PolicyError, match=r'memory = "200B" of a needs a folder .* path, or .* ADAPS_PATH'):
        node(200)
    with pytest.raises(PolicyError, match="the policy: table 'a' has memory=9 bytes; one of its rows takes"):
        node(9, path=tmp_path)
    with pytest.raises(ValueError, match=f"path is '{tmp_path}/missing'; it must be an existing folder"):
        node(200, path=tmp_path / "missing")
    monkeypatch.setenv("ADAPS_PATH", str(tmp_path / "missing"))
    with pytest.raises(
        ValueError, match=r"variable ADAPS_PATH is '.*missing'; it must be an existing folder"
    ):
        node(200)


def test_memory_is_refused_where_it_has_no_effect() -> None:
    rule = Rule("a", technique="full_replication", memory=Memory(200))
    with pytest.raises(PolicyError, match="rule 1: memory of a has no effect with technique 'full_repl"):
        adaps.Node(TABLES, policy=Policy("small", [rule, Rule("*")]))
    policy = Policy("small", [Rule("a", memory=Memory(200)), Rule("*")])
    stream = adaps.Stream([{"a": [1]}])
    with pytest.raises(PolicyError, match="a simulation has no disks; leave memory out"):
        adaps.simulate([stream], policy, tables=TABLES[:1])
