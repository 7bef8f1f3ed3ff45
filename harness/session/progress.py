"""Shows the progress of a session: a live display in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adabench.analysis.load import SUCCESS
from adabench.analysis.tables import shortened
from adabench.harness.estimate.recorded import Expected
from adabench.harness.run.spec import RankState
from adabench.results.record import PlannedRun, Run

_BAR = 12
_GAPS = 4  # between five columns
# Columns left for the ^C that a terminal prints at the cursor. In a full line it would begin a second line.
_MARGIN = 3
_SHORTEST_NAME = 12
_LATE = 2.0
"""Ratio of actual to predicted time at which a warning is shown."""


class SessionProgress:
    """Shows the progress of a session's runs inside a context.

    Parameters
    ----------
    planned : list of PlannedRun
        All runs of the session.
    done : list of Run
        Recorded runs, for the count and the estimate.
    labels : dict
        Label of each cell, by its identifier.
    console : Console
        Console that shows the progress.
    expected : mapping, optional
        Expected time of each run, by `PlannedRun.key`. A run that takes twice as long causes a warning.
    """

    def __init__(
        self,
        planned: list[PlannedRun],
        done: list[Run],
        labels: dict[str, str],
        console: Console,
        expected: Mapping[tuple[Any, ...], Expected] | None = None,
    ) -> None:
        self._expected = expected or {}
        self._planned, self._labels, self._console = planned, labels, console
        self._remaining = {run.key: run for run in planned}
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for run in done:
            self._account(run)
        self._live: Progress | None = None
        self._began: set[tuple[str, str, int]] = set()
        self._recorded_at = time.monotonic()
        self._blocks = 1 + max((run.block for run in planned), default=0)

    def __enter__(self) -> SessionProgress:
        if self._console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(_BAR),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[eta]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._live.start()
            self._task = self._live.add_task(
                "",
                total=len(self._planned),
                completed=len(self._planned) - len(self._remaining),
                eta=self._left(),
            )
            self._began_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def lengthen(self, planned: list[PlannedRun]) -> None:
        """Add further planned runs."""
        known = {run.key for run in self._planned}
        self._remaining |= {run.key: run for run in planned if run.key not in known}
        self._planned = planned
        self._blocks = 1 + max(run.block for run in planned)
        if self._live is not None:
            self._live.update(self._task, total=len(planned))

    def start(self, run: PlannedRun) -> None:
        """Show that a run is launched, or continues after the turns of other runs."""
        self._current = run
        if self._live is None:
            if run.key not in self._began:
                self._console.print(
                    f"{self._place(run)} {self._labels[run.cell]} … {self.eta()}", highlight=False
                )
            self._began.add(run.key)
        else:
            self._show(run, "launch")

    def watch(self, run: PlannedRun, state: RankState) -> None:
        """Show the new phase of a run; runs that wait for their turn are not shown."""
        if self._live is not None and run is self._current:
            epoch = f" {state.epoch}/{run.params.get('epochs', '?')}" if state.epoch else ""
            self._show(run, f"{state.phase}{epoch}")

    def end(self, run: Run) -> None:
        """Show that a run is recorded."""
        self._account(run)
        self._recorded_at = time.monotonic()
        label, outcome = self._labels[run.cell], describe(run)
        if self._live is not None:
            rest = len(self._place(run)) + len(outcome) + 3
            label = shortened(label, max(self._console.width - rest, _SHORTEST_NAME))
        self._console.print(f"{self._place(run)} {label}: {outcome}", highlight=False, markup=False)
        expected = self._expected.get(run.key)
        if expected is not None and run.status in SUCCESS and run.seconds.total > _LATE * expected.seconds:
            self._console.print(
                f"warning: {self._place(run)} {self._labels[run.cell]} took {run.seconds.total:.1f} s; "
                f"the median of {expected.runs} earlier runs of its cell is {expected.seconds:.1f} s",
                highlight=False,
                markup=False,
            )
        if self._live is not None:
            self._live.update(self._task, advance=1, eta=self._left())

    def eta(self) -> str:
        """Return the remaining time, from finished runs: the mean of the cell, else the mean of all cells."""
        left = self._seconds_left()
        return "" if left is None else f"about {duration(left)} left"

    def _left(self) -> str:
        """Return the remaining time in as few characters as fit next to the bar."""
        left = self._seconds_left()
        return "? left" if left is None else f"{duration(left)} left"

    def _show(self, run: PlannedRun, phase: str) -> None:
        """Show the current run before the bar; its name is shortened to fit."""
        assert self._live is not None
        count = len(f"{len(self._planned)}")
        elapsed = max(len(f"{int(time.monotonic() - self._began_at) // 3600}"), 1) + len(":00:00")
        beside = _BAR + (2 * count + 1) + elapsed + len(self._left()) + _GAPS + _MARGIN
        room = self._console.width - beside
        name = f"{self._place(run)} {self._labels[run.cell]}"
        if room - len(phase) - 1 >= _SHORTEST_NAME:
            name = f"{shortened(name, room - len(phase) - 1)} {phase}"
        self._live.update(self._task, description=shortened(name, max(room, 0)), eta=self._left())

    def _seconds_left(self) -> float | None:
        known = [second for seconds in self._seconds.values() for second in seconds]
        if not known:
            return None
        mean = sum(known) / len(known)
        left = 0.0
        for run in self._remaining.values():
            own = self._seconds.get((run.cell, run.phase))
            left += sum(own) / len(own) if own else mean
        return left - min(time.monotonic() - self._recorded_at, left)

    def _account(self, run: Run) -> None:
        self._remaining.pop((run.cell, run.phase, run.block), None)
        if run.status in SUCCESS:
            self._seconds.setdefault((run.cell, run.phase), []).append(run.seconds.total)

    def _place(self, run: PlannedRun | Run) -> str:
        block = "warm-up" if run.phase == "warmup" else f"block {run.block + 1}/{self._blocks}"
        return f"{block} {run.usecase}"


def describe(run: Run) -> str:
    """One line: outcome, seconds, the main metric or the reason."""
    if run.status not in SUCCESS:
        where = f" in {run.failed_phase}" if run.failed_phase is not None else ""
        return f"{run.status}{where}: {run.reason}"
    main = {name: value for name, value in run.metrics.items() if run.metric in (None, name)}
    quality = "  ".join(f"{name} {value:.4g}" for name, value in main.items())
    train = f"{run.seconds.train:.1f} s training" if run.seconds.train is not None else ""
    return f"{run.status}  {train} of {run.seconds.total:.1f} s  {quality}"


def failure_lines(runs: Sequence[Run]) -> list[str]:
    """A line per reason of a failure, with the first run that gave it."""
    alike: dict[tuple[str, str | None], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.status, run.reason), []).append(run)
    lines = []
    for (status, reason), own in alike.items():
        others = f" and {len(own) - 1} other{'s' * (len(own) > 2)}" if len(own) > 1 else ""
        lines.append(f"{status}: {own[0].backend} ({own[0].run_id}){others}: {reason}")
    return lines


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s`` or ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
