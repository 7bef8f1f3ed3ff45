"""Judges `adabench search` in twelve cells by training with its policies; writes docs/concepts/search.md.

Usage: ``python tools/judge_search.py``, or ``make search-cells``. In each cell, the program measures the
computing time of a step and searches, with trial runs. Then it trains with the found policy and with the
policy of each builder, in paired blocks of runs that take turns. This takes half an hour on an otherwise idle
machine. After an interruption, the same command continues. ``--cells 1,5`` selects cells. ``--small`` runs
all cells with little data, as a test of the program, and only prints the result.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import fmean, median

import msgspec
import pandas as pd
from rich.console import Console

from adabench.analysis.load import SUCCESS
from adabench.analysis.pages import write_section
from adabench.analysis.tables import markdown
from adabench.backends.policies.cost_model import measured_costs
from adabench.backends.policies.resources import Resources, ResourcesError
from adabench.harness.errors import UsageError
from adabench.harness.estimate.search.candidates import Candidate
from adabench.harness.machine.environment import capture, machine_name
from adabench.harness.machine.measure_cluster import measure_here
from adabench.harness.session.policy_trials import Interrupted, Measured, Trials, measure
from adabench.harness.study.cell import digest, shared_sources_hash
from adabench.harness.study.model_parameters import usecase_from
from adabench.harness.study.policies import policy_of_usecase
from adabench.results.record import RecordError, Run
from adaps.policy import Policy, PolicyError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "concepts" / "search.md"
RESULTS = ROOT / "results" / "sessions"
KEPT = ROOT / "results" / "reference" / "search"
BACKEND = "autoada-automatic"
BUILDERS = ("adaptive", "static", "balanced", "partitioned", "lapse", "nups", "petuum")
"""Builders whose policies are executed and simulated, and use the data and gradients of the search."""
FOUND = "found"
BLOCKS, SCREENING = 6, 2
"""Number of blocks for policies that may be the best, and for the screening of all policies."""
TRIALS, TRIAL_BLOCKS, SIMULATED_STEPS = 3, 2, 60
SLOW = 1.1
"""Ratio to the fastest builder above which a policy is too slow, in each block of the screening."""
NEAR, FAR = 1.05, 1.1
"""Maximum ratio of the found policy's time to the best builder's time, in most cells and in any cell."""
SEED = 1000
"""Seed of the first block. Trials use seeds from 0, so that verdicts and search use different data orders."""
SMALL = {
    "ctr": "ctr[rows=4000,vocabulary=100,dim=4,hidden=8,batch=32]",
    "kge": "kge[triples=4000,dim=8,batch=64,negatives=8]",
    "mf": "mf[ratings=8000,batch=64,dim=8]",
}


@dataclass(frozen=True)
class Cell:
    """A cell in which the search is judged.

    Attributes
    ----------
    usecase : str
        Use case in the form of the command line, without epochs: trial runs train for one epoch.
    epochs : int
        Number of epochs of a run that compares policies.
    job : int
        Number of epochs of the training for which the policy is searched.
    nodes : int
        Number of nodes.
    network : str
        Network, as in `RunSettings`.
    last_percent : int
        Processor time of the last node, as `RunSettings.last_node_percent`.
    """

    usecase: str
    epochs: int
    job: int
    nodes: int
    network: str
    last_percent: int = 100

    @property
    def name(self) -> str:
        """Name of the cell in a table."""
        slow = "" if self.last_percent == 100 else f", one at {self.last_percent} %"
        return f"`{self.usecase}`, {self.nodes} nodes{slow}, {self.network}"

    @property
    def usecase_name(self) -> str:
        """Name of the use case, without parameters."""
        return self.usecase.partition("[")[0]

    def small(self) -> Cell:
        """Return an equal cell with little data."""
        return replace(self, usecase=SMALL[self.usecase_name], epochs=1)


CELLS = tuple(
    Cell(usecase, epochs, job, *cluster)
    for usecase, epochs, job, another in (
        ("ctr[rows=86000,batch=128]", 2, 8, (2, "lan", 25)),
        ("kge[batch=256]", 2, 8, (4, "slow", 100)),
        ("mf[batch=512,placement=random]", 4, 16, (4, "slow", 100)),
    )
    for cluster in ((2, "loopback", 100), (2, "lan", 100), (4, "lan", 100), another)
)


@dataclass(frozen=True)
class Verdict:
    """The result of a cell.

    Attributes
    ----------
    cell : str
        Name of the cell.
    candidate : str
        Result of the search: a candidate, or a builder if no candidate was faster.
    rivals : tuple of Measured
        Builders with policies that differ from the found policy. Their ratios are the training time with the
        found policy divided by the time with the builder's policy.
    screened : frozenset of str
        Names of the rivals that were too slow to be the best, so that they were not trained further.
    search_seconds : float
        Time to measure, solve, simulate and try, in seconds.
    builders_seconds : float
        Time to train once with each builder's policy, for the searched number of epochs, in seconds.
    """

    cell: str
    candidate: str
    rivals: tuple[Measured, ...]
    screened: frozenset[str]
    search_seconds: float
    builders_seconds: float

    @property
    def left(self) -> list[Measured]:
        """Builders that may be the best."""
        return [one for one in self.rivals if one.name not in self.screened]

    @property
    def best(self) -> Measured | None:
        """The builder with the highest ratio: the found policy is slowest compared with it.

        This is the best builder, or one with lucky measurements: the smallest of several measured times tends
        to be too small. None if the found policy is the best builder's.
        """
        return max(self.left, key=lambda one: one.ratio, default=None)

    @property
    def ratio(self) -> float:
        """Ratio of training times: found policy to best builder."""
        return 1.0 if self.best is None else self.best.ratio

    @property
    def obstacle(self) -> str | None:
        """Reason why the found policy is invalid, independent of its speed; None if it is valid."""
        return next((one.obstacle for one in self.rivals if one.obstacle is not None), None)

    @property
    def is_near(self) -> bool:
        """Whether the found policy is about as fast as the best builder, or faster."""
        return self.obstacle is None and self.ratio <= NEAR

    @property
    def wins(self) -> bool:
        """Whether the found policy is significantly faster than each builder that may be the best.

        All 95 % intervals must be below 1. The probability of an error is at most that of a single interval,
        so no correction is needed (Berger, Multiparameter hypothesis testing and acceptance sampling,
        Technometrics 24(4), 1982).
        """
        return self.obstacle is None and bool(self.left) and all(one.high < 1 for one in self.left)


def distinct(policies: Mapping[str, Policy]) -> dict[str, list[str]]:
    """Return groups of policies with equal effect: lists of names by the first name, which has priority."""
    alike: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for name, policy in policies.items():
        done = replace(policy, name="same", evidence={}, made_for=None).text()
        alike.setdefault(first.setdefault(done, name), []).append(name)
    return alike


def left_after_screening(times: Mapping[str, Mapping[int, float]]) -> set[str]:
    """Return the builders that may be the best: the ones not much slower than the fastest in every block."""
    common = set.intersection(*(set(own) for own in times.values()))
    if not common:
        return set(times)
    fastest = min(times, key=lambda name: fmean(math.log(times[name][block]) for block in common))
    return {
        name
        for name, own in times.items()
        if name == fastest or any(own[block] < SLOW * times[fastest][block] for block in common)
    }


def judged(
    cell: Cell,
    found: Policy,
    alike: Mapping[str, Sequence[str]],
    left: Collection[str],
    runs: Mapping[str, Sequence[Run]],
) -> Verdict:
    """Compare the found policy with the policies of the builders.

    Parameters
    ----------
    cell : Cell
        Cell of the runs.
    found : Policy
        Found policy with its evidence, which includes `search_seconds`.
    alike : mapping
        Groups of `distinct` policies. `FOUND` is the first name; the others are builders.
    left : collection of str
        Result of `left_after_screening`.
    runs : mapping of str to sequence of Run
        Runs with each policy, by its name. Policies that were screened out have fewer blocks.

    Raises
    ------
    RecordError
        If the found policy, or a builder, has no successful run.
    """
    good = {name: [run for run in own if run.status in SUCCESS] for name, own in runs.items()}
    if not good[FOUND]:
        raise RecordError(f"{cell.name}: no run with the found policy ended well")
    builders = {name: own for name, own in good.items() if own and (name != FOUND or len(alike[FOUND]) > 1)}
    if not builders:
        raise RecordError(f"{cell.name}: no run with a builder's policy ended well")
    names = {name: ", ".join(alike[name]) for name in builders if name != FOUND}
    rivals = [measure(names[name], runs[FOUND], good[name]) for name in names]
    for one in rivals:
        if not one.blocks:
            raise RecordError(f"no block has runs with the found policy and with {one.name} that ended well")
    return Verdict(
        cell=cell.name,
        candidate=str(found.evidence["candidate"]),
        rivals=tuple(rivals),
        screened=frozenset(names[name] for name in names if name not in left),
        search_seconds=float(str(found.evidence["search_seconds"])),
        builders_seconds=sum(_seconds_of_job(own, cell) for own in builders.values()),
    )


def _seconds_of_job(runs: Sequence[Run], cell: Cell) -> float:
    """Return the seconds from launch to exit of a training with all epochs; epochs take equal times."""
    return median(run.seconds.total + (cell.job / cell.epochs - 1) * _train(run) for run in runs)


def _train(run: Run) -> float:
    assert run.seconds.train is not None, "a run that ended well has trained"
    return run.seconds.train


def rows_of(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return a line of the table for each cell."""
    rows = []
    for one in verdicts:
        best = one.best
        if best is None:
            ratio = "1, as it is the same"
        else:
            interval = "" if math.isnan(best.low) else f" [{best.low:.3f}, {best.high:.3f}]"
            ratio = f"{best.ratio:.3f}{interval}"
        rows.append(
            [
                one.cell,
                one.candidate,
                one.candidate if best is None else best.name,
                ratio if one.obstacle is None else f"{ratio}, but {one.obstacle}",
                f"{len(one.screened)} of {len(one.rivals)}",
                f"{one.search_seconds:.0f} s",
                f"{one.builders_seconds:.0f} s",
            ]
        )
    return rows


def summary_of(verdicts: Sequence[Verdict]) -> str:
    """Return a sentence that counts the cells where the search reaches its goals."""
    count = len(verdicts)
    near = sum(one.is_near for one in verdicts)
    wins = sum(one.wins for one in verdicts)
    paid = sum(one.search_seconds < one.builders_seconds for one in verdicts)
    worst = max(one.ratio for one in verdicts)
    return (
        f"In {near} of {count} cells (goal: 10 of 12), the found policy took at most "
        f"{100 * (NEAR - 1):.0f} % more time than the best builder's policy. In the worst cell it took "
        f"{worst:.3f} times as long (goal: less than {FAR:g}). In {wins} cells (goal: 2) it was faster than "
        f"the policies of all builders, and the intervals confirm this. In {paid} of {count} cells, the "
        f"search took less time than training once with each builder."
    )


def resources_of(cell: Cell, here: Resources) -> Resources:
    """Return the cluster of a cell. Its nodes share this machine, but a slower node has a separate host."""
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
    """The folder for all results, the number of blocks, and the simulated steps of a search."""

    folder: Path
    blocks: int
    steps: int

    def verdict(self, number: int, cell: Cell) -> Verdict:
        """Search and train in a cell. Completed parts are not repeated."""
        found = self._found(number, cell)
        return judged(cell, found, *self._trained(number, cell, found))

    def _found(self, number: int, cell: Cell) -> Policy:
        """Return the result of the search, whose evidence has its time and the hash of what determines it."""
        policy = self.folder / f"found-{number}.toml"
        of = digest(repr((cell, self.blocks, self.steps, shared_sources_hash(Path(__file__)))).encode())[:16]
        if policy.is_file() and (found := Policy.read(policy)).evidence.get("searched_in") == of:
            return found
        began = time.monotonic()
        self._search(number, cell, policy)
        found = Policy.read(policy)
        spent = time.monotonic() - began
        evidence = {**found.evidence, "searched_in": of, "search_seconds": spent}
        found = replace(found, evidence=evidence)
        found.write(policy)
        return found

    def _search(self, number: int, cell: Cell, policy: Path) -> None:
        cluster = self.folder / f"cluster-{number}.toml"
        cluster.write_text(resources_of(cell, self._here()).text(), encoding="utf-8")
        said = ["search", "-u", cell.usecase, "-b", BACKEND, "--resources", str(cluster), "-o", str(policy)]
        if cell.network != "loopback":
            said += ["--network", cell.network]
        said += ["--trials", str(TRIALS), "--blocks", str(min(TRIAL_BLOCKS, self.blocks))]
        said += ["--steps", str(self.steps), "--results", str(self.folder)]
        if subprocess.run([sys.executable, "-m", "adabench.harness.cli", *said], check=False).returncode != 0:
            raise RecordError(f"the search of cell {number} did not come to its end: run this again")

    def _trained(
        self, number: int, cell: Cell, found: Policy
    ) -> tuple[dict[str, list[str]], set[str], dict[str, list[Run]]]:
        """Return groups of equal policies, the builders that may be the best, and the runs by policy."""
        usecase = usecase_from(cell.usecase, None, SEED)
        policies = {FOUND: replace(found, name=FOUND)}
        for name in BUILDERS:
            made = policy_of_usecase(name, usecase, Resources.alike(cell.nodes), 1)
            policies[name] = replace(made, name=name)
        alike = distinct(policies)
        overrides: dict[str, object] = {
            "params": {cell.usecase_name: {"epochs": cell.epochs}},
            "nodes": cell.nodes,
            "network": cell.network,
            "last_node_percent": cell.last_percent,
            "warmup": False,  # trial runs have already warmed up the machine
        }
        policies_folder, console = self.folder / f"policies-{number}", Console(soft_wrap=True)
        runs: dict[str, list[Run]] = {name: [] for name in alike}
        left = set(alike)
        for first, blocks in ((0, SCREENING), (SCREENING, self.blocks - SCREENING)):
            if blocks <= 0 or not left:
                break
            own = {**overrides, "seed": SEED + first}
            trials = Trials(cell.usecase, BACKEND, own, policies_folder, self.folder, console)
            several = [Candidate(name, policies[name]) for name in alike if name in {FOUND, *left}]
            for name, more in trials.run(several, blocks, number).items():
                runs[name] += [msgspec.structs.replace(run, block=run.block + first) for run in more]
            if first == 0:
                times = {
                    name: {run.block: _train(run) for run in several_runs if run.status in SUCCESS}
                    for name, several_runs in runs.items()
                    if name != FOUND or len(alike[FOUND]) > 1
                }
                times = {name: own_times for name, own_times in times.items() if own_times}
                left = left_after_screening(times) - {FOUND} if times else set()
        return alike, left, runs

    def _here(self) -> Resources:
        """Return this machine's resources. They are measured again only if the machine has changed."""
        file = self.folder / "here.toml"
        if file.is_file():
            try:
                return Resources.read(file)
            except ResourcesError as error:
                print(f"{error}: measured anew", file=sys.stderr)
        here = measure_here(2, None)
        costs = measured_costs(here.node[0].speed)
        file.write_text(msgspec.structs.replace(here, costs=costs).text(), encoding="utf-8")
        return Resources.read(file)


def _write(verdicts: Sequence[Verdict]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    every = [
        {"cell": one.cell, "found": one.candidate, **asdict(rival), "screened": rival.name in one.screened}
        for one in verdicts
        for rival in one.rivals
    ]
    pd.DataFrame(every).rename(columns={"name": "builder"}).to_csv(KEPT / "builders.csv", index=False)
    said = f"{date.today().isoformat()}, {machine_name(capture())}. {summary_of(verdicts)}"
    write_section(PAGE, "cells", "tools/judge_search.py", f"{said}\n\n{_table(verdicts)}")
    print(PAGE.relative_to(ROOT))


def _table(verdicts: Sequence[Verdict]) -> str:
    best = "best builder"
    heads = ["cell", "found", best, f"found ÷ {best}", "too slow", "search", "each builder once"]
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
    judge = _Judge(folder, SCREENING, 10) if given.small else _Judge(folder, BLOCKS, SIMULATED_STEPS)
    verdicts: list[Verdict] = []
    try:
        for number in _numbers(given.cells):
            folder.mkdir(parents=True, exist_ok=True)
            cell = CELLS[number - 1].small() if given.small else CELLS[number - 1]
            print(f"cell {number}: {cell.name}", flush=True)
            verdicts.append(judge.verdict(number, cell))
    except (Interrupted, RecordError, UsageError, PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_table(verdicts), summary_of(verdicts), sep="\n\n")
    if not given.small and len(verdicts) == len(CELLS):
        _write(verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
