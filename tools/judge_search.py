"""Judges `adabench search` in twelve cells by training with what it finds; writes docs/design/search.md.

``python tools/judge_search.py``, or ``make search-cells``. In each cell it measures what a step computes for,
searches, with trial runs, and then trains with the found policy and with what each builder makes, in paired
blocks whose runs take turns. That takes some hours of a machine that does nothing else; if it is
interrupted, the same command goes on. ``--cells 1,5`` takes some of them; ``--small`` takes all of them with
little data, in one block, which shows that everything works, and nothing else: it is only printed.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pandas as pd
from rich.console import Console

from adabench.analysis.load import SUCCESS, measured
from adabench.analysis.statistics import paired_interval
from adabench.analysis.tables import markdown
from adabench.backends.policies.protocol import Policy, PolicyError, Resources, measured_costs
from adabench.harness.errors import UsageError
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.measure_cluster import measure_here
from adabench.harness.planning.study import load_study
from adabench.harness.session import execute
from adabench.results.record import RecordError, Run

__all__ = ["BUILDERS", "CELLS", "Cell", "Verdict", "judged", "main", "resources_of", "rows_of", "summary_of"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design" / "search.md"
RESULTS = ROOT / "results" / "sessions"
KEPT = ROOT / "results" / "reference" / "search"
BEGIN, END = "<!-- cells: written by tools/judge_search.py -->", "<!-- end of cells -->"
BACKEND = "autoada-automatic"
BUILDERS = ("adaptive", "static", "balanced", "partitioned", "lapse", "nups", "petuum", "auto")
"""All that are executed and simulated alike, and train with the data and gradients that the search keeps."""
FOUND = "found"
BLOCKS, TRIALS, TRIAL_BLOCKS = 6, 3, 2
NEAR, FAR = 1.05, 1.1
"""What the found policy may take of the best builder's time, in most cells and in any."""
SMALL = {
    "ctr": "ctr[rows=4000,vocabulary=100,dim=4,hidden=8,batch=32]",
    "kge": "kge[triples=4000,dim=8,batch=64,negatives=8]",
    "mf": "mf[ratings=8000,batch=64,dim=8]",
}


@dataclass(frozen=True)
class Cell:
    """What is searched for.

    Attributes
    ----------
    usecase : str
        As on the command line, without epochs: trial runs train for one.
    epochs : int
        Of a training that is searched for.
    nodes : int
    network : str
    last_percent : int
        As `RunSettings.last_node_percent`.
    """

    usecase: str
    epochs: int
    nodes: int
    network: str
    last_percent: int = 100

    @property
    def name(self) -> str:
        """In a table."""
        slow = "" if self.last_percent == 100 else f", one at {self.last_percent} %"
        return f"`{self.usecase}`, {self.epochs} epochs, {self.nodes} nodes{slow}, {self.network}"

    @property
    def usecase_name(self) -> str:
        """Without parameters."""
        return self.usecase.partition("[")[0]

    def small(self) -> Cell:
        """The same with little data."""
        return replace(self, usecase=SMALL[self.usecase_name], epochs=2)


CELLS = tuple(
    Cell(usecase, epochs, *cluster)
    for usecase, epochs, another in (
        ("ctr[rows=86000,batch=128]", 8, (2, "lan", 25)),
        ("kge[batch=256]", 8, (4, "slow", 100)),
        ("mf[batch=512,placement=random]", 16, (4, "slow", 100)),
    )
    for cluster in ((2, "loopback", 100), (2, "lan", 100), (4, "lan", 100), another)
)


@dataclass(frozen=True)
class Verdict:
    """What came of a cell.

    Attributes
    ----------
    cell : str
        Its name.
    candidate : str
        What the search has found: a candidate, or a builder that none was faster than.
    builder : str
        The best one, by the median of its training times.
    blocks : int
        Pairs of runs.
    ratio, low, high : float
        Training time with the found policy ÷ with the best builder's, and the interval of 95 %; NaN with
        fewer than six blocks.
    search_seconds : float
        That it took to measure, solve, simulate and try.
    builders_seconds : float
        That it takes to train once with each builder.
    """

    cell: str
    candidate: str
    builder: str
    blocks: int
    ratio: float
    low: float
    high: float
    search_seconds: float
    builders_seconds: float


def judged(cell: Cell, found: Policy, seconds: float, runs: Sequence[Run]) -> Verdict:
    """Compare the found policy with the builders.

    Parameters
    ----------
    cell : Cell
    found : Policy
        With its evidence.
    seconds : float
        That the search took.
    runs : sequence of Run
        Measured ones of all policies.

    Raises
    ------
    RecordError
        If there are no pairs of runs with the found policy and the best builder's.
    """
    times: dict[str, dict[int, float]] = {}
    whole: dict[str, list[float]] = {}
    for run in runs:
        if run.status in SUCCESS and run.seconds.train:
            policy = str(run.params["policy"])
            name = policy if policy in BUILDERS else FOUND
            times.setdefault(name, {})[run.block] = run.seconds.train
            whole.setdefault(name, []).append(run.seconds.total)
    own = times.pop(FOUND, {})
    if not own or not times:
        raise RecordError(f"{cell.name}: no run with the found policy, or none with a builder's, ended well")
    best = min(times, key=lambda builder: median(times[builder].values()))
    ratios = [math.log(own[block] / other) for block, other in times[best].items() if block in own]
    if not ratios:
        raise RecordError(f"{cell.name}: no block has the found policy and {best}")
    interval = paired_interval(ratios)
    return Verdict(
        cell=cell.name,
        candidate=str(found.evidence["candidate"]),
        builder=best,
        blocks=len(ratios),
        ratio=math.exp(interval.median),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        search_seconds=seconds,
        builders_seconds=sum(median(whole[builder]) for builder in times),
    )


def rows_of(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A line of the table for each cell."""
    return [
        [
            one.cell,
            one.candidate,
            one.builder,
            f"{one.ratio:.3f}" + ("" if math.isnan(one.low) else f" [{one.low:.3f}, {one.high:.3f}]"),
            f"{one.search_seconds:.0f} s",
            f"{one.builders_seconds:.0f} s",
        ]
        for one in verdicts
    ]


def summary_of(verdicts: Sequence[Verdict]) -> str:
    """A sentence that says in how many cells the search does what is wanted of it."""
    count = len(verdicts)
    near = sum(one.ratio <= NEAR for one in verdicts)
    wins = sum(one.high < 1 for one in verdicts)
    paid = sum(one.search_seconds < one.builders_seconds for one in verdicts)
    worst = max(one.ratio for one in verdicts)
    return (
        f"The found policy took at most {100 * (NEAR - 1):.0f} % more time than the best builder's in {near} "
        f"of {count} cells (wanted: 10 of 12), and {worst:.3f} times as long in the worst (wanted: less than "
        f"{FAR:g}); it was faster beyond the interval in {wins} (wanted: 2). The search took less than "
        f"training once with each builder in {paid} of {count}."
    )


def resources_of(cell: Cell, here: Resources) -> Resources:
    """The cluster of a cell, whose nodes share this machine; one that is slower stands alone.

    Parameters
    ----------
    cell : Cell
    here : Resources
        This machine's, with its costs.
    """
    first = msgspec.structs.replace(here.node[0], host="here")
    nodes = [first] * cell.nodes
    if cell.last_percent < 100:
        cores = max(first.cores // cell.nodes, 1)
        slow = cell.last_percent / 100 * first.speed
        nodes = [msgspec.structs.replace(first, host="", cores=cores)] * (cell.nodes - 1)
        nodes.append(msgspec.structs.replace(first, host="", cores=1, speed=slow))
    return msgspec.structs.replace(here, node=tuple(nodes), link=())


@dataclass(frozen=True)
class _Judge:
    """Where everything is kept while the cells are judged."""

    folder: Path
    blocks: int
    trial_blocks: int
    steps: int

    def verdict(self, number: int, cell: Cell) -> Verdict:
        """Search and train in a cell, or what of that was not done before."""
        print(f"cell {number}: {cell.name}", flush=True)
        policy, seconds = self._search(number, cell)
        runs = self._train(number, cell, policy)
        return judged(cell, Policy.read(policy), seconds, runs)

    def _search(self, number: int, cell: Cell) -> tuple[Path, float]:
        """The found policy's file, and the seconds that the search took."""
        file = self.folder / f"found-{number}.toml"
        clock = self.folder / f"found-{number}.seconds"
        if file.is_file() and clock.is_file():
            return file, float(clock.read_text())
        cluster = self.folder / f"cluster-{number}.toml"
        cluster.write_text(resources_of(cell, self._here()).text(), encoding="utf-8")
        said = ["search", "-u", cell.usecase, "-b", BACKEND, "--resources", str(cluster), "-o", str(file)]
        if cell.network != "loopback":
            said += ["--network", cell.network]
        said += ["--trials", str(TRIALS), "--blocks", str(self.trial_blocks), "--steps", str(self.steps)]
        said += ["--builders", "adaptive,static,lapse,nups", "--results", str(self.folder)]
        began = time.perf_counter()
        if subprocess.run([sys.executable, "-m", "adabench.harness.cli", *said], check=False).returncode != 0:
            raise RecordError(f"the search of cell {number} did not come to its end: run this again")
        clock.write_text(f"{time.perf_counter() - began:.3f}")
        return file, float(clock.read_text())

    def _train(self, number: int, cell: Cell, policy: Path) -> list[Run]:
        """Runs with the found policy and all builders'."""
        overrides: dict[str, Any] = {
            "usecases": cell.usecase,
            "params": {cell.usecase_name: {"epochs": cell.epochs}},
            "backends": f"{BACKEND}[policy={','.join([*BUILDERS, str(policy)])}]",
            "nodes": cell.nodes,
            "workers": 1,
            "network": cell.network,
            "last_node_percent": cell.last_percent,
            "repeats": self.blocks,
            "interleaved": True,
        }
        study = load_study(None, f"search-cell-{number}", overrides)
        console = Console(soft_wrap=True)
        store, interrupted = execute.run_session(study, self.folder, execute.Policy(judged=False), console)
        if interrupted:
            raise RecordError("interrupted: the same command goes on")
        return measured(store.runs())

    def _here(self) -> Resources:
        """This machine, measured once."""
        file = self.folder / "here.toml"
        if not file.is_file():
            here = measure_here(2, None)
            costs = measured_costs(here.node[0].speed)
            file.write_text(msgspec.structs.replace(here, costs=costs).text(), encoding="utf-8")
        return Resources.read(file)


def _write(verdicts: Sequence[Verdict]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([asdict(one) for one in verdicts]).to_csv(KEPT / "cells.csv", index=False)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    said = f"{date.today().isoformat()}, {machine_name(capture())}. {summary_of(verdicts)}"
    section = f"{said}\n\n{_table(verdicts)}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}", encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def _table(verdicts: Sequence[Verdict]) -> str:
    heads = ["cell", "found", "best builder", "found ÷ best builder", "search", "each builder once"]
    return markdown(heads, rows_of(verdicts))


def _numbers(text: str) -> list[int]:
    found = []
    for part in text.split(","):
        if not part.isdigit() or not 1 <= int(part) <= len(CELLS):
            raise UsageError(f"--cells {text}: {part!r} is no number of a cell, 1 to {len(CELLS)}")
        found.append(int(part))
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="judge_search.py", description=__doc__)
    parser.add_argument("--cells", default=",".join(str(number + 1) for number in range(len(CELLS))))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    folder = given.results / ("search-cells-small" if given.small else "search-cells")
    judge = _Judge(folder, 1, 1, 10) if given.small else _Judge(folder, BLOCKS, TRIAL_BLOCKS, 60)
    try:
        numbers = _numbers(given.cells)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = {number: CELLS[number - 1] for number in numbers}
        verdicts = [
            judge.verdict(number, cell.small() if given.small else cell) for number, cell in chosen.items()
        ]
    except (RecordError, UsageError, PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_table(verdicts), summary_of(verdicts), sep="\n\n")
    if not given.small and len(verdicts) == len(CELLS):
        _write(verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
