"""Policies are executed as declared: the counters of each table show it, and the losses are unchanged."""

from typing import Any

import numpy as np
import pytest
import torch

import adaps
import autoada
from adaps.policy import Home, Policy, PolicyError, RowSelection, Rule, Synchronization
from tests.conftest import Launch

from .autoada_ranks.loops import managed
from .autoada_ranks.task import RATE, ROWS, as_lists, batches, clicks, loss_of, train_share
from .guarantees.common import RANK

STEPS = 20
TECHNIQUES = ("static", "relocation", "replication", "full_replication", "adaptive")


def trained(launch: Launch, policy: Policy) -> list[dict[str, Any]]:
    return launch(managed, 2, shares=2, steps=STEPS, policy=policy.text())


def sent(result: dict[str, Any], table: str, kind: str) -> float:
    return float(result["tables"][table][f"messages_sent_{kind}"])


def expect(results: list[dict[str, Any]], table: str, technique: str, home: int | None = None) -> None:
    """Check that only the counters of a table's technique have counted."""
    kinds = ("intent", "setup", "transfer", "delta", "refresh", "drop")
    messages = {kind: sum(sent(result, table, kind) for result in results) for kind in kinds}
    if technique == "static":
        assert set(messages.values()) == {0}, messages
    else:
        assert messages["intent"] > 0, messages
    if technique == "relocation":
        assert messages["transfer"] > 0, messages
        assert messages["setup"] == messages["delta"] == messages["refresh"] == 0, messages
    if technique in ("replication", "full_replication"):
        assert messages["setup"] > 0, messages
        assert messages["transfer"] == 0, messages
    if technique == "full_replication":
        assert messages["drop"] == 0, messages
    if technique == "static" and home is not None:
        for rank, result in enumerate(results):
            counted = result["tables"][table]
            here, elsewhere = counted["pulled_local"], counted["pulled_remote"]
            assert (here > 0, elsewhere > 0) == (rank == home, rank != home), counted
            assert counted["pulled_replica"] == 0


@pytest.mark.parametrize(
    ("wide", "deep", "dense"),
    [
        ("static", "relocation", "replication"),
        ("replication", "static", "full_replication"),
        ("full_replication", "adaptive", "static"),
    ],
)
def test_tables_are_managed_as_declared_and_losses_are_those_of_one_process(
    launch: Launch, wide: str, deep: str, dense: str
) -> None:
    policy = Policy(
        "mixed",
        [
            Rule("wide.weight", technique=wide, home=Home("node", node=1)),
            Rule("deep.weight", technique=deep, home=Home("node", node=0)),
            Rule("mlp.0.*", technique=dense, home=Home("node", node=1)),
            Rule("*", technique=dense, home=Home("node", node=1)),
        ],
    )
    results = trained(launch, policy)
    expect(results, "wide.weight", wide, home=1)
    expect(results, "deep.weight", deep, home=0)
    expect(results, "dense.0", dense, home=1)
    expected = one_process()
    for result in results:
        for name, values in expected.items():
            assert result["state"][name] == pytest.approx(values, abs=1e-5), name
        for kind in ("pulled_local", "pulled_replica", "pulled_remote", "pushed_local", "bytes_sent_intent"):
            assert sum(table[kind] for table in result["tables"].values()) == result["total"][kind]


def one_process() -> dict[str, Any]:
    plain = clicks()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE / 2)
    for batch in batches(STEPS, 2):
        optimizer.zero_grad()
        (2 * loss_of(plain, batch)).backward()
        optimizer.step()
    return as_lists(plain.state_dict())


def test_rows_are_at_home_where_the_policy_puts_them(launch: Launch) -> None:
    rules = [
        Rule("wide.weight", RowSelection(ranges=((0, 60),)), "static", Home("shares", shares=(1.0, 0.0))),
        Rule("deep.weight", None, "static", Home("shares", shares=(0.0, 1.0))),
        Rule("mlp.0.weight", None, "static", Home("node", node=0)),
        Rule("mlp.0.bias", None, "static", Home("blocks")),
        Rule("*", None, "static"),
    ]
    results = trained(launch, Policy("placed", rules))
    expect(results, "wide.weight", "static", home=0)
    expect(results, "deep.weight", "static", home=1)
    for result in results:
        counted = result["tables"]["dense.0"]
        assert min(counted["pulled_local"], counted["pulled_remote"]) > 0


def test_rows_begin_where_those_of_another_table_do(launch: Launch) -> None:
    rules = [
        Rule("deep.weight", ranges((0, 10)), "relocation", Home("node", node=1)),
        Rule("deep.weight", None, "relocation", Home("blocks")),
        Rule("wide.weight", None, "relocation", Home("with", table="deep.weight")),
        Rule("*"),
    ]
    results = trained(launch, Policy("together", rules))
    assert begun(results, "deep.weight") == [[*range(10, 30)], [*range(10), *range(30, 60)]]
    assert begun(results, "wide.weight") == begun(results, "deep.weight")


@pytest.mark.parametrize("follower", ["wide.weight", "deep.weight"])
def test_rows_begin_where_a_hash_puts_those_of_another_table(launch: Launch, follower: str) -> None:
    (followed,) = {"wide.weight", "deep.weight"} - {follower}
    own = Policy("apart", [Rule("*", technique="static")])
    together = Rule(follower, None, "static", Home("with", table=followed))
    apart = trained(launch, own)
    results = trained(launch, Policy("together", [together, *own.rules]))
    assert begun(results, followed) == begun(apart, followed)
    assert begun(results, follower) == begun(apart, followed) != begun(apart, follower)
    # Both are read together: a node reads a row of one table locally if and only if it does so for the other.
    for counted in (result["tables"] for result in results):
        for served in ("pulled_local", "pulled_remote"):
            assert counted[follower][served] == counted[followed][served] > 0


def test_rows_of_a_table_are_managed_as_their_own_rule_says(launch: Launch) -> None:
    hot = [*range(10), *range(30, 33)]
    rules = [
        Rule("deep.weight", ranges((0, 10), (30, 33)), "replication", Home("node", node=0)),
        # rule 1 manages the first ten
        Rule("deep.weight", ranges((5, 20)), "relocation", Home("node", node=1)),
        Rule("deep.weight", ranges((40, 60)), "static", Home("blocks")),
        Rule("wide.weight", ranges((1, 2), (3, 4)), "full_replication", Home("node", node=1)),
        Rule("mlp.0.weight", None, "static", Home("node", node=1)),
        Rule("mlp.*", None, "replication", Home("node", node=0)),
        Rule("*", technique="relocation", home=Home("node", node=0)),
    ]
    results = trained(launch, Policy("rows", rules))
    expected = one_process()
    for result in results:
        for name, values in expected.items():
            assert result["state"][name] == pytest.approx(values, abs=1e-5), name
    # All rows are used: each is at first on the node that is its home.
    assert begun(results, "deep.weight") == [[*range(10), *range(20, 40)], [*range(10, 20), *range(40, 60)]]
    assert begun(results, "wide.weight") == [[0, 2, *range(4, 60)], [1, 3]]
    assert moved(results, "deep.weight") == {*range(10, 30), *range(33, 40)}
    assert copied(results, "deep.weight") == set(hot)
    assert moved(results, "wide.weight") == {0, 2, *range(4, 60)}
    assert copied(results, "wide.weight") == {1, 3}
    # Dense parameters are stored together in blocks, which are managed like each of the parameters.
    home = results[1]["rows"]["dense.0"]["alloc"]
    assert not {*home} & copied(results, "dense.0")
    assert copied(results, "dense.0") == {*results[0]["rows"]["dense.0"]["alloc"]}
    assert moved(results, "dense.0") == set()


def test_rows_that_are_not_announced_stay_where_they_are(launch: Launch) -> None:
    def copies(name: str, rows: RowSelection | None = None, lookahead: int | None = None) -> Rule:
        return Rule(name, rows, "replication", Home("node", node=0), lookahead)

    rules = [
        copies("deep.weight", ranges((0, 20), (50, 55)), lookahead=0),
        copies("deep.weight", ranges((20, 30)), lookahead=2),
        copies("wide.weight", lookahead=0),
        copies("*"),
    ]
    results = trained(launch, Policy("some", rules))
    # All rows are read in each of the shares.
    assert copied(results, "deep.weight") == {*range(20, 50), *range(55, 60)}
    assert copied(results, "wide.weight") == set()
    for name, values in one_process().items():
        assert results[1]["state"][name] == pytest.approx(values, abs=1e-5), name
    counted = {table: results[1]["tables"][table] for table in ("wide.weight", "deep.weight")}
    reads = [ids.unique() for ids, _ in batches(STEPS, 2, 1)]
    unannounced = sum(int(((ids < 20) | ((ids >= 50) & (ids < 55))).sum()) for ids in reads)
    assert counted["wide.weight"]["messages_sent_intent"] == counted["wide.weight"]["pulled_replica"] == 0
    assert counted["wide.weight"]["pulled_remote"] >= sum(map(len, reads))
    assert counted["deep.weight"]["messages_sent_intent"] > 0
    assert counted["deep.weight"]["pulled_remote"] >= unannounced
    # The final state is read, too.
    assert 0 < counted["deep.weight"]["pulled_replica"] <= sum(map(len, reads)) - unannounced + ROWS


def ranges(*given: tuple[int, int]) -> RowSelection:
    return RowSelection(ranges=given)


def begun(results: list[dict[str, Any]], table: str) -> list[list[int]]:
    return [result["rows"][table].get("alloc", []) for result in results]


def moved(results: list[dict[str, Any]], table: str) -> set[int]:
    return {row for result in results for row in result["rows"][table].get("relocated_here", [])}


def copied(results: list[dict[str, Any]], table: str) -> set[int]:
    return {row for result in results for row in result["rows"][table].get("replica_set_up", [])}


def test_rows_of_a_table_are_sent_as_their_own_rule_says(launch: Launch) -> None:
    def bytes_of_refreshes(wire: str, first: int) -> float:
        rules = [
            Rule("deep.weight", ranges((first, 60)), "full_replication", Home("node", node=0), wire=wire),
            Rule("deep.weight", None, "full_replication", Home("node", node=0)),
            Rule("*", technique="static"),
        ]
        tables = [result["tables"]["deep.weight"] for result in trained(launch, Policy("wires", rules))]
        sent = sum(table["messages_sent_refresh"] for table in tables)
        return float(sum(table["bytes_sent_refresh"] for table in tables) / sent)

    exact, half, all_rows = (
        bytes_of_refreshes(*given) for given in (("float32", 0), ("int8", 30), ("int8", 0))
    )
    assert exact > half > all_rows


def exchanging_rarely() -> dict[str, Any]:
    rule = Rule("*", technique="full_replication", home=Home("node", node=0), exchange=4)
    node = adaps.Node([adaps.Table("t", 2, 1)], policy=Policy("p", [rule]))
    worker, table = node.worker(0), node.table("t")
    one, out = np.ones(1, np.float32), np.zeros(1, np.float32)

    def count(what: str) -> int:
        return int(table.stats()[what])

    def wait_for(key: int, least: int) -> None:
        out[0] = 0
        while out[0] < least:
            worker.pull([key], out)

    for key in (0, 1):  # until the row is here
        before = count("pulled_replica")
        while node.rank == 1 and count("pulled_replica") == before:
            worker.pull([key], out)
    worker.barrier()
    if node.rank == 0:
        worker.push([1], one)
        for _ in range(3):
            worker.advance_clock()
        early = count("messages_sent_refresh")
        worker.advance_clock()
        wait_for(0, 9)
        wait_for(0, 12)  # from a node that is being closed
        found = {"early": early, "last": int(out[0])}
    else:
        for _ in range(12):
            worker.push([0], one)
            worker.advance_clock()
        found = {"deltas": count("messages_sent_delta")}
        wait_for(1, 1)
    node.close()
    return found


def test_changes_of_copies_are_exchanged_after_so_many_clocks(launch: Launch) -> None:
    owner, other = launch(exchanging_rarely, 2)
    assert owner == {"early": 0, "last": 12}
    assert other["deltas"] <= 3


def test_what_is_not_executed_is_refused_by_the_model() -> None:
    def refused(policy: Policy, said: str) -> None:
        with pytest.raises(PolicyError, match=said):
            autoada.AdaModel(clicks(), policy=policy)

    refused(
        Policy("a", [Rule("dense", technique="allreduce", wire="int8"), Rule("*")]),
        "rule 1: wire of mlp.0.weight has no effect with technique 'allreduce'",
    )
    every_node = Policy("a", [Rule("dense", technique="allreduce"), Rule("*")])
    with pytest.raises(ValueError, match=r"mlp\.0\.weight' is all-reduced .* needs an optimizer"):
        autoada.AdaModel(clicks(), policy=every_node)
    plain = clicks()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    with pytest.raises(PolicyError, match=r"'allreduce' of mlp\.0\.bias takes one worker per node, not 2"):
        autoada.create_node(plain, optimizer, policy=every_node, workers=2)
    alone = torch.nn.Linear(2, 1)
    with pytest.raises(PolicyError, match="leaves nothing to the parameter server"):
        autoada.AdaModel(
            alone,
            torch.optim.SGD(alone.parameters(), lr=RATE),
            policy=Policy("a", [Rule("dense", technique="allreduce"), Rule("*")]),
        )
    refused(Policy("a", [Rule("deep.weights"), Rule("*")]), "unknown parameter 'deep.weights'")
    rows = RowSelection(ranges=((0, 2),))
    refused(
        Policy("a", [Rule("mlp.0.weight", rows, home=Home("node", node=0)), Rule("*")]),
        "rules 1 and 2 give rows of mlp.0.weight different homes, but a dense parameter is",
    )
    refused(Policy("a", [Rule("*", home=Home("node", node=1))]), "home node is 1; there are 1 nodes")
    with pytest.raises(TypeError, match=r"policy is 'static'; it must be an adaps\.Policy"):
        autoada.AdaModel(clicks(), policy="static")  # type: ignore[arg-type]
    with (
        autoada.create_node(clicks()) as node,
        pytest.raises(ValueError, match="policy cannot be passed with a node"),
    ):
        autoada.AdaModel(clicks(), node=node, policy=Policy.uniform("static"))


def different_policies() -> dict[str, Any]:
    mine = [
        Policy("a", [Rule("0.weight", lookahead=2), Rule("*")], synchronization=Synchronization(1)),
        Policy("b", [Rule("dense", technique="allreduce"), Rule("*")]),
    ][RANK]
    model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(adaps.RendezvousError) as refused:
        autoada.AdaModel(model, optimizer, policy=mine)
    return {"refused": str(refused.value)}


def test_nodes_with_different_policies_are_told_at_the_start(launch: Launch) -> None:
    for rank in launch(different_policies, 2):
        assert rank["refused"] == "rank 1 has every = none and rank 0 has 1: give every node the same policy"


def test_a_single_node_trains_with_any_technique() -> None:
    policies = [Policy.uniform(technique) for technique in TECHNIQUES]
    policies.append(Policy("reduced", [Rule("dense", technique="allreduce"), Rule("*")]))
    for policy in policies:
        model = clicks()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with autoada.create_node(model, optimizer, policy=policy) as node:
            assert node.policy is not None
            train_share(node, 0, 3)
