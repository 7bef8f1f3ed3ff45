"""Policies of cells are built for their model and nodes before anything starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adabench.harness.errors import UsageError
from adabench.harness.planning.cell import Cell
from adabench.harness.planning.plan import cells_of
from adabench.harness.planning.study import load_study
from adaps.policy import Home, MadeFor, Policy, RowSelection, Rule

CTR = "ctr[rows=2000,vocabulary=100,dim=4,hidden=8]"


def planned(backends: str, nodes: str = "2", **settings: str) -> list[Cell]:
    given = {"usecases": CTR, "backends": backends, "nodes": nodes, **settings}
    return cells_of(load_study(None, "s", given))


def policy_of(cell: Cell) -> Policy:
    assert cell.policy is not None
    return Policy.parse(cell.policy)


def test_each_cell_has_the_policy_for_its_nodes_and_others_have_none() -> None:
    cells = planned("single,manual[policy=static,balanced],prefetch", "2,3")
    assert [(cell.backend, cell.options.get("policy"), cell.nodes) for cell in cells] == [
        ("single", None, 1),
        *(("manual", name, nodes) for name in ("static", "balanced") for nodes in (2, 3)),
        *(("prefetch", "adaptive", nodes) for nodes in (2, 3)),
    ]
    assert cells[0].policy is None
    for cell in cells[1:]:
        policy = policy_of(cell)
        assert policy.name == cell.options["policy"]
        assert policy.made_for is not None
        assert policy.made_for.nodes == cell.nodes
    homes = {rule.home.node for rule in policy_of(cells[4]).rules}
    assert homes == {None, 0, 1, 2}
    assert len({cell.id for cell in cells}) == len(cells)


def test_a_file_is_kept_whole_with_the_rows_that_it_names_and_decides_the_cell(tmp_path: Path) -> None:
    rows = np.array([3, 4, 9], dtype=np.int64)
    np.save(tmp_path / "rows.npy", rows)
    file = tmp_path / "mine.toml"
    rule = Rule("deep.weight", RowSelection(file="rows.npy"), home=Home("node", node=1))
    Policy("mine", [rule, Rule("*")]).write(file)
    (before,) = planned(f"manual[policy={file}]")
    assert policy_of(before).rules[0].rows == RowSelection(ranges=((3, 5), (9, 10)))
    np.save(tmp_path / "rows.npy", rows + 1)
    (after,) = planned(f"manual[policy={file}]")
    assert policy_of(after).rules[0].rows == RowSelection(ranges=((4, 6), (10, 11)))
    assert before.id != after.id


def test_access_counts_come_from_the_batches_of_the_use_case_where_they_are_needed(tmp_path: Path) -> None:
    file = tmp_path / "hot.toml"
    hottest = Rule("tables", RowSelection(hottest=0.01), home=Home("node", node=0))
    Policy("hot", [hottest, Rule("*")]).write(file)
    (cell,) = planned(f"manual[policy={file}]")
    rules = policy_of(cell).rules
    assert [rule.parameters for rule in rules[:-1]] == ["wide.weight", "deep.weight"]
    assert all(rule.rows is not None and rule.rows.ranges is not None for rule in rules[:-1])
    (nups,) = planned("manual[policy=nups[times=2]]")
    assert [rule.parameters for rule in policy_of(nups).rules if rule.rows is not None] == [
        "wide.weight",
        "deep.weight",
    ]
    (nups,) = planned("manual[policy=nups[times=1e6]]")
    assert policy_of(nups).rules == (
        Rule("dense", technique="replication"),
        Rule("*", technique="relocation"),
    )


def test_a_policy_for_another_model_or_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    Policy("mine", [Rule("*")], MadeFor("sha256:" + "0" * 64)).write(file)
    with pytest.raises(UsageError, match=r"mine\.toml: it was made for another model"):
        planned(f"manual[policy={file}]")
    Policy("mine", [Rule("*")], MadeFor(nodes=2)).write(file)
    assert len(planned(f"manual[policy={file}]")) == 1
    with pytest.raises(UsageError, match=r"mine\.toml: it was made for 2 nodes, not 3"):
        planned(f"manual[policy={file}]", "2,3")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("nup", "backend 'manual': unknown policy, neither a file nor a builder, 'nup': did you mean 'nups'"),
        ("nups[tims=3]", "unknown parameter of builder 'nups' 'tims': did you mean 'times'"),
        ("gone.toml", "backend 'manual': gone.toml: no such file or directory"),
        ("uneven", r"backend 'manual': uneven: \[data\]: shares = 'speed' is not executed"),
    ],
)
def test_what_is_wrong_or_not_executed_is_refused_before_anything_starts(policy: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(f"manual[policy={policy}]")


def test_what_a_cell_has_beside_its_policy_is_looked_at() -> None:
    assert len(planned("manual[policy=parallax]")) == 1
    with pytest.raises(UsageError, match=r"'allreduce' of .* takes one worker per node, not 2"):
        planned("manual[policy=parallax]", workers="2")
    with pytest.raises(UsageError, match=r"'allreduce' of .* which the network 'lan' does not slow down"):
        planned("manual[policy=allreduce]", network="lan")
