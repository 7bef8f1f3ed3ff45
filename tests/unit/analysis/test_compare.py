import random

import msgspec
import numpy as np
import pytest

from adabench.analysis.compare import blocks_needed, compare
from adabench.analysis.fail_if import parse_condition
from adabench.analysis.statistics import interim_analyses
from adabench.results.record import RecordError, Run, Seconds, Status
from tests.records import make_run


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
    samples: int = 1000,
    tolerance: float | None = 0.01,
) -> Run:
    return make_run(
        backend,
        block,
        cell=f"{backend}{lookahead}",
        params={"epochs": 3, "lookahead": lookahead},
        nodes=2,
        status=status,
        seconds=Seconds(train=seconds, total=seconds),
        samples=samples,
        metrics={"auc": auc, "logloss": 1 - auc + 0.2 * (block % 2)},
        metric="auc",
        tolerance=tolerance,
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


def test_too_few_runs_say_how_many_a_verdict_needs() -> None:
    (one,) = compare(a_session({"prefetch": 1, "quick": 0.5}, 3), "prefetch")
    assert (one.verdict, one.needed) == ("too few runs", 6)
    assert one.reason == "3 blocks count, a verdict needs 6"
    assert compare(a_session({"prefetch": 1, "quick": 0.5}, 6), "prefetch")[0].verdict == "faster"
    factors = {"prefetch": 1, "a": 0.5, "b": 0.5, "c": 0.5}
    several = compare(a_session(factors, 6), "prefetch")
    assert {(one.verdict, one.needed) for one in several} == {("too few runs", 7)}
    assert {one.verdict for one in compare(a_session(factors, 7), "prefetch")} == {"faster"}


@pytest.mark.parametrize(("comparisons", "blocks"), [(1, 6), (2, 7), (4, 8), (10, 9), (20, 10)])
def test_a_plan_tells_how_many_blocks_its_verdicts_need(comparisons: int, blocks: int) -> None:
    factors = {"prefetch": 1.0, **{f"b{number}": 0.5 for number in range(comparisons)}}
    assert blocks_needed(a_session(factors, 1)) == (blocks, comparisons)
    assert {one.verdict for one in compare(a_session(factors, blocks), "prefetch")} == {"faster"}
    assert {one.verdict for one in compare(a_session(factors, blocks - 1), "prefetch")} == {"too few runs"}


def test_use_cases_are_one_family() -> None:
    both = [
        msgspec.structs.replace(run, usecase=usecase, cell=f"{run.cell} {usecase}")
        for usecase in ("ctr", "gcn")
        for run in a_session({"prefetch": 1, "quick": 0.8}, 6)
    ]
    assert {(one.usecase, one.verdict, one.needed) for one in compare(both)} == {
        ("ctr", "too few runs", 7),
        ("gcn", "too few runs", 7),
    }


def test_every_look_has_its_part_of_the_level() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8}, 8)
    once, (often,) = compare(runs)[0], compare(runs, analyses=len(interim_analyses(6, 30)))
    assert once.level == 0.05
    assert often.level == pytest.approx(0.01)
    assert often.ratio_low <= once.ratio_low
    assert often.needed == 8
    assert compare(runs[:14], analyses=5)[0].verdict == "too few runs"


def test_times_of_different_quality_are_not_compared() -> None:
    runs = a_session({"prefetch": 1}, 6) + [a_run("bad", block, 5, auc=0.6) for block in range(6)]
    (one,) = compare(runs, "prefetch")
    assert one.verdict == "quality differs"
    assert one.reason == "auc differs by -0.1400 [-0.1400, -0.1400], more than ± 0.01"


def test_only_the_metric_that_is_judged_counts_and_only_beyond_its_tolerance() -> None:
    # The log-loss of paired runs differs by up to 40 %, but it is not the metric that decides.
    runs = a_session({"prefetch": 1}, 6) + [a_run("near", block, 5, auc=0.735) for block in range(6)]
    assert compare(runs, "prefetch")[0].verdict == "faster"
    strict = [msgspec.structs.replace(run, tolerance=0.004) for run in runs]
    assert compare(strict, "prefetch")[0].verdict == "quality differs"
    # A single bad run among six is no sure difference.
    runs[8] = a_run("near", 2, 5, auc=0.6)
    assert compare(runs, "prefetch")[0].verdict == "faster"


def test_a_backend_that_leaves_out_batches_is_not_faster() -> None:
    runs = a_session({"prefetch": 1}, 6) + [a_run("lazy", block, 5, samples=997) for block in range(6)]
    (one,) = compare(runs, "prefetch")
    assert (one.verdict, one.reason) == (
        "work differs",
        "block 1 trained on 997 samples instead of 1000",
    )


def test_on_more_workers_less_than_a_batch_each_may_be_left_over() -> None:
    single = [
        msgspec.structs.replace(
            a_run("single", block, 20, samples=samples),
            nodes=1,
            params={"epochs": 1, "batch": 2, "lookahead": 20},
        )
        for block in range(6)
        for samples in [1003]
    ]
    (one,) = compare([*a_session({"prefetch": 1}, 6), *single])
    assert (one.verdict, one.label) == ("slower", "single (epochs=1), 1 node against 2 nodes, loopback")
    single = [msgspec.structs.replace(run, samples=1005) for run in single]
    assert compare([*a_session({"prefetch": 1}, 6), *single])[0].verdict == "work differs"


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


def test_a_baseline_is_one_cell_per_topology() -> None:
    runs = [a_run("prefetch", 0, 1, lookahead=lookahead) for lookahead in (10, 20)]
    ambiguous = (
        r"'prefetch' of 'ctr' is ambiguous: it may be prefetch \(lookahead=10\) or "
        r"prefetch \(lookahead=20\); name its parameters, such as 'prefetch\[lookahead=10\]'"
    )
    with pytest.raises(RecordError, match=ambiguous):
        compare(runs, "prefetch")
    for text in ("prefetch (lookahead=10)", "prefetch[lookahead=10]", "prefetch[ lookahead = 10 ]"):
        assert compare(runs, text)[0].label == "prefetch (lookahead=20)"
    with pytest.raises(RecordError, match="there is no baseline 'manual' among the runs of 'ctr'"):
        compare(runs, "manual")
    with pytest.raises(RecordError, match=r"there is no baseline 'prefetch\[lookahead=30\]'"):
        compare(runs, "prefetch[lookahead=30]")
    with pytest.raises(RecordError, match="has no parameter 'ahead'; it has epochs, lookahead"):
        compare(runs, "prefetch[ahead=30]")
    with pytest.raises(RecordError, match=r"'lookahead' in baseline .* is not of the form parameter=value"):
        compare(runs, "prefetch[lookahead]")


def on(nodes: int, runs: list[Run]) -> list[Run]:
    return [msgspec.structs.replace(run, nodes=nodes, cell=f"{run.cell} {nodes}") for run in runs]


def test_cells_are_compared_with_the_baseline_of_their_topology() -> None:
    one, two = a_session({"prefetch": 2, "quick": 1}, 8), a_session({"prefetch": 1, "quick": 1.5}, 8)
    for baseline in (None, "prefetch", "prefetch[lookahead=20]"):
        found = {each.label: each for each in compare([*on(1, one), *on(2, two)], baseline)}
        assert {label: (each.baseline, each.topology, each.verdict) for label, each in found.items()} == {
            "quick (nodes=1)": ("prefetch (nodes=1)", "1 node", "faster"),
            "quick (nodes=2)": ("prefetch (nodes=2)", "2 nodes, loopback", "slower"),
        }
    alone = [run for run in on(4, one) if run.backend == "quick"]
    with pytest.raises(
        RecordError,
        match=r"quick \(nodes=4\) was run on 4 nodes, loopback, which baseline 'prefetch' was not",
    ):
        compare([*on(1, one), *on(2, two), *alone], "prefetch")


def test_without_a_word_the_baseline_is_prefetch_then_single_then_the_first_by_name() -> None:
    def baseline(factors: dict[str, float]) -> set[str]:
        return {one.baseline for one in compare(a_session(factors, 6))}

    assert baseline({"a": 1, "single": 1, "prefetch": 1}) == {"prefetch"}
    assert baseline({"a": 1, "single": 1}) == {"single"}
    assert baseline({"b": 1, "a": 1}) == {"a"}


def test_a_backend_alone_is_compared_with_itself_on_fewest_nodes() -> None:
    runs = [*on(2, a_session({"quick": 1}, 6)), *on(1, a_session({"quick": 2}, 6, seed=1))]
    (one,) = compare(runs)
    assert (one.label, one.verdict) == ("quick (nodes=2), 2 nodes, loopback against 1 node", "faster")
    assert blocks_needed(runs) == (6, 1)


def test_one_node_is_never_compared_with_two_in_silence() -> None:
    one, two = a_session({"prefetch": 2, "quick": 1}, 8), a_session({"prefetch": 1, "quick": 1.5}, 8)
    found = compare([*on(1, one), *on(2, two)], "prefetch (nodes=1)")
    assert {each.label for each in found} == {
        "quick (nodes=1)",
        "prefetch (nodes=2), 2 nodes, loopback against 1 node",
        "quick (nodes=2), 2 nodes, loopback against 1 node",
    }


def test_environments_are_not_pooled() -> None:
    runs = a_session({"prefetch": 1, "quick": 0.8}, 6)
    with pytest.raises(RecordError, match="the runs are of 2 environments"):
        compare([*runs, a_run("quick", 6, 1, environment="other")], "prefetch")


def test_conditions() -> None:
    (slow,) = compare(a_session({"prefetch": 1, "slow": 1.2}, 8), "prefetch")
    assert parse_condition("ratio_low > 1.03")(slow)
    assert parse_condition("ratio > 1.1 and p < 0.05")(slow)
    assert not parse_condition("ratio_low > 1.3")(slow)
    for text in (
        "",
        "ratio",
        "speed > 1",
        "ratio > x",
        "ratio > 1.2.3",
        "ratio > .",
        "ratio > 1 or p < 1",
        "__import__('os')",
    ):
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
    ("effect", "least", "most"), [(1.0, 0.0, 0.07), (1.1, 0.8, 1.0), (1 / 1.1, 0.8, 1.0)]
)
def test_error_rates_on_simulated_sessions(effect: float, least: float, most: float) -> None:
    generator = np.random.default_rng(20)
    verdicts = [compare(simulated(generator, effect), "a")[0].verdict for _ in range(500)]
    decided = np.mean([verdict in ("faster", "slower") for verdict in verdicts])
    print(f"effect {effect:.3f}: decided in {decided:.1%} of 500 simulated sessions")
    assert least <= decided <= most
