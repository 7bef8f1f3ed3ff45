"""The performance gate: paired rounds of this run against the ratios of a baseline of the same processor."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time

import msgspec

from adabench.analysis.statistics import median_interval

MARGIN = 1.08
CONFIDENCE = 0.99
FEWEST_ROUNDS = 8
"""Fewest rounds that give an exact interval of that confidence."""


class Rounds:
    """Ours and a reference in turns, each timed by the CPU seconds of the whole process."""

    def __init__(self, ours: Callable[[], object], reference: Callable[[], object]) -> None:
        self._ours, self._reference = ours, reference
        self.our_seconds: list[float] = []
        self.reference_seconds: list[float] = []

    def ours(self) -> None:
        self.our_seconds.append(seconds(self._ours))

    def reference(self) -> None:
        self.reference_seconds.append(seconds(self._reference))

    @property
    def ratios(self) -> list[float]:
        """How many times as fast ours is, a value per round."""
        return [theirs / own for theirs, own in zip(self.reference_seconds, self.our_seconds, strict=True)]


class NoBaseline(ValueError):
    """There is no usable baseline; the message says how to make one."""


class Baseline(msgspec.Struct):
    """Median ratios of several processes on one kind of processor: name of the test -> values."""

    processor: str
    ratios: dict[str, list[float]]

    @staticmethod
    def file(folder: Path, processor: str) -> Path:
        """The file of a processor's baseline in the folder that holds those of all processors."""
        return folder / f"{re.sub(r'[^a-z0-9]+', '-', processor.lower()).strip('-')}.json"

    @staticmethod
    def read(folder: Path, processor: str) -> Baseline:
        """Read the baseline of a processor.

        Raises
        ------
        NoBaseline
            If there is none, or the file belongs to another processor.
        """
        file = Baseline.file(folder, processor)
        if not file.is_file():
            raise NoBaseline(
                f"there is no baseline of this processor ({processor}) in {folder}: "
                "`make bench-baseline` makes one"
            )
        found = msgspec.json.decode(file.read_bytes(), type=Baseline)
        if found.processor != processor:
            raise NoBaseline(
                f"the baseline {file} is of another processor ({found.processor}) than this ({processor}): "
                "`make bench-baseline` makes one"
            )
        return found

    def add(self, name: str, rounds: Sequence[float]) -> None:
        self.ratios.setdefault(name, []).append(round(median(rounds), 4))

    def write(self, folder: Path) -> None:
        ordered = Baseline(self.processor, dict(sorted(self.ratios.items())))
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"
        Baseline.file(folder, self.processor).write_bytes(content)


def regression(rounds: Sequence[float], before: Sequence[float]) -> str | None:
    """A message if our code has become slower; None if not, or if the rounds vary too much to be sure.

    It has become slower if the exact interval of the median of this run's ratios lies wholly below the
    slowest process of the baseline by more than `MARGIN`. Variation between the rounds of a process widens
    the interval, and variation between processes lowers the bound.

    Parameters
    ----------
    rounds : sequence of float
        The ratios of this run, at least `FEWEST_ROUNDS`.
    before : sequence of float
        The medians of the baseline's processes.
    """
    now, slowest = median_interval(rounds, CONFIDENCE), min(before)
    if not now.high < slowest / MARGIN:
        return None
    return (
        f"slower than the baseline by {slowest / now.median - 1:.0%}: {now.median:.3f} "
        f"[{now.low:.3f}, {now.high:.3f}] × the reference's speed, at least {slowest:.3f} before"
    )


def seconds(function: Callable[[], object]) -> float:
    start = process_time()
    function()
    return process_time() - start
