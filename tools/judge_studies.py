"""Writes the results of two studies into the documentation: tables of paired differences with intervals.

Usage: ``python tools/judge_studies.py [placement|robust[=SESSION]…]``. By default, the program uses the
kept sessions with these two names; names select some of them, and SESSION another folder. Each table is
written between two marks of its study's page.

Runs of one block are pairs. `placement` compares each assignment of samples with a random assignment.
`robust` compares each rule, with and without wrong workers, with the mean of correct workers.
"""

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from adabench.analysis.load import measured
from adabench.analysis.pages import write_section
from adabench.analysis.statistics import paired_interval
from adabench.analysis.tables import markdown
from adabench.results.record import RecordError, Run
from adabench.results.store import SessionStore

ROOT = Path(__file__).resolve().parents[1]

Row = tuple[str, ...]
Cell = dict[int, Run]
"""Runs of a cell, by block."""
Key = TypeVar("Key", bound=Hashable)


def judged_placement(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each use case and each assignment of its samples.

    Raises
    ------
    RecordError
        If samples of a use case were never assigned at random.
    """
    rows: list[Row] = []
    for usecase, own in _by(runs, lambda run: run.usecase).items():
        ways = _cells(own, lambda run: str(run.params["placement"]))
        if "random" not in ways:
            raise RecordError(f"no run of {usecase} deals samples at random, which others are compared with")
        base = ways["random"]
        for way, cell in sorted(ways.items(), key=lambda item: (item[0] != "random", item[0])):
            ratios = [_ratio(cell, base, measure) for measure in (_local, _bytes, _seconds)]
            local = f"{100 * fmean(map(_local, cell.values())):.1f} %"
            rows.append((usecase, way, local, *ratios, _difference(cell, base)))
    return rows


def judged_robust(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each use case and each rule that combines gradients.

    Raises
    ------
    RecordError
        If a use case has no run with the mean of correct workers.
    """
    rows: list[Row] = []
    for usecase, own in _by(runs, lambda run: run.usecase).items():
        cells = _cells(own, lambda run: (str(run.params["policy"]), str(run.params["fault"])))
        right = [key for key in cells if key[1] == "none" and "aggregation=mean" in key[0]]
        if not right:
            raise RecordError(
                f"no run of {usecase} has the mean of right workers, which others are compared with"
            )
        base = cells[right[0]]
        for policy in sorted({policy for policy, _ in cells}, key=lambda name: ("=mean" not in name, name)):
            rule = policy.partition("aggregation=")[2].strip("[]").partition(",")[0]
            faults = sorted({fault for _, fault in cells}, key=lambda name: name != "none")
            found = [_difference(cells.get((policy, fault), {}), base) for fault in faults]
            rows.append((usecase, rule, *found, _ratio(cells.get((policy, "none"), {}), base, _whole)))
    return rows


@dataclass(frozen=True)
class Study:
    """A study's table: its page, its column heads, the text above it, and the function for its rows."""

    page: str
    heads: tuple[str, ...]
    said: str
    judged: Callable[[Sequence[Run]], list[Row]]


STUDIES = {
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


def _by(runs: Sequence[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    found: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.usecase):
        found.setdefault(key(run), []).append(run)
    return found


def _cells(runs: Sequence[Run], key: Callable[[Run], Key]) -> dict[Key, Cell]:
    """Return runs by cell, which `key` identifies, and by block."""
    return {name: {run.block: run for run in own} for name, own in _by(runs, key).items()}


def _local(run: Run) -> float:
    """Return the share of pulled keys that needed no message."""
    here = run.counters["pulled_local"] + run.counters["pulled_replica"]
    return here / (here + run.counters["pulled_remote"])


def _bytes(run: Run) -> float:
    return run.counters["bytes_sent"]


def _seconds(run: Run) -> float:
    assert run.seconds.train is not None
    return run.seconds.train


def _quality(run: Run) -> float:
    assert run.metric is not None
    return run.metrics[run.metric]


def _whole(run: Run) -> float:
    assert run.cpu_seconds is not None
    return run.cpu_seconds


def _difference(cell: Cell, base: Cell) -> str:
    """Return the paired difference of quality, or the mean quality of the base itself."""
    if cell is base:
        return f"{fmean(map(_quality, base.values())):.4f}"
    blocks = cell.keys() & base.keys()
    found = paired_interval([_quality(cell[block]) - _quality(base[block]) for block in blocks])
    return f"{found.median:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def _ratio(cell: Cell, base: Cell, measure: Callable[[Run], float]) -> str:
    """Return the paired ratio of a measure; nothing for the base itself."""
    if cell is base:
        return ""
    logs = [math.log(measure(cell[block]) / measure(base[block])) for block in cell.keys() & base.keys()]
    found = paired_interval(logs)
    middle, low, high = (math.exp(value) for value in (found.median, found.low, found.high))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


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
