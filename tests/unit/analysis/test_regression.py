"""Seconds from features: errors, intervals, and rows outside of the measurements."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from adabench.analysis import regression
from adabench.analysis.regression import (
    FEWEST_GROUPS,
    LEVEL,
    MOST_OF_A_PROCESS,
    Regression,
    RegressionError,
    judged,
    judgement_lines,
    judgement_of,
    parts_at_random,
    usable,
)
from tests.lines import fits_lines


def transfers(rows: int = 240, seed: int = 0, noise: float = 0.02) -> tuple[pd.DataFrame, Any]:
    """A latency, and beyond some size a bandwidth, which differ between two links."""
    random = np.random.default_rng(seed)
    size = 2.0 ** random.integers(0, 24, rows)
    link = random.choice(["near", "far"], rows)
    nodes = random.integers(1, 9, rows)
    seconds = np.where(link == "near", 1e-5, 1e-3) + size / np.where(link == "near", 1e9, 1e8)
    frame = pd.DataFrame({"size": size, "link": link, "nodes": nodes})
    return frame, seconds * np.exp(noise * random.standard_normal(rows))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in place of a process or trees, which take longer to fit."""
    fits_lines(monkeypatch)


@pytest.fixture
def judge(said: Any, tmp_path: Path) -> Any:
    """Call `adabench predict` with these arguments, beside a table t.csv."""
    frame, seconds = transfers()
    frame.assign(seconds=seconds).to_csv(tmp_path / "t.csv", index=False)
    return lambda *arguments: said("predict", *arguments)


def test_errors_between_measurements_are_small() -> None:
    frame, seconds = transfers(300)
    said = Regression.fit(frame[:200], seconds[:200]).predict(frame[200:]).seconds
    assert np.median(np.abs(said / seconds[200:] - 1)) < 0.06


def test_few_rows_are_learned_by_a_process_and_more_by_trees() -> None:
    """A process continues a line beyond its rows and trees do not; equal rows count once."""
    random = np.random.default_rng(2)
    sizes = np.tile(np.linspace(1.0, 50.0, MOST_OF_A_PROCESS + 1), 2)
    slopes = []
    for rows in (sizes[sizes < 50], sizes):
        seconds = (1 + rows) ** 2 * np.exp(0.01 * random.standard_normal(len(rows)))
        said = Regression.fit(pd.DataFrame({"size": rows}), seconds).predict(pd.DataFrame({"size": [99.0]}))
        assert np.isnan([said.low, said.high]).all()
        slopes.append(float(said.seconds[0]) / 100**2)
    assert slopes[0] == pytest.approx(1.0, abs=0.2)
    assert slopes[1] < 0.4


def test_a_process_tells_words_and_numbers_apart_and_repeats_itself() -> None:
    frame, seconds = transfers(120)
    frame = frame.assign(constant=3.0)
    few = frame[:80]
    said = [Regression.fit(few, seconds[:80]).predict(frame[80:]).seconds for _ in range(2)]
    assert np.median(np.abs(said[0] / seconds[80:] - 1)) < 0.06
    assert said[0].tolist() == said[1].tolist()


def test_rows_that_are_all_alike_are_predicted_as_they_were() -> None:
    frame = pd.DataFrame({"size": np.ones(20), "link": ["near"] * 20})
    said = Regression.fit(frame, np.full(20, 3.0)).predict(frame[:1])
    assert said.seconds == pytest.approx([3.0])


def test_parts_of_a_sum_are_learned_apart() -> None:
    """One part grows with size and the other one does not, so that their sum is no power of size."""
    frame = pd.DataFrame({"size": np.tile(2.0 ** np.arange(14), 3)})
    parts = np.column_stack([1e-3 * (1 + frame["size"]), np.full(len(frame), 0.5)])
    new = pd.DataFrame({"size": [2.0**6, 2.0**11]})
    expected = parts[[6, 11]].sum(axis=1)
    found = Regression.fit(frame, parts, base=parts * [2.0, 1.0])
    said = found.predict(new, parts[[6, 11]] * [2.0, 1.0])
    assert said.seconds == pytest.approx(expected, rel=1e-3)
    assert (said.low <= expected * 1.001).all()
    assert (said.high >= expected * 0.999).all()


def test_times_are_features_outside_of_which_nothing_is_extrapolated() -> None:
    frame, _ = transfers(60, noise=0.0)
    late = np.arange(60) % 2 == 1
    frame["when"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.where(late, 30, 0), "D")
    seconds = np.where(late, 1.0, 2.0)
    learned = Regression.fit(frame, seconds)
    new = frame[:2].assign(when=[pd.Timestamp("2026-01-01"), pd.Timestamp("2026-02-01")])
    said = learned.predict(new)
    assert said.seconds == pytest.approx([2.0, 1.0], rel=0.1)
    assert said.extrapolated == [[], []]


def test_intervals_cover_as_many_rows_as_they_say(lines: None) -> None:
    covered = []
    for seed in range(4):
        frame, seconds = transfers(400, seed, noise=0.3)
        learned = Regression.fit(frame[:200], seconds[:200])
        said = learned.predict(frame[200:])
        covered.append(np.mean((said.low <= seconds[200:]) & (seconds[200:] <= said.high)))
    assert np.mean(covered) == pytest.approx(LEVEL, abs=0.04)


def test_an_interval_is_that_of_cv_plus(lines: None) -> None:
    """By the definition: the quantiles of every row's held-out prediction, less and plus its residual."""
    frame, seconds = transfers(40, noise=0.5)
    frame = frame[["size"]]
    new = pd.DataFrame({"size": [3.0, 5e5]})
    said = Regression.fit(frame, seconds, seed=4).predict(new)
    x, y = np.log1p(frame["size"].to_numpy()), np.log(seconds)
    folds = parts_at_random(40, 5, 4)
    for row, at in enumerate(np.log1p(new["size"])):
        lows, highs = [], []
        for one in range(40):
            slope, offset = np.polyfit(x[folds != folds[one]], y[folds != folds[one]], 1)
            residual = abs(y[one] - offset - slope * x[one])
            lows.append(offset + slope * at - residual)
            highs.append(offset + slope * at + residual)
        rank = int(np.ceil(LEVEL * 41))
        assert np.log(said.high[row]) == pytest.approx(sorted(highs)[rank - 1])
        assert np.log(said.low[row]) == pytest.approx(sorted(lows)[40 - rank])


def groups_of_measurements(count: int, seed: int) -> tuple[pd.DataFrame, Any, Any]:
    """Measurements of groups that each have their own factor, and from 1 to 60 rows."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(count), random.integers(1, 60, count))
    frame = pd.DataFrame({"size": 2.0 ** random.integers(0, 12, len(group)), "hidden": 1.0})
    noise = random.standard_normal(count)[group] + 0.01 * random.standard_normal(len(group))
    return frame, (1 + frame["size"]).to_numpy() * np.exp(noise), group


def test_intervals_for_another_group_cover_as_many_groups_as_they_say(lines: None) -> None:
    covered = []
    for seed in range(60):
        frame, seconds, group = groups_of_measurements(16, seed)
        known, new = group < 15, np.flatnonzero(group == 15)[:1]
        said = Regression.fit(frame[known], seconds[known], group[known]).predict(frame.iloc[new])
        inside = (said.low <= seconds[new]) & (seconds[new] <= said.high)
        covered += list(inside[np.isfinite(said.low)])
    assert len(covered) > 50
    assert np.mean(covered) >= LEVEL - 0.04


@pytest.mark.parametrize("count", [FEWEST_GROUPS - 1, FEWEST_GROUPS])
def test_few_groups_give_no_interval(lines: None, count: int) -> None:
    frame, seconds, group = groups_of_measurements(count, 1)
    said = Regression.fit(frame, seconds, group).predict(frame[:3])
    assert np.isfinite(said.seconds).all()
    assert np.isfinite([said.low, said.high]).all() == (count == FEWEST_GROUPS)
    whole, _ = judged(frame, seconds, group, group)
    assert whole.intervals == 0
    assert np.isnan([whole.covered, whole.width]).all()


def test_a_group_that_is_larger_than_all_others_has_no_interval_and_bounded_errors() -> None:
    """A steep line through few sizes would be off by many orders of magnitude."""
    random = np.random.default_rng(0)
    nodes = np.repeat([2.0, 2.1, 2.2, 1e9], 12)
    seconds = np.minimum(nodes, 2.5) ** 40 * np.exp(0.1 * random.standard_normal(48))
    whole, said = judged(pd.DataFrame({"nodes": nodes}), seconds, nodes)
    assert np.isnan(said.low[nodes > 3]).all()
    assert [bool(text) for text in said.extrapolated] == [*[False] * 36, *[True] * 12]
    assert whole.intervals <= 0.75
    (line,) = judgement_lines([("each nodes", whole)])[1:2]
    assert len(line) < 80
    assert (np.abs(np.log10(said.seconds / seconds)) < 8).all()


def test_what_lies_outside_is_told_by_name(lines: None) -> None:
    frame, seconds = transfers()
    new = pd.DataFrame({"size": [1.0, 1.0], "link": ["near", "moon"], "nodes": [2, 64]})
    said = Regression.fit(frame, seconds).predict(new)
    assert said.extrapolated == [[], ["nodes 64, learned from 1 to 8", "link moon, learned from far, near"]]


def test_a_judgement_counts_relative_errors() -> None:
    said = np.array([[1.1, 2.0, 2.0], [1.0, 1.5, 2.5], [1.2, 2.5, 5.0]])
    found = judgement_of(np.array([1.0, 2.0, 4.0]), said)
    assert (found.rows, found.covered) == (3, 1.0)
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.42)
    assert found.width == pytest.approx(5 / 3)


def test_seconds_that_nothing_can_be_learned_of() -> None:
    assert usable([1.0, 0.0, -1.0, np.inf, np.nan]).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.drop(columns="nodes"),
            "there is no column 'nodes', which the model has learned from",
        ),
        (lambda frame: frame.assign(nodes="two"), "column 'nodes' has numbers in the learned rows"),
        (lambda frame: frame.assign(nodes=np.nan), "row 1 has no finite 'nodes': fill it in"),
    ],
)
def test_rows_that_do_not_fit_are_refused(lines: None, change: Any, message: str) -> None:
    frame, seconds = transfers(40)
    learned = Regression.fit(frame, seconds)
    with pytest.raises(RegressionError, match=message):
        learned.predict(change(frame))


def test_too_few_rows_or_groups_are_refused(lines: None) -> None:
    frame, seconds = transfers(9)
    with pytest.raises(RegressionError, match="9 measurements are too few to learn from: 10 are needed"):
        Regression.fit(frame, seconds)
    frame, seconds = transfers(20)
    with pytest.raises(RegressionError, match="all rows belong to one group: at least two groups are needed"):
        Regression.fit(frame, seconds, np.zeros(20))


def test_a_table_is_judged(judge: Any, lines: None) -> None:
    options = ("--table", "t.csv", "--target", "seconds")
    code, out, err = judge(*options, "--leave-out", "nodes")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert " ".join(head.split()) == "held out rows median P90 rank intervals covered high/low"
    held_out = ("1/5 of the rows", "each nodes", *(f"nodes {number}" for number in range(1, 9)))
    *rows, note = rows
    assert "rows of a group that is predicted from fewer than 9 groups" in note
    assert [" ".join(line[: line.index(" %")].split()[:-2]) for line in rows] == list(held_out)
    assert [line.split()[-1] for line in rows] == [rows[0].split()[-1], *["-"] * 9]


def test_too_few_groups_are_refused_before_anything_is_fitted(
    judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "_fitted", None)
    code, out, err = judge("--table", "t.csv", "--target", "seconds", "--leave-out", "link")
    assert (code, out) == (2, "")
    assert "2 groups are too few to hold one out: 3 are needed" in err


def test_rows_of_another_table_are_predicted(judge: Any, lines: None, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("size,link,nodes\n1024,near,2\n1024,near,64\n")
    options = ("--table", "t.csv", "--target", "seconds", "--at", "new.csv")
    code, out, err = judge(*options)
    assert (code, err) == (0, "")
    told = "1 of 2 rows are extrapolated, no interval: they differ from all measured ones in nodes"
    assert out.splitlines()[1] == told
    assert "nodes 64, learned from 1 to 8" in out
    assert judge(*options, "-o", "p.csv")[0] == 0
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found.columns) == [*("size", "link", "nodes", "predicted", "low", "high"), "extrapolated"]
    assert found["low"][0] <= found["predicted"][0] <= found["high"][0]
    assert found[["low", "high"]].loc[1].isna().all()


def test_rows_without_seconds_are_left_out_and_counted(judge: Any, lines: None, tmp_path: Path) -> None:
    frame, seconds = transfers()
    seconds[:3] = np.inf, 0.0, np.nan
    frame.assign(seconds=seconds).to_csv(tmp_path / "t.csv", index=False)
    _, out, _ = judge("--table", "t.csv", "--target", "seconds")
    assert out.startswith("3 of 240 rows are left out: no finite seconds more than 0\n")
    assert " 237 " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--table", "none.csv", "--target", "s"), "none.csv cannot be read: No such file or directory"),
        (("--table", "t.csv", "--target", "second"), "unknown column 'second': did you mean 'seconds'?"),
        (("--table", "t.csv", "--target", "link"), "column 'link' has words; seconds must be numbers"),
        (("--table", "t.csv", "--target", "seconds", "--features", "a"), "t.csv has no column 'a': there is"),
        (("--table", "t.csv", "--target", "seconds", "--features", "seconds"), "is what is predicted"),
        (
            ("--table", "t.csv", "--target", "seconds", "-o", "o.csv"),
            "--out o.csv: it is the file for the predictions of --at",
        ),
        (("--table", "t.csv"), "--table t.csv: name its column of seconds with --target"),
        (("--target", "seconds"), "--target seconds: it requires --table; give both"),
        (("--table", "t.csv", "--target", "seconds", "-u", "ctr"), "no runs are predicted with it"),
        (("--table", "t.csv", "--target", "seconds", "--judge"), "leave out --judge, --own and the study"),
        (("--table", "t.csv", "--target", "seconds", "--at", "w.csv"), "there is no column 'size'"),
        (
            ("--table", "e.csv", "--target", "seconds"),
            "e.csv is no CSV file with a header line: No columns to parse",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    judge: Any, lines: None, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "w.csv").write_text("a\n1\n")
    (tmp_path / "e.csv").write_text("")
    code, _, err = judge(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize("module", ["sklearn.ensemble", "sklearn.gaussian_process"])
def test_without_scikit_learn_a_sentence_says_what_to_install(
    judge: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    monkeypatch.delitem(sys.modules, "adabench.analysis.gaussian_process", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    if module == "sklearn.gaussian_process":
        frame, seconds = transfers(40)
        frame.assign(seconds=seconds).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = judge("--table", "t.csv", "--target", "seconds")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install 'adabench[estimate]'" in err


def test_a_table_of_many_columns_is_refused(judge: Any, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(3000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("1" * 3000) + "\n")
    code, _, err = judge("--table", "wide.csv", "--target", "c0")
    assert (code, err.count("\n")) == (2, 1)
    assert "wide.csv has 2999 columns to predict from; at most 256 are used" in err
