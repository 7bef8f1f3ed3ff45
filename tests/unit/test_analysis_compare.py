from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from adabench.analysis.compare import baseline_name, compare, parse_condition
from adabench.results.record import RecordError, Run, Seconds, Status


def a_run(
    backend: str,
    block: int,
    seconds: float,
    *,
    auc: float = 0.74,
    status: Status = "ok",
    to_target: float | None = None,
    target: bool = False,
    environment: str = "e",
    lookahead: int = 20,
) -> Run:
    return Run(
        run_id=f"{backend}-{block}",
        session="s",
        cell=f"{backend}{lookahead}",
        usecase="ctr",
        backend=backend,
        params={"epochs": 3, "lookahead": lookahead},
        nodes=2,
        workers=1,
        network="loopback",
        data=None,
        block=block,
        position=0,
        seed=1,
        phase="measured",
        attempt=1,
        status=status,
        started_at="",
        seconds=Seconds(train=seconds, total=seconds),
        metrics={"auc": auc},
        target={"auc": 0.7} if target else None,
        seconds_to_target=to_target,
        environment=environment,
    )


def a_session(factors: dict[str, float], blocks: int, noise: float = 0.005, seed: int = 0) -> list[Run]:
    generator = random.Random(seed)
    return [
        a_run(backend, block, 10 * factor * (1 + block / 20) * generator.lognormvariate(0, noise))
        for block in range(blocks)
        for backend, factor in factors.items()
    ]


def test_verdicts() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8, "slow": 1.2, "same": 1.0}, 12)
    found = {one.label: one for one in compare(runs, "prefetch")}
    assert {label: one.verdict for label, one in found.items()} == {
        "quick": "faster",
        "slow": "slower",
        "same": "equivalent",
    }
    # The drift of the session, 55 % from the first block to the last, is in both of a pair and cancels.
    assert found["quick"].ratio == pytest.approx(0.8, rel=0.01)
    assert found["quick"].ratio_low < found["quick"].ratio < found["quick"].ratio_high < 0.85


def test_noise_without_a_difference_is_undecided() -> None:
    (one,) = compare(a_session({"prefetch": 1, "other": 1}, 12, noise=0.2), "prefetch")
    assert one.verdict == "undecided"


def test_three_runs_are_too_few_and_so_are_six_for_three_comparisons() -> None:
    assert compare(a_session({"prefetch": 1, "quick": 0.5}, 3), "prefetch")[0].verdict == "too few runs"
    assert compare(a_session({"prefetch": 1, "quick": 0.5}, 6), "prefetch")[0].verdict == "faster"
    several = compare(a_session({"prefetch": 1, "a": 0.5, "b": 0.5, "c": 0.5}, 6), "prefetch")
    assert {one.verdict for one in several} == {"too few runs"}


def test_times_of_different_quality_are_not_compared() -> None:
    runs = a_session({"prefetch": 1}, 6) + [a_run("bad", block, 5, auc=0.6) for block in range(6)]
    assert compare(runs, "prefetch")[0].verdict == "quality differs"


def test_time_to_target_is_compared_where_there_is_a_target() -> None:
    runs = [
        a_run(backend, block, 10, target=True, to_target=to_target)
        for block in range(6)
        for backend, to_target in (("prefetch", 9.0), ("quick", 3.0))
    ]
    (one,) = compare(runs, "prefetch")
    assert (one.measure, one.verdict) == ("time to target", "faster")
    assert one.ratio == pytest.approx(1 / 3)
    runs[3] = a_run("quick", 1, 10, target=True, to_target=None, status="not_converged")
    assert compare(runs, "prefetch")[0].verdict == "not converged"


def test_a_block_counts_only_if_both_of_its_runs_finished() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8}, 8)
    runs[5] = a_run("quick", 2, 10, status="failed")
    assert compare(runs, "prefetch")[0].n == 7
    failed = [a_run("gone", block, 1, status="failed") for block in range(8)]
    assert {one.label: one.verdict for one in compare([*runs, *failed], "prefetch")}["gone"] == "no runs"


def test_an_outlier_is_flagged_and_kept() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8}, 8)
    runs[5] = a_run("quick", 2, 500)
    (one,) = compare(runs, "prefetch")
    assert one.flagged == ("quick-2",)
    assert one.n == 8


def test_a_baseline_must_be_one_cell() -> None:
    runs = [a_run("prefetch", 0, 1, lookahead=lookahead) for lookahead in (10, 20)]
    with pytest.raises(
        RecordError, match=r"'prefetch' of 'ctr' is ambiguous: name one of prefetch \(lookahead=10\)"
    ):
        compare(runs, "prefetch")
    assert compare(runs, "prefetch (lookahead=10)")[0].label == "prefetch (lookahead=20)"
    with pytest.raises(RecordError, match="there is no baseline 'manual' among the runs of 'ctr'"):
        compare(runs, "manual")


def test_cells_are_compared_with_the_baseline_of_their_topology() -> None:
    def on(nodes: int, runs: list[Run]) -> list[Run]:
        return [msgspec.structs.replace(run, nodes=nodes, cell=f"{run.cell} {nodes}") for run in runs]

    one, two = a_session({"prefetch": 2, "quick": 1}, 8), a_session({"prefetch": 1, "quick": 1.5}, 8)
    found = {each.label: each for each in compare([*on(1, one), *on(2, two)], "prefetch")}
    assert {label: (each.baseline, each.verdict) for label, each in found.items()} == {
        "quick (nodes=1)": ("prefetch (nodes=1)", "faster"),
        "quick (nodes=2)": ("prefetch (nodes=2)", "slower"),
    }
    assert baseline_name(list(found.values())) == "prefetch"
    alone = [run for run in on(4, one) if run.backend == "quick"]
    with pytest.raises(
        RecordError, match=r"quick \(nodes=4\) has a topology that baseline 'prefetch' was not run with"
    ):
        compare([*on(1, one), *on(2, two), *alone], "prefetch")


def test_environments_are_not_pooled() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8}, 6)
    with pytest.raises(RecordError, match="the runs are of 2 environments"):
        compare([*runs, a_run("quick", 6, 1, environment="other")], "prefetch")


def test_conditions() -> None:
    (slow,) = compare(a_session({"prefetch": 1, "slow": 1.2}, 8), "prefetch")
    assert parse_condition("ratio_low > 1.03")(slow)
    assert parse_condition("ratio > 1.1 and p < 0.05")(slow)
    assert not parse_condition("ratio_low > 1.3")(slow)
    (few,) = compare(a_session({"prefetch": 1, "slow": 1.2}, 3), "prefetch")
    assert not parse_condition("ratio_low > 1.03")(few)
    for text in ("", "ratio", "speed > 1", "ratio > x", "ratio > 1 or p < 1", "__import__('os')"):
        with pytest.raises(RecordError, match="is not a condition"):
            parse_condition(text)


def simulated(generator: np.random.Generator, effect: float) -> list[Run]:
    """Twelve blocks of two backends in alternating order: 6 % drift, 2 % noise, one run in twenty a spike."""
    runs, moment = [], 0
    for block in range(12):
        order = ["a", "b"] if block % 2 else ["b", "a"]
        for backend in order:
            drift = 1 + 0.06 * moment / 23
            spike = 1.3 if generator.random() < 0.05 else 1.0
            factor = effect if backend == "b" else 1.0
            runs.append(a_run(backend, block, 10 * drift * spike * factor * generator.lognormal(0, 0.02)))
            moment += 1
    return runs


@pytest.mark.parametrize(
    ("effect", "least", "most"), [(1.0, 0.0, 0.06), (1.1, 0.9, 1.0), (1 / 1.1, 0.9, 1.0)]
)
def test_error_rates_on_simulated_sessions(effect: float, least: float, most: float) -> None:
    generator = np.random.default_rng(20)
    verdicts = [compare(simulated(generator, effect), "a")[0].verdict for _ in range(1000)]
    decided = np.mean([verdict in ("faster", "slower") for verdict in verdicts])
    print(f"effect {effect:.3f}: decided in {decided:.1%} of 1000 simulated sessions")
    assert least <= decided <= most
