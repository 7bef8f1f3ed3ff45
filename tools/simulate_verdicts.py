"""Simulates sessions with known truth, to measure errors of verdicts, for docs/concepts/statistics.md.

Usage: ``python tools/simulate_verdicts.py [SESSIONS]``, with the number of sessions per line of a table,
2,000 by default.
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import stats

from adabench.analysis.agreement import different_quality
from adabench.analysis.compare import ALPHA, compare
from adabench.analysis.load import measured
from adabench.analysis.pages import write_section
from adabench.analysis.statistics import interim_analyses, outliers, signed_rank_test
from adabench.analysis.tables import markdown
from adabench.results.record import Run, Seconds
from adabench.results.store import SessionStore, list_sessions

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "concepts" / "statistics.md"

SESSIONS = 2000
SCATTER = 0.03
"""Standard deviation of a run's log seconds, about the value of a quiet machine."""
EFFECT = math.log(1.05)

Values = npt.NDArray[np.float64]

NOISES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda generator, shape: generator.normal(0, SCATTER, shape),
    "skewed": lambda generator, shape: SCATTER * (generator.exponential(1, shape) - 1),
    "heavy-tailed": lambda generator, shape: SCATTER / 1.5 * generator.standard_t(2, shape),
    "spikes": lambda generator, shape: (
        generator.normal(0, SCATTER, shape) + np.where(generator.random(shape) < 0.05, math.log(1.3), 0)
    ),
    "drifting": lambda generator, shape: generator.normal(0, SCATTER, shape),
}
"""Log seconds of runs. `drifting` additionally rises by 6 % from the first to the last run of a session."""


def differences(
    generator: np.random.Generator, noise: str, blocks: int, effect: float, sessions: int
) -> Values:
    """Return log ratios of sessions, one row each, with a random order in each block."""
    runs = NOISES[noise](generator, (sessions, blocks, 2))
    if noise == "drifting":
        first = generator.integers(0, 2, (sessions, blocks))
        place = 2 * np.arange(blocks)[:, None] + np.stack([first, 1 - first], axis=2)
        runs += 0.06 * place / (2 * blocks - 1)
    return runs[:, :, 1] - runs[:, :, 0] + effect


def sign_test(rows: Values) -> Values:
    """Return the two-sided exact p-value of each row."""
    positive = (rows > 0).sum(axis=1)
    fewer = np.minimum(positive, rows.shape[1] - positive)
    found: Values = np.minimum(1.0, 2 * stats.binom.cdf(fewer, rows.shape[1], 0.5))
    return found


def permutation_test(rows: Values) -> Values:
    """Return the two-sided p-value of each row's mean over all changes of its signs."""
    flips = np.array(list(itertools.product([-1.0, 1.0], repeat=rows.shape[1])))
    found: Values = np.mean(np.abs(rows @ flips.T) >= np.abs(rows.sum(axis=1))[:, None] - 1e-12, axis=1)
    return found


TESTS: dict[str, Callable[[Values], Values]] = {
    "sign": sign_test,
    "signed-rank": lambda rows: np.array([signed_rank_test(list(row)) for row in rows]),
    "permutation of the mean": permutation_test,
}


def power(name: str, noise: str, blocks: int, effect: float, sessions: int, seed: int = 1) -> float:
    """Return the fraction of sessions with a significant comparison, by one of `TESTS`."""
    generator = np.random.default_rng([seed, blocks, len(noise)])
    return float(np.mean(TESTS[name](differences(generator, noise, blocks, effect, sessions)) <= ALPHA))


def a_session(generator: np.random.Generator, noise: str, blocks: int, effects: Sequence[float]) -> list[Run]:
    """Return records of a baseline `a` and of one backend per effect, all with equal quality."""
    cells = 1 + len(effects)
    seconds = NOISES[noise](generator, (blocks, cells)) + np.array([0.0, *effects])
    if noise == "drifting":
        order = np.argsort(generator.random((blocks, cells)), axis=1)
        seconds += 0.06 * (cells * np.arange(blocks)[:, None] + order) / (cells * blocks - 1)
    return [
        _run(block, chr(ord("a") + cell), math.exp(seconds[block, cell]))
        for block in range(blocks)
        for cell in range(cells)
    ]


def verdicts(
    noise: str, blocks: int, effects: Sequence[float], sessions: int, seed: int = 1
) -> list[set[str]]:
    """Return the verdicts of whole sessions."""
    generator = np.random.default_rng([seed, blocks, len(effects), len(noise)])
    return [
        {one.verdict for one in compare(a_session(generator, noise, blocks, effects), "a")}
        for _ in range(sessions)
    ]


def sequential(noise: str, sessions: int, relative: float = 0.03, first: int = 8, most: int = 30) -> float:
    """Return the fraction of sessions without a difference that report one, analyzed as by --until-rel-ci."""
    generator = np.random.default_rng([2, len(noise)])
    schedule = interim_analyses(first, most)
    wrong = 0
    for _ in range(sessions):
        runs = a_session(generator, noise, most, [0.0])
        for blocks in schedule:
            (one,) = compare([run for run in runs if run.block < blocks], "a", analyses=len(schedule))
            if (one.ratio_high - one.ratio_low) / 2 <= relative * one.ratio:
                break
        wrong += one.verdict in ("faster", "slower")
    return wrong / sessions


def quality(store: SessionStore, blocks: int, loss: float, sessions: int, seed: int = 3) -> float | None:
    """Return how often cells of a kept session with equal quality are reported as different.

    Blocks are resampled, the two cells are swapped at random in each block, and one cell is made worse by
    `loss` times the use case's tolerance. None if no two cells of one topology have common blocks.
    """
    generator = np.random.default_rng(seed)
    pairs = _pairs(store)
    if not pairs:
        return None
    said = 0
    for _ in range(sessions):
        blocks_of_pair = pairs[generator.integers(len(pairs))]
        drawn = []
        for _ in range(blocks):
            one, other = blocks_of_pair[generator.integers(len(blocks_of_pair))]
            if generator.random() < 0.5:
                one, other = other, one
            metric, tolerance = str(other.metric), float(other.tolerance or 0)
            worse = {**one.metrics, metric: one.metrics[metric] - loss * tolerance}
            drawn.append((msgspec.structs.replace(one, metrics=worse), other))
        said += different_quality(drawn) is not None
    return said / sessions


def _pairs(store: SessionStore) -> list[list[tuple[Run, Run]]]:
    tolerances = {"auc": 0.005, "accuracy": 0.015}
    cells: dict[str, dict[int, Run]] = {}
    for run in measured(store.runs()):
        if run.backend != "floor":  # the floor trains nothing
            metric = run.metric or next(iter(run.metrics))
            judged = msgspec.structs.replace(run, metric=metric, tolerance=tolerances[metric])
            cells.setdefault(run.cell, {})[run.block] = judged
    pairs = []
    for one, other in itertools.combinations(cells.values(), 2):
        first, second = next(iter(one.values())), next(iter(other.values()))
        alike = ("usecase", "nodes", "workers", "network")
        if all(getattr(first, name) == getattr(second, name) for name in alike) and len(one) > 2:
            pairs.append([(one[block], other[block]) for block in sorted(one.keys() & other.keys())])
    return [pair for pair in pairs if pair]


def flags(runs: int, sessions: int) -> float:
    """Return the fraction of cells with normal noise that have a run marked as an outlier."""
    generator = np.random.default_rng(runs)
    return sum(bool(outliers(list(row))) for row in generator.normal(0, 1, (sessions, runs))) / sessions


def _run(block: int, backend: str, seconds: float) -> Run:
    return Run(
        run_id=f"{backend}{block}",
        session="simulated",
        cell=backend,
        usecase="simulated",
        backend=backend,
        params={},
        nodes=1,
        workers=1,
        network="loopback",
        data=None,
        block=block,
        position=0,
        seed=0,
        phase="measured",
        attempt=1,
        status="ok",
        started_at="",
        seconds=Seconds(train=seconds, total=seconds),
        metrics={"auc": 0.7},
        metric="auc",
        tolerance=0.005,
    )


def page(sessions: int) -> str:
    """Return the tables of the page."""
    parts = [f"{sessions} simulated sessions per figure; a run's scatter is {SCATTER:.0%}."]
    counts: tuple[int, ...] = (6, 7, 8, 9, 10, 12)
    names = ["noise", "test", *(f"{blocks} blocks" for blocks in counts)]
    for title, effect in (("False alarms", 0.0), ("A difference of 5 % is found", EFFECT)):
        rows = [
            [noise, name, *(_percent(power(name, noise, blocks, effect, sessions)) for blocks in counts)]
            for noise in NOISES
            for name in TESTS
        ]
        parts += [f"**{title}** (one comparison)", markdown(names, rows)]
    counts = (6, 7, 8, 9, 10, 12, 14, 16)
    names = ["noise", "comparisons", *(f"{blocks} blocks" for blocks in counts)]
    rows = [
        [noise, f"{m}", *(_percent(_any(verdicts(noise, n, [0.0] * m, sessions), _WRONG)) for n in counts)]
        for noise in NOISES
        for m in (1, 3, 6)
    ]
    parts += [
        "**Sessions of equally fast cells with a verdict that two differ** (`compare`)",
        markdown(names, rows),
    ]
    rows = []
    for m, noise in itertools.product((1, 2, 3, 6, 10), ("normal",)):
        found = [verdicts(noise, n, [EFFECT] + [0.0] * (m - 1), sessions) for n in counts]
        rows.append([noise, f"{m}", *(_percent(_any(one, ("slower",))) for one in found)])
    parts += ["**Sessions in which `compare` finds that one backend is 5 % slower**", markdown(names, rows)]
    rows = [[noise, _percent(sequential(noise, sessions))] for noise in NOISES]
    parts += ["**`--until-rel-ci 0.03` with equally fast cells**", markdown(["noise", "false alarms"], rows)]
    rows = []
    for store in list_sessions(ROOT / "results" / "reference"):
        rates = [quality(store, 8, loss, sessions) for loss in (0.0, 2.0)]
        if None not in rates:
            rows.append([store.folder.name, *(_percent(rate or 0.0) for rate in rates)])
    names = ["kept session", "equal quality", "quality worse by twice the tolerance"]
    parts += ["**Verdict *quality differs*** (eight blocks drawn from kept sessions)", markdown(names, rows)]
    rows = [[f"{runs}", _percent(flags(runs, sessions))] for runs in (3, 4, 6, 8, 12)]
    parts += [
        "**Cells with a run that is marked as far from the cell's other runs**",
        markdown(["runs", "marked"], rows),
    ]
    return "\n\n".join(parts)


_WRONG = ("faster", "slower")


def _any(found: Sequence[set[str]], wanted: Sequence[str]) -> float:
    return sum(bool(one & set(wanted)) for one in found) / len(found)


def _percent(part: float) -> str:
    return f"{part:.1%}"


def main(arguments: Sequence[str]) -> int:
    tables = page(int(arguments[0]) if arguments else SESSIONS)
    write_section(PAGE, "simulated", "tools/simulate_verdicts.py", tables)
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
