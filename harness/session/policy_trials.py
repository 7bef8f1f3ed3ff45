"""Finds the policy that trains fastest on this machine, by short trial runs with successive halving."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from adabench.analysis.agreement import different_quality, different_work
from adabench.analysis.load import SUCCESS, last_attempts
from adabench.analysis.statistics import paired_interval
from adabench.harness.errors import LauncherError
from adabench.harness.estimate.search.candidates import Candidate
from adabench.harness.session.execute import run_session
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.study import load_study
from adabench.results.record import Run
from adabench.results.store import make_results_folder

_CONFIDENCE = 0.95


class Interrupted(RuntimeError):
    """The trials were interrupted; the same command continues them."""


@dataclass(frozen=True)
class Measured:
    """Result of a candidate in a rung.

    Attributes
    ----------
    name : str
        Name of the candidate.
    blocks : int
        Pairs of runs of the candidate and the baseline that ended well.
    ratio, low, high : float
        Ratio of its training time to the baseline's, and the interval; NaN where there are too few blocks.
    obstacle : str or None
        Reason to exclude the candidate regardless of its time: it failed, or trained differently.
    """

    name: str
    blocks: int
    ratio: float
    low: float = math.nan
    high: float = math.nan
    obstacle: str | None = None

    def said(self) -> str:
        """The result in a line."""
        if self.obstacle is not None:
            return f"{self.name}: removed, because {self.obstacle}"
        interval = "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]"
        counted = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        return f"{self.name}: {self.ratio:.3f}{interval} of the baseline's time in {counted}"


@dataclass(frozen=True)
class Trials:
    """Settings of the trial runs of candidates.

    Attributes
    ----------
    usecase, backend : str
        Use case and backend in the form of the command line.
    overrides : mapping
        Further keys of a study: nodes, workers, network, data and seed.
    folder : Path
        Folder to which the candidates' policies are written.
    root : Path
        Folder of the sessions.
    console : Console
        Console for progress.
    """

    usecase: str
    backend: str
    overrides: Mapping[str, object]
    folder: Path
    root: Path
    console: Console

    def run(self, candidates: Sequence[Candidate], blocks: int, rung: int) -> dict[str, list[Run]]:
        """Return each candidate's runs by its name; runs of a block use the same data, in random order."""
        make_results_folder(self.folder)
        files = {}
        for position, one in enumerate(candidates):
            # The position makes the file's name unique if several policies have one name.
            file = self.folder / f"{position}-{re.sub(r'[^a-zA-Z0-9]+', '-', one.policy.name)[:40]}.toml"
            one.policy.write(file)
            files[str(file)] = one.name
        study = load_study(
            None,
            f"search-{rung}",
            {
                **self.overrides,
                "usecases": self.usecase,
                "backends": self.backend,
                "options": {self.backend: {"policy": list(files)}},
                "repeats": blocks,
                "interleaved": True,  # so that noise affects all runs of a block equally
            },
        )
        store, interrupted = run_session(study, self.root, ResumeOptions(judged=False), self.console)
        if interrupted:
            raise Interrupted("interrupted: the same command continues")
        found: dict[str, list[Run]] = {one.name: [] for one in candidates}
        for run in last_attempts(store.runs()):
            if run.phase == "measured":
                found[files[run.params["policy"]]].append(run)
        return found


def halved(
    candidates: Sequence[Candidate],
    baseline: Candidate,
    blocks: int,
    run: Callable[[Sequence[Candidate], int, int], dict[str, list[Run]]],
    told: Callable[[str], None],
) -> tuple[Candidate, list[Measured]]:
    """Return the fastest candidate, or the baseline if none is faster, and the results of all rungs in order.

    In each rung all candidates that are left and the baseline train in paired blocks. The faster half
    continues, with twice as many blocks. In the last rung a single candidate is compared with the baseline.
    Its interval uses only the runs of that rung, which did not influence the choice.

    Parameters
    ----------
    candidates : sequence of Candidate
        Candidates, without the baseline.
    baseline : Candidate
        Baseline of all comparisons.
    blocks : int
        Number of blocks in the last rung. With 6 or more blocks there is an interval.
    run : callable
        Function that returns the runs of some candidates, for a number of blocks, in a rung.
    told : callable
        Function that is called with one line for each result.

    Raises
    ------
    LauncherError
        If no run of the baseline in a rung ended well.
    """
    everything: list[Measured] = []
    left, rung = list(candidates), 1
    while left:
        later = len(left).bit_length() - 1  # Number of rungs after this one.
        runs = run([baseline, *left], max(1, blocks >> later), rung)
        against = runs[baseline.name]
        if not any(one.status in SUCCESS for one in against):
            reason = (_failures(against) or ["it was not run"])[0]
            raise LauncherError(
                f"nothing can be compared with {baseline.name}: {reason}; name another policy with --builders"
            )
        found = {one.name: measure(one.name, runs[one.name], against) for one in left}
        everything += found.values()
        for one in found.values():
            told(f"rung {rung}: {one.said()}")
        last = len(left) == 1
        left = sorted(
            (one for one in left if found[one.name].obstacle is None), key=lambda one: found[one.name].ratio
        )[: max(1, len(left) // 2)]
        if last:
            return (left[0] if left and found[left[0].name].ratio < 1 else baseline), everything
        rung += 1
    return baseline, everything


def measure(name: str, own: Sequence[Run], baseline: Sequence[Run]) -> Measured:
    """Compare a candidate's runs with the baseline's runs, block by block."""
    theirs = {run.block: run for run in baseline}
    pairs = [(run, theirs[run.block]) for run in own if run.block in theirs]
    good = [pair for pair in pairs if all(run.status in SUCCESS for run in pair)]
    failures = _failures(own)
    if not good:
        return Measured(name, 0, math.nan, obstacle=(failures or ["no block has both runs"])[0])
    ratios = [
        math.log(one.seconds.train / other.seconds.train)
        for one, other in good
        if one.seconds.train and other.seconds.train
    ]
    interval = paired_interval(ratios, _CONFIDENCE)
    ratio, low, high = (math.exp(value) for value in (interval.median, interval.low, interval.high))
    obstacle = failures[0] if failures else different_work(good) or different_quality(good)
    return Measured(name, len(ratios), ratio, low, high, obstacle)


def _failures(runs: Sequence[Run]) -> list[str]:
    return [run.reason or run.status for run in runs if run.status not in SUCCESS]
