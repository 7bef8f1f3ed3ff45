"""Technique "auto": nodes try whether moving rows pays, agree, and keep the choice; records show it."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from adabench.results.store import list_sessions
from adaps.policy import Policy, Rule, Synchronization
from autoada.training.ab_schedule import PHASE, TOGETHER, WARM_UP, Schedule
from tests.conftest import Launch

from .autoada_ranks.sessions import chosen_techniques

SMALL = {"rows": 3600, "vocabulary": 40, "dim": 4, "hidden": [4], "batch": 16}
BACKENDS = ("manual", "prefetch", "autoada-manual", "autoada-automatic")
SOONEST_OF_ALL = WARM_UP + 4 * PHASE
# All nodes step together, so each node knows the others' posts of two steps ago.
IN_STEP = Synchronization(1)


@pytest.mark.parametrize("factor", [1.5, 0.7])
def test_all_nodes_keep_to_what_takes_less_time(launch: Launch, factor: float) -> None:
    rules = [Rule("deep.weight", technique="auto"), Rule("wide.weight", technique="static"), Rule("*")]
    policy = Policy("mine", rules, synchronization=IN_STEP).text()
    cases = [
        {"usecase": "ctr", "params": SMALL, "backend": name, "policy": policy, "lookahead": 4, "steps": 60}
        for name in BACKENDS
    ]
    soonest = SOONEST_OF_ALL
    tried = [step for step in range(soonest) if Schedule(1).moves(0, step)]
    results = launch(chosen_techniques, 2, cases=cases, factors=[factor])
    for (rank, result), number in product(enumerate(results), range(len(cases))):
        run = result["runs"][number]
        told = (rank, BACKENDS[number], run)
        (chosen,) = run["chosen"]
        assert chosen["table"] == "deep.weight", told
        assert chosen["technique"] == ("static" if factor > 1 else "adaptive"), told
        assert chosen["ratio"] == pytest.approx(factor), told
        assert (chosen["pairs"], chosen["alone"]) == (2, False), told
        assert soonest <= chosen["steps"] <= soonest + 2, told
        announced = run["announced"]["deep.weight"]
        assert [step for step in announced if step < soonest] == tried, told
        later = [step for step in announced if chosen["steps"] + 1 < step < 60]
        expected = range(chosen["steps"] + 2, 60) if factor < 1 else []
        assert later == list(expected), told


def test_tables_are_chosen_for_apart(launch: Launch) -> None:
    policy = Policy("auto", [Rule("tables", technique="auto"), Rule("*")], synchronization=IN_STEP).text()
    case = {
        **{"usecase": "ctr", "params": SMALL | {"rows": 9000}, "backend": "autoada-automatic"},
        **{"policy": policy, "lookahead": 3},
    }
    soonest = Schedule(2).end_of(TOGETHER + 3)
    steps = (SOONEST_OF_ALL, soonest + 10)
    results = launch(chosen_techniques, 2, cases=[case | {"steps": n} for n in steps], factors=[1.4, 0.6])
    for result in results:
        early, late = (run["chosen"] for run in result["runs"])
        assert [one["table"] for one in early] == ["wide.weight", "deep.weight"]
        for one in early:  # nothing is reported before it is known
            assert (one["technique"], one["steps"], one["ratio"]) == ("adaptive", None, None)
        assert [one["technique"] for one in late] == ["static", "adaptive"]
        assert [one["ratio"] for one in late] == [pytest.approx(1.4), pytest.approx(0.6)]
        assert all(soonest <= one["steps"] <= soonest + 2 for one in late)
        announced = result["runs"][1]["announced"]
        assert max(announced["wide.weight"]) < soonest + 4
        assert set(announced["deep.weight"]) >= set(range(soonest + 4, soonest + 10))


def test_tables_that_make_a_great_difference_together_are_chosen_for_together(launch: Launch) -> None:
    policy = Policy("auto", [Rule("tables", technique="auto"), Rule("*")], synchronization=IN_STEP).text()
    case = {
        **{"usecase": "ctr", "params": SMALL | {"rows": 9000}, "backend": "autoada-automatic"},
        **{"policy": policy, "lookahead": 3, "steps": SOONEST_OF_ALL + 6},
    }
    for factors, technique in (([1.4, 1.1], "static"), ([0.9, 0.7], "adaptive")):
        for result in launch(chosen_techniques, 2, cases=[case], factors=factors):
            (run,) = result["runs"]
            assert [one["technique"] for one in run["chosen"]] == [technique] * 2
            for one in run["chosen"]:
                assert one["ratio"] == pytest.approx(factors[0] * factors[1])
                assert SOONEST_OF_ALL <= one["steps"] <= SOONEST_OF_ALL + 2


def test_a_record_has_what_each_node_chose(adabench: Any, tmp_path: Path) -> None:
    ctr = "ctr[rows=7000,vocabulary=100,dim=4,hidden=8,epochs=1,batch=16]"
    done = adabench("run", "-u", ctr, "-b", "autoada-automatic[policy=auto]", "-r", "1", "--nodes", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    (store,) = list_sessions(tmp_path / "adabench-results")
    (run,) = store.runs()
    assert run.status == "ok"
    assert run.policy is not None
    assert [rule.technique for rule in Policy.parse(run.policy).rules] == ["auto", "adaptive"]
    assert [(one.rank, one.table) for one in run.choices] == list(
        product((0, 1), ("wide.weight", "deep.weight"))
    )
    for table in ("wide.weight", "deep.weight"):
        own = [one for one in run.choices if one.table == table]
        assert len({(one.technique, one.ratio) for one in own if one.steps is not None}) <= 1
        assert all(one.steps is None or one.steps >= SOONEST_OF_ALL for one in own)
        # rows are announced while they may move, and therefore not under `static`
        assert run.tables[table]["messages_sent_intent"] > 0
    assert '"choices"' in adabench("show", run.run_id).stdout
