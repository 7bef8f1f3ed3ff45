"""Whether rows move is tried in balanced phases and decided alike by all workers; times are simulated."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import Any, NoReturn, cast

import pytest
import torch

import adaps
import autoada
from adaps.policy import Policy, Rule
from autoada.model.node_setup import plan_of
from autoada.model.wrapper import training_state_of
from autoada.training.ab_schedule import (
    AHEAD,
    GREAT,
    GROUPS,
    LEAST,
    MOST_PAIRS,
    PHASE,
    TOGETHER,
    WARM_UP,
    Schedule,
    typical,
)
from autoada.training.technique_choice import PATIENCE, TechniqueTrial, grouped
from tests.unit.autoada.small_net import IntentLog, Pairs, pairs_of

ONE = {"rows": 4}
SOONEST = WARM_UP + 2 * 2 * PHASE
"""Steps after which one table's pairs are balanced for the first time."""
LONGEST = WARM_UP + 2 * MOST_PAIRS * PHASE
"""Steps after which one table is decided in any case."""
Costs = Callable[[int, int, Mapping[str, bool]], float]
"""Seconds of a worker's step of that number while these tables' rows move."""


class Posts:
    """The texts that workers have posted for each other."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def post(self, name: str, text: str) -> None:
        self.texts[name] = text

    def posted(self, name: str) -> str | None:
        return self.texts.get(name)


class Ended(Posts):
    """A store that does not exist any more."""

    def post(self, name: str, text: str = "") -> NoReturn:
        raise RuntimeError("Connection reset by peer")

    posted = post


class Worker:
    """Makes steps; their seconds are made up, and each step sets the clock."""

    def __init__(
        self, index: int, workers: int, posts: Posts, tables: Mapping[str, int], costs: Costs
    ) -> None:
        self.trial = TechniqueTrial(
            tables, cast("Any", posts), index, workers, clock=100, now=lambda: self.seconds
        )
        self.index, self.posts, self.tables, self.costs = index, posts, tables, costs
        self.seconds = 0.0
        self.clock = 100
        self.steps = 0
        self.moved: list[dict[str, bool]] = []

    def step(self, known: bool = True) -> None:
        moving = {table: self.trial.moves(table, self.clock) for table in self.tables}
        self.moved.append(moving)
        self.seconds += self.costs(self.index, self.steps, moving)
        self.trial.ended(self.clock, known)
        self.clock += 1
        self.steps += 1

    @property
    def chosen(self) -> autoada.TechniqueChoice:
        """The choice for the first table."""
        return self.trial.chosen()[0]


def workers_of(
    costs: Costs, count: int = 2, tables: Mapping[str, int] = ONE, of: int | None = None
) -> list[Worker]:
    """The first `count` workers of those that share a store."""
    posts = Posts()
    return [Worker(index, of or count, posts, tables, costs) for index in range(count)]


def trained(costs: Costs, steps: int, workers: int = 2, tables: Mapping[str, int] = ONE) -> list[Worker]:
    """Workers that have made their steps in turn."""
    made = workers_of(costs, workers, tables)
    for _ in range(steps):
        for worker in made:
            worker.step()
    return made


def factors(**factor: float) -> Costs:
    """Steps of a second, times a table's factor while its rows move."""
    return lambda index, step, moving: math.prod(factor[table] for table, moves in moving.items() if moves)


@pytest.mark.parametrize("groups", range(1, GROUPS + 1))
def test_pairs_are_balanced(groups: int) -> None:
    schedule = Schedule(groups)
    first = schedule.together
    block = 2 if groups == 1 else 4
    pairs = range(first, first + block)
    columns = [[schedule.sign(group, pair) for pair in pairs] for group in range(groups)]
    for column in columns:  # as often first as second
        assert sum(column) == 0
    for one, other in combinations(columns, 2):  # independent of all other columns
        assert sum(a * b for a, b in zip(one, other, strict=True)) == 0
    assert MOST_PAIRS % block == 0
    for group, position in product(range(groups), range(WARM_UP)):
        assert schedule.moves(group, position)
    for group, pair in product(range(groups), range(schedule.most)):
        halves = [
            {schedule.moves(group, WARM_UP + (2 * pair + half) * PHASE + step) for step in range(PHASE)}
            for half in (0, 1)
        ]
        assert halves == [{schedule.sign(group, pair) < 0}, {schedule.sign(group, pair) > 0}]


@pytest.mark.parametrize("groups", range(2, GROUPS + 1))
def test_several_tables_are_tried_together_first(groups: int) -> None:
    schedule = Schedule(groups)
    assert schedule.together == TOGETHER
    assert sum(schedule.sign(0, pair) for pair in range(TOGETHER)) == 0
    for position in range(schedule.end_of(TOGETHER - 1)):
        assert len({schedule.moves(group, position) for group in range(groups)}) == 1
    assert Schedule(1).together == 0


@pytest.mark.parametrize("groups", range(1, GROUPS + 1))
def test_steps_beside_a_change_do_not_count(groups: int) -> None:
    schedule = Schedule(groups)
    last = schedule.end_of(schedule.most - 1)
    state = [[schedule.moves(group, step) for group in range(groups)] for step in range(last + 2 * PHASE)]
    for step in range(WARM_UP, last):
        around = state[step - AHEAD : step + AHEAD + 1]
        assert schedule.counts(step) == all(one == state[step] for one in around), step
    for first in range(WARM_UP, last, PHASE):
        assert sum(schedule.counts(step) for step in range(first, first + PHASE)) >= 2 * LEAST
    assert not any(schedule.counts(step) for step in range(WARM_UP))


@pytest.mark.parametrize(
    ("factor", "technique", "pairs"),
    [(1.33, "static", 2), (0.7, "adaptive", 2), (4.0, "static", 2), (0.4, "adaptive", 2)],
)
@pytest.mark.parametrize("workers", [2, 5])
def test_what_takes_much_longer_is_over_soon(factor: float, technique: str, pairs: int, workers: int) -> None:
    soonest = WARM_UP + 2 * pairs * PHASE
    made = trained(factors(rows=factor), soonest + 1, workers)
    for worker in made:
        found = worker.chosen
        assert (found.table, found.technique, found.pairs, found.alone) == ("rows", technique, pairs, False)
        assert found.ratio == pytest.approx(factor)
        assert found.steps is not None
        assert soonest <= found.steps <= soonest + 1
        assert not worker.trial.is_open
        assert worker.trial.left() == ({"rows"} if technique == "static" else set())
        assert worker.trial.moves("rows", worker.clock + 1000) == (technique == "adaptive")
        assert worker.trial.moves("another", worker.clock)


def slower_and_slower(index: int, step: int, moving: Mapping[str, bool]) -> float:
    return 1.01**step * (0.95 if moving["rows"] else 1.0)


def slow_start(slow: float) -> Costs:
    """Steps of the first phase of all show something else than rows that move."""
    return lambda index, step, moving: (
        (slow if step < WARM_UP + PHASE else 1.0) * (1.15 if moving["rows"] else 1.0)
    )


def different_workers(index: int, step: int, moving: Mapping[str, bool]) -> float:
    return (3.0, 0.9, 0.5)[index] if moving["rows"] else 1.0


@pytest.mark.parametrize(
    ("costs", "workers", "technique", "ratio", "soonest"),
    [
        pytest.param(factors(rows=1.04), 2, "static", 1.04, MOST_PAIRS, id="hardly slower"),
        pytest.param(factors(rows=0.96), 2, "adaptive", 0.96, MOST_PAIRS, id="hardly faster"),
        pytest.param(factors(rows=1.0), 2, "adaptive", 1.0, MOST_PAIRS, id="no difference"),
        pytest.param(slower_and_slower, 2, "adaptive", 0.95, 2, id="a machine that gets slower"),
        *(
            pytest.param(slow_start(slow), 2, "static", 1.15, 4, id=f"start {slow}")
            for slow in (1.5, 2.5, 10)
        ),
        pytest.param(different_workers, 3, "adaptive", 0.9, 2, id="workers that find different ratios"),
    ],
)
def test_the_effect_of_moving_rows_decides_for_all_workers(
    costs: Costs, workers: int, technique: str, ratio: float, soonest: int
) -> None:
    for worker in trained(costs, LONGEST + 1, workers):
        assert worker.chosen.technique == technique
        assert worker.chosen.ratio == pytest.approx(ratio, abs=0.01 if costs is slower_and_slower else 1e-6)
        assert worker.chosen.pairs >= soonest


def test_nothing_is_chosen_before_the_trial_ends() -> None:
    none = trained(factors(rows=1.04), LONGEST - 1)[0].chosen
    assert (none.technique, none.steps, none.pairs, none.ratio) == ("adaptive", None, 0, None)


@pytest.mark.parametrize(
    ("factors_of", "technique", "pairs"),
    [
        ((1.5, 1.0, 1.0), "static", 2),
        ((0.9, 0.6, 1.2), "adaptive", 2),
        ((1.3, 1.3, 0.8), "static", 2),
    ],
)
def test_what_makes_a_great_difference_together_is_not_told_apart(
    factors_of: tuple[float, ...], technique: str, pairs: int
) -> None:
    tables = {"a": 1, "b": 16, "c": 16}
    costs = factors(**dict(zip(tables, factors_of, strict=True)))
    for worker in trained(costs, SOONEST + 1, tables=tables):
        for found in worker.trial.chosen():
            assert (found.technique, found.pairs) == (technique, pairs)
            assert found.ratio == pytest.approx(math.prod(factors_of))


@pytest.mark.parametrize(
    "signs", [(1.3, 0.8, 1.1), (0.75, 1.2, 1.15), (1.2, 0.8, 0.9), (1.15, 1.15, 0.85), (0.8, 1.3, 0.9)]
)
def test_tables_are_told_apart(signs: tuple[float, ...]) -> None:
    """Together they make no great difference."""
    assert abs(math.log(math.prod(signs))) < GREAT
    tables = {"a": 1, "b": 16, "c": 16}
    costs = factors(**dict(zip(tables, signs, strict=True)))
    for worker in trained(costs, Schedule(3).end_of(TOGETHER + MOST_PAIRS - 1) + 1, tables=tables):
        for found, factor in zip(worker.trial.chosen(), signs, strict=True):
            assert found.technique == ("static" if factor > 1 else "adaptive")
            assert found.ratio == pytest.approx(factor)
            assert TOGETHER < found.pairs <= Schedule(3).most


def test_the_worse_is_seldom_chosen_by_noise() -> None:
    """The times of steps vary by half, so a single pair of phases may mislead."""
    wrong = 0
    for seed in range(100):
        generator = random.Random(seed)

        def costs(index: int, step: int, moving: Mapping[str, bool], own: random.Random = generator) -> float:
            return math.exp(own.gauss(0.0, 0.5)) * (1.3 if moving["rows"] else 1.0)

        worker, _ = trained(costs, LONGEST + 1)
        wrong += worker.chosen.technique == "adaptive"
    assert wrong <= 3


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_vary_and_pauses_do_not_decide(seed: int) -> None:
    generator = random.Random(seed)

    def costs(index: int, step: int, moving: Mapping[str, bool]) -> float:
        pause = 50.0 if generator.random() < 0.03 else 0.0
        return math.exp(generator.gauss(0.0, 0.25)) * (1.4 if moving["rows"] else 1.0) + pause

    made = trained(costs, LONGEST + 1, workers=4)
    assert {worker.chosen.technique for worker in made} == {"static"}
    assert len({worker.chosen.ratio for worker in made}) == 1


def test_slow_workers_are_waited_for_by_going_on() -> None:
    quick, slow = workers_of(factors(rows=1.3))
    for _ in range(SOONEST):
        slow.step()
        for _ in range(4):
            quick.step()
    assert slow.trial.is_open  # it told the other worker last, and that worker has decided
    slow.step()
    first, second = quick.chosen, slow.chosen
    assert (first.technique, first.pairs, first.alone) == ("static", 2, False)
    assert (first.steps, second.steps) == (4 * (SOONEST - 1) + 1, SOONEST + 1)
    before = quick.moved[: first.steps]
    assert [one["rows"] for one in before] == [Schedule(1).moves(0, step) for step in range(len(before))]


def test_nobody_waits_for_ever_for_somebody_who_does_not_train() -> None:
    (lonely,) = trained(factors(rows=1.2), 1000, workers=1)  # who decides, with one who never steps
    first, second = workers_of(factors(rows=1.2), of=3)
    for _ in range(WARM_UP + 2 * PATIENCE * MOST_PAIRS * PHASE - 1):
        first.step()
        second.step()
    assert first.trial.is_open
    assert second.trial.is_open
    second.step()  # learns of no decision
    first.step()
    found = [worker.chosen for worker in (lonely, first, second)]
    assert [one.technique for one in found] == ["static"] * 3
    assert [one.ratio for one in found] == [pytest.approx(1.2)] * 3
    assert [one.alone for one in found] == [False, False, True]
    assert [one.pairs for one in found] == [2, MOST_PAIRS, MOST_PAIRS]


@pytest.mark.parametrize(
    ("steps", "technique", "ratio"),
    [(SOONEST - 1, "adaptive", None), (SOONEST, "static", pytest.approx(2.0))],
)
def test_who_decides_does_so_when_it_leaves(steps: int, technique: str, ratio: float | None) -> None:
    first, second = workers_of(factors(rows=2.0))
    for _ in range(steps):
        first.step()
    first.trial.close()
    second.trial.close()  # posts nothing
    for _ in range(SOONEST):
        second.step()
    for worker in (first, second):
        found = worker.chosen
        assert (found.technique, found.ratio, found.pairs) == (technique, ratio, 1 if ratio is None else 2)
    first.trial.close()
    assert len([name for name in first.posts.texts if "decided" in name]) == 1


def test_without_a_store_each_decides_alone(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(1, 2, Ended(), ONE, factors(rows=1.3))
    with caplog.at_level(logging.INFO, "autoada"):
        for _ in range(WARM_UP + 2 * PATIENCE * MOST_PAIRS * PHASE):
            worker.step()
    found = worker.chosen
    assert (found.technique, found.alone) == ("static", True)
    assert (
        f"rows of 'rows' stay where they are, after {worker.steps} steps: a step took 1.30 times as long"
        in caplog.text
    )


def test_phases_go_on_in_the_next_loop() -> None:
    workers = workers_of(factors(rows=1.5))
    for _ in range(9):
        for worker in workers:
            worker.trial.begin(worker.clock)
        for _ in range(21):
            for worker in workers:
                worker.step()
        for worker in workers:
            worker.clock += 1000  # announced clocks that did not take place
            worker.seconds += 500.0  # the time of an evaluation
    for worker in workers:
        found = worker.chosen
        assert (found.technique, found.pairs) == ("static", 2)
        assert found.ratio == pytest.approx(1.5)
        assert found.steps is not None
        assert SOONEST <= found.steps <= SOONEST + 1


def test_rows_that_nobody_knows_ahead_are_no_evidence() -> None:
    workers = workers_of(factors(rows=3.0))
    for _, worker in product(range(LONGEST + 1), workers):
        worker.step(known=False)
    for worker in workers:
        found = worker.chosen
        assert (found.technique, found.ratio, found.pairs) == ("adaptive", None, MOST_PAIRS)


def test_many_tables_are_tried_together_with_those_of_similar_rows() -> None:
    assert grouped({"a": 16, "b": 16, "c": 16}) == {"a": 0, "b": 1, "c": 2}
    assert grouped(dict.fromkeys("abcdef", 16)) == dict.fromkeys("abcdef", 0)
    assert grouped({"a": 1, "b": 16, "c": 1, "d": 16}) == {"a": 0, "b": 1, "c": 0, "d": 1}
    many = grouped({f"t{length}": length for length in range(1, 8)})
    assert [many[f"t{length}"] for length in range(1, 8)] == [0, 0, 0, 1, 1, 2, 2]


def test_a_step_counts_as_two_at_most() -> None:
    assert typical([1.0, 1.0, 1.0, 100.0]) == pytest.approx(1.25)
    assert typical([1.0, 1.5, 1.0, 1.5]) == pytest.approx(1.25)
    assert typical([0.0, 0.0]) > 0


# Loops of a wrapped model


@pytest.fixture
def model() -> Iterator[autoada.AdaModel]:
    torch.manual_seed(0)
    model = autoada.AdaModel(Pairs())
    yield model
    model.close()


def on_trial(model: autoada.AdaModel, factor: float, tables: Iterable[str]) -> TechniqueTrial:
    """Have a model, which is alone, try tables as workers of several nodes do."""
    seconds = 0.0

    def now() -> float:
        nonlocal seconds
        moves = any(trial.moves(table, model.worker.current_clock - 1) for table in tables)
        seconds += factor if moves else 1.0
        return seconds

    trial = TechniqueTrial(
        dict.fromkeys(tables, 2), cast("Any", Posts()), 0, 1, model.worker.current_clock, now=now
    )
    training_state_of(model).trial = trial
    return trial


def train(model: autoada.AdaModel, count: int, lookahead: int) -> None:
    keys = {"users": lambda batch: batch[0], "items": lambda batch: batch[1]}
    for users, items, _ in autoada.AdaDataLoader(pairs_of(count), lookahead, keys=keys, model=model):
        model(users, items).sum().backward()


@pytest.mark.parametrize(("factor", "moves"), [(1.5, False), (0.7, True)])
def test_a_loader_announces_what_is_to_move(model: autoada.AdaModel, factor: float, moves: bool) -> None:
    log = IntentLog(model)
    trial = on_trial(model, factor, ["users.weight"])
    train(model, 100, lookahead=5)
    assert trial.chosen()[0].steps == SOONEST
    users = dict(log.of_table("users.weight"))
    tried = {clock for clock in range(SOONEST) if Schedule(1).moves(0, clock)}
    assert tried == {clock for clock in users if clock < SOONEST}
    assert max(distance for clock, distance in users.items() if clock < SOONEST) == AHEAD
    # the next phase's first batches were announced before it was decided
    assert Schedule(1).moves(0, SOONEST)
    late = {clock: distance for clock, distance in users.items() if clock >= SOONEST}
    assert sorted(late) == list(range(SOONEST, 100 if moves else SOONEST + AHEAD))
    if moves:
        assert max(late.values()) == 5
    assert [clock for clock, _ in log.of_table("items.weight")] == list(range(100))
    model.worker.advance_clock()
    before = len(log.of_table("users.weight"))
    train(model, 3, lookahead=5)
    assert len(log.of_table("users.weight")) - before == (3 if moves else 0)


def test_a_loop_by_hand_asks_what_is_due(model: autoada.AdaModel) -> None:
    trial = on_trial(model, 1.5, ["users.weight"])
    model.begin_loop()
    start = model.worker.current_clock
    due = []
    for step in range(SOONEST + 5):
        clock = start + step
        due.append(model.is_due("users.weight", clock))
        assert model.is_due("items.weight", clock + 50)
        if trial.is_open:
            assert not model.is_due("users.weight", clock + AHEAD + 1)
        model.advance_clock()
    assert due == [Schedule(1).moves(0, step) for step in range(SOONEST)] + [False] * 5
    assert not model.is_due("users.weight", model.worker.current_clock)


def test_without_lookahead_there_is_nothing_to_try(model: autoada.AdaModel) -> None:
    log = IntentLog(model)
    trial = on_trial(model, 1.5, ["users.weight"])
    train(model, LONGEST + 1, lookahead=0)
    assert log.calls == []
    assert trial.chosen()[0].ratio is None


AUTO = Policy("auto", [Rule("users.weight", technique="auto"), Rule("*")])


def test_nodes_agree_that_it_is_tried_and_the_server_is_told_adaptive() -> None:
    plan = plan_of(Pairs(), adaps.SGD(), None, AUTO, 2)
    assert plan.training.agreement() == {"technique of users.weight": "auto"}
    assert plan.managed is not None
    assert [rule.parameters for rule in plan.managed.rules[:2]] == ["users.weight", "items.weight"]
    assert {rule.technique for rule in plan.managed.rules} == {"adaptive"}


def test_on_one_node_there_is_nothing_to_choose() -> None:
    model = autoada.AdaModel(Pairs(), policy=AUTO)
    assert model.chosen == []
    assert model.is_due("users.weight", 5)
    model.close()
