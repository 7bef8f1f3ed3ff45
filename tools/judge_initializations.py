"""Says in docs/initial-weights.md what trying several initial weights costs, and what it brings.

``python tools/judge_initializations.py [SESSION]``: of the kept session `inits`, or of another folder. Runs
with one initialization are compared, pair by pair, with those that searched for one, and with the best of as
many that are trained to the end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import mean

from adabench.analysis.load import measured
from adabench.analysis.statistics import Interval, paired_interval
from adabench.analysis.tables import markdown
from adabench.results.record import RecordError, Run
from adabench.results.store import SessionStore

__all__ = ["judged"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "initial-weights.md"
BEGIN, END = "<!-- judged: written by tools/judge_initializations.py -->", "<!-- end of judged -->"


def judged(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each use case, and each way to choose initial weights.

    The target of a use case is the validation quality that the worst of its runs with one initialization
    reaches. The best of N that are trained to the end is taken from the runs with one initialization of N
    blocks: the one with the best validation quality, at the CPU time of all of them.

    Raises
    ------
    RecordError
        If a use case has no runs with one initialization, or no others, in the same blocks.
    """
    rows: list[tuple[str, ...]] = []
    for usecase in dict.fromkeys(run.usecase for run in runs):
        own = [run for run in runs if run.usecase == usecase]
        single = {run.block: run for run in own if run.params["inits"] == 1}
        searched = {run.block: run for run in own if run.params["inits"] > 1 and run.block in single}
        if not searched:
            raise RecordError(f"{usecase} has no pairs of runs with one initialization and with several")
        target = min(max(_curve(run)) for run in single.values())
        count = next(iter(searched.values())).params["inits"]
        blocks = sorted(searched)
        pairs = [(searched[block], single[block]) for block in blocks]
        rows.append(
            (
                usecase,
                f"search among {count}",
                _difference([_quality(one) - _quality(other) for one, other in pairs]),
                _ratio([_steps(one, target) / _steps(other, target) for one, other in pairs]),
                _ratio([_cpu(one, target) / _cpu(other, target) for one, other in pairs]),
            )
        )
        groups = [[single[blocks[(at + i) % len(blocks)]] for i in range(count)] for at in range(len(blocks))]
        best = [max(group, key=lambda run: max(_curve(run))) for group in groups]
        gained = mean(_quality(one) - _quality(group[0]) for one, group in zip(best, groups, strict=True))
        rows.append(
            (
                usecase,
                f"best of {count}, trained to the end",
                f"{gained:+.4f}",
                "",
                f"{mean(sum(map(_whole, group)) / _cpu(group[0], target) for group in groups):.1f}",
            )
        )
    return rows


def _curve(run: Run) -> list[float]:
    """The validation quality after each epoch; more is better in all that the study trains."""
    return [epoch[f"valid_{run.metric}"] for epoch in run.history]


def _quality(run: Run) -> float:
    assert run.metric is not None
    return run.metrics[run.metric]


def _steps(run: Run, target: float) -> float:
    """The part of the training until the target; more than all of it, where it was not reached."""
    before = sum(1 for _ in takewhile(lambda quality: quality < target, _curve(run)))
    return (before + 1) / len(run.history)


def _cpu(run: Run, target: float) -> float:
    """CPU seconds until the target, with all that was done before the first epoch."""
    assert run.train_cpu_seconds is not None
    return _whole(run) - run.train_cpu_seconds * (1 - min(_steps(run, target), 1.0))


def _whole(run: Run) -> float:
    assert run.cpu_seconds is not None
    return run.cpu_seconds


def _difference(values: Sequence[float]) -> str:
    found = paired_interval(values)
    return f"{found.median:+.4f} {_ends(found, '+.4f')}"


def _ratio(values: Sequence[float]) -> str:
    found = paired_interval([math.log(value) for value in values])
    middle, low, high = (math.exp(value) for value in (found.median, found.low, found.high))
    return f"{middle:.2f} {_ends(Interval(middle, low, high, found.confidence), '.2f')}"


def _ends(found: Interval, shape: str) -> str:
    return f"[{found.low:{shape}}, {found.high:{shape}}]"


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) if arguments else ROOT / "results" / "reference" / "inits"
    runs = measured(SessionStore(folder).runs())
    heads = ["use case", "initial weights", "quality", "steps to the target", "CPU time to the target"]
    pairs = min(
        sum(run.params["inits"] == 1 for run in runs if run.usecase == usecase)
        for usecase in {run.usecase for run in runs}
    )
    said = (
        f"Against one initialization, in {pairs} pairs of runs: differences of quality, and ratios, with "
        "intervals of 95 %. CPU time has the search and all set-up in it."
    )
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN not in text:  # the study had not been recorded before
        text = f"{text}\n{BEGIN}\n{END}\n"
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    table = markdown(heads, judged(runs))
    PAGE.write_text(f"{before}{BEGIN}\n\n{said}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
