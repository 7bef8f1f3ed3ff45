"""Writes the results of three studies into the documentation: tables of paired differences with intervals.

Usage: ``python tools/judge_studies.py [inits|placement|robust[=SESSION]…]``. By default, the program uses the
kept sessions with these three names; names select some of them, and SESSION another folder. Each table is
written between two marks of its study's page.

Runs of one block are pairs. `inits` compares runs with one initialization with runs that searched for one,
and with the best of an equal number that are trained to the end. `placement` compares each assignment of
samples with a random assignment. `robust` compares each rule, with and without wrong workers, with the mean
of correct workers.
"""

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from adabench.analysis.load import measured
from adabench.analysis.pages import write_section
from adabench.analysis.statistics import Interval, paired_interval
from adabench.analysis.tables import markdown
from adabench.results.record import RecordError, Run
from adabench.results.store import SessionStore

ROOT = Path(__file__).resolve().parents[1]

Row = tuple[str, ...]
Key = TypeVar("Key", bound=Hashable)


def judged_inits(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each use case and each method to choose initial weights.

    The target of a use case is the validation quality that the worst of its runs with one initialization
    reaches. The best of N that are trained to the end is taken from the runs with one initialization of N
    blocks: the one with the best validation quality, at the CPU time of all of them.

    Raises
    ------
    RecordError
        If a use case has no runs with one initialization, or no others, in equal blocks.
    """
    rows: list[Row] = []
    for usecase, own in _by_usecase(runs).items():
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
        gained = fmean(_quality(one) - _quality(group[0]) for one, group in zip(best, groups, strict=True))
        rows.append(
            (
                usecase,
                f"best of {count}, trained to the end",
                f"{gained:+.4f}",
                "",
                f"{fmean(sum(map(_whole, group)) / _cpu(group[0], target) for group in groups):.1f}",
            )
        )
    return rows


def judged_placement(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each use case and each assignment of its samples.

    Raises
    ------
    RecordError
        If samples of a use case were never assigned at random.
    """
    rows: list[Row] = []
    for usecase, own in _by_usecase(runs).items():
        ways = _cells(own, lambda run: str(run.params["placement"]))
        if "random" not in ways:
            raise RecordError(f"no run of {usecase} deals samples at random, which others are compared with")
        base = ways["random"]
        for way, cell in sorted(ways.items(), key=lambda item: (item[0] != "random", item[0])):
            local = f"{100 * fmean(map(_local, cell.values())):.1f} %"
            if way == "random":
                rows.append((usecase, way, local, "", "", "", f"{fmean(map(_quality, cell.values())):.4f}"))
                continue
            pairs = _pairs(cell, base)
            rows.append(
                (
                    usecase,
                    way,
                    local,
                    *(
                        _ratio([measure(one) / measure(other) for one, other in pairs])
                        for measure in (_local, _bytes, _seconds)
                    ),
                    _difference([_quality(one) - _quality(other) for one, other in pairs]),
                )
            )
    return rows


def judged_robust(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each use case and each rule that combines gradients.

    Raises
    ------
    RecordError
        If a use case has no run with the mean of correct workers.
    """
    rows: list[Row] = []
    for usecase, own in _by_usecase(runs).items():
        cells = _cells(own, lambda run: (str(run.params["policy"]), str(run.params["fault"])))
        right = [key for key in cells if key[1] == "none" and "aggregation=mean" in key[0]]
        if not right:
            raise RecordError(
                f"no run of {usecase} has the mean of right workers, which others are compared with"
            )
        base = cells[right[0]]
        for policy in sorted({policy for policy, _ in cells}, key=lambda name: ("=mean" not in name, name)):
            rule = policy.partition("aggregation=")[2].strip("[]").partition(",")[0]
            found = []
            for fault in sorted({fault for _, fault in cells}, key=lambda name: name != "none"):
                cell = cells.get((policy, fault), {})
                if cell is base:
                    found.append(f"{fmean(map(_quality, base.values())):.4f}")
                else:
                    pairs = _pairs(cell, base)
                    found.append(_difference([_quality(one) - _quality(other) for one, other in pairs]))
            cost = (
                ""
                if cells.get((policy, "none")) is base
                else _ratio(
                    [
                        _whole(one) / _whole(other)
                        for one, other in _pairs(cells.get((policy, "none"), {}), base)
                    ]
                )
            )
            rows.append((usecase, rule, *found, cost))
    return rows


@dataclass(frozen=True)
class Study:
    """A study's table: its page, its column heads, the text above it, and the function for its rows."""

    page: str
    heads: tuple[str, ...]
    said: str
    judged: Callable[[Sequence[Run]], list[Row]]


STUDIES = {
    "inits": Study(
        "initial-weights.md",
        ("use case", "initial weights", "quality", "steps to the target", "CPU time to the target"),
        "The search is compared with one initialization in {pairs} pairs of runs: differences of quality, "
        "and ratios, with "
        "intervals of 95 %. CPU time includes the search and all set-up.",
        judged_inits,
    ),
    "placement": Study(
        "data.md",
        (
            "use case",
            "`placement`",
            "local",
            "local, ratio",
            "bytes, ratio",
            "training time, ratio",
            "quality",
        ),
        "Each `placement` is compared with `random` in {pairs} pairs of runs of the study `placement`: "
        "ratios, and differences of "
        "quality, with intervals of 95 %. Quality is the AUC of `ctr`, the MRR of `kge`, and the error of "
        "`mf`, whose lower values are better. *Local* is the share of reads without a message.",
        judged_placement,
    ),
    "robust": Study(
        "wrong-workers.md",
        ("use case", "rule", "quality, none wrong", "quality, 2 of 8 wrong (`flip`)", "CPU time, none wrong"),
        "Each rule is compared with the mean of eight right workers in {pairs} pairs of runs of the study "
        "`robust`: "
        "differences of quality, and ratios of the CPU time of whole runs, with intervals of 95 %.",
        judged_robust,
    ),
}


def _by_usecase(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {
        usecase: [run for run in runs if run.usecase == usecase]
        for usecase in sorted({run.usecase for run in runs})
    }


def _cells(runs: Sequence[Run], key: Callable[[Run], Key]) -> dict[Key, dict[int, Run]]:
    """Return runs by cell, which `key` identifies, and by block."""
    cells: dict[Key, dict[int, Run]] = {}
    for run in runs:
        cells.setdefault(key(run), {})[run.block] = run
    return cells


def _pairs(cell: dict[int, Run], base: dict[int, Run]) -> list[tuple[Run, Run]]:
    return [(cell[block], base[block]) for block in sorted(cell.keys() & base.keys())]


def _local(run: Run) -> float:
    """Return the share of pulled keys that needed no message."""
    here = run.counters["pulled_local"] + run.counters["pulled_replica"]
    return here / (here + run.counters["pulled_remote"])


def _bytes(run: Run) -> float:
    return run.counters["bytes_sent"]


def _seconds(run: Run) -> float:
    assert run.seconds.train is not None
    return run.seconds.train


def _curve(run: Run) -> list[float]:
    """Return the validation quality after each epoch. Larger is better for all metrics of the study."""
    return [epoch[f"valid_{run.metric}"] for epoch in run.history]


def _quality(run: Run) -> float:
    assert run.metric is not None
    return run.metrics[run.metric]


def _steps(run: Run, target: float) -> float:
    """Return the fraction of the training until the target; above 1 if it was not reached."""
    before = sum(1 for _ in takewhile(lambda quality: quality < target, _curve(run)))
    return (before + 1) / len(run.history)


def _cpu(run: Run, target: float) -> float:
    """Return CPU seconds until the target, including all work before the first epoch."""
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
    try:
        for argument in arguments or STUDIES:
            name, _, folder = argument.partition("=")
            if name not in STUDIES:
                raise RecordError(
                    f"{name!r} is no study that is judged here: say one of {', '.join(STUDIES)}"
                )
            print(_write(name, Path(folder) if folder else ROOT / "results" / "reference" / name))
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _write(name: str, session: Path) -> Path:
    """Write a study's table into its page, and return the page."""
    study = STUDIES[name]
    runs = measured(SessionStore(session).runs())
    if not runs:
        raise RecordError(f"{session}: it has no successful measured run by which to judge {name!r}")
    table = markdown(study.heads, study.judged(runs))
    pairs = min(len(cell) for cell in _cells(runs, lambda run: run.cell).values())
    page = ROOT / "docs" / "guides" / study.page
    said = study.said.format(pairs=pairs)
    write_section(page, f"study {name}", "tools/judge_studies.py", f"{said}\n\n{table}")
    return page.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
