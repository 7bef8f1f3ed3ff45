"""Policies of cells are built for their model and nodes before anything starts."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adabench.harness.errors import UsageError
from adabench.harness.study.cell import Cell, usecase_of
from adabench.harness.study.data_partition import partitioned, with_whole_samples
from adabench.harness.study.plan import cells_of
from adabench.harness.study.study import load_study
from adaps.policy import DataSharing, Home, MadeFor, Policy, PolicyError, RowSelection, Rule

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
        ("nup", "backend 'manual': unknown policy 'nup', neither a file nor a builder: did you mean 'nups'"),
        ("nups[tims=3]", "unknown parameter 'tims' of builder 'nups': did you mean 'times'"),
        ("gone.toml", "backend 'manual': gone.toml: no such file or directory"),
    ],
)
def test_what_is_wrong_or_not_executed_is_refused_before_anything_starts(policy: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(f"manual[policy={policy}]")


def shared(tmp_path: Path, shares: str | tuple[float, ...]) -> str:
    file = tmp_path / "shared.toml"
    Policy("shared", [Rule("*")], data=DataSharing(shares)).write(file)
    return f"manual[policy={file}]"


def test_shares_of_the_data_are_those_of_whole_samples(tmp_path: Path) -> None:
    (uneven,) = planned("manual[policy=uneven]")
    assert policy_of(uneven).data.shares == (0.5, 0.5)  # the nodes of a run are assumed to be equally fast
    (cell,) = planned(shared(tmp_path, (0.7, 0.3)), usecases=f"{CTR[:-1]},batch=64]")
    assert policy_of(cell).data.shares == (90 / 128, 38 / 128)
    (cell,) = planned(shared(tmp_path, (0.7, 0.3)), workers="2", usecases=f"{CTR[:-1]},batch=64]")
    sizes = partitioned(usecase_of(cell, 1), policy_of(cell), 2)._batches  # type: ignore[attr-defined]
    assert sizes == (90, 90, 38, 38)


@pytest.mark.parametrize("step", [2, 3, 7, 100, 128, 4097])
def test_whole_samples_make_shares_that_make_them_again(step: int) -> None:
    random_ = random.Random(step)
    for _ in range(100):
        cuts = [random_.random() + 0.3 for _ in range(random_.randrange(1, 9))]
        policy = Policy("a", [Rule("*")], data=DataSharing(tuple(cut / sum(cuts) for cut in cuts)))
        try:
            once = with_whole_samples(policy, step)
        except PolicyError:
            assert step < 8
            continue
        assert with_whole_samples(once, step) == once
        for given, found in zip(policy.data.numbers, once.data.numbers, strict=True):
            assert abs(given - found) * step * len(cuts) < 1


def test_shares_that_cannot_be_dealt_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"shared\.toml: \[data\]: shares = 'speed' needs the speed of each"):
        planned(shared(tmp_path, "speed"))
    with pytest.raises(UsageError, match=r"\[data\]: shares has 2 numbers for 3 nodes; give one each"):
        planned(shared(tmp_path, (0.5, 0.5)), "3")
    with pytest.raises(UsageError, match=r"share 0\.001 gives node 1 less than one of the 128 samples of a"):
        planned(shared(tmp_path, (0.999, 0.001)), usecases=f"{CTR[:-1]},batch=64]")
    policy = Policy("a", [Rule("*")], data=DataSharing((0.75, 0.25)))
    plain: Any = SimpleNamespace(name="plain")
    with pytest.raises(PolicyError, match="differ, and use case 'plain' supports only equal shares"):
        partitioned(plain, policy, 1)
    assert partitioned(plain, replace(policy, data=DataSharing((0.5, 0.5))), 1) is plain


def test_what_a_cell_has_beside_its_policy_is_looked_at() -> None:
    assert len(planned("manual[policy=parallax]")) == 1
    with pytest.raises(UsageError, match=r"'allreduce' of .* takes one worker per node, not 2"):
        planned("manual[policy=parallax]", workers="2")
    with pytest.raises(UsageError, match=r"'allreduce' of .* which the network 'lan' does not slow down"):
        planned("manual[policy=allreduce]", network="lan")
