"""Prints what a step of each model costs on one node: CPU time of the wrapped model ÷ the plain one's.

``python -m tests.models.costs [LIBRARY …]``, or ``make model-costs``. Both models train in one process and
take turns, so that whatever else the machine does meets both alike; the CPU time is that of all threads of
the process, the server's included. What a table costs beside what it moves (foreseeing a lookup, comparing
it, pulling and pushing rows) takes a fixed time; where a plain step takes little more, as with the small
tables and batches of these cases, that is the reason of a ratio above `LIMIT`. Exit code 1 if it is not, and
the case gives no other.
"""

from __future__ import annotations

import itertools
import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import autoada

from .case import Case
from .suite import LIBRARIES
from .trial import build

LIMIT = 1.5
"""A ratio above it needs a reason."""
GOAL = 1.1
"""For the median."""
WARM_UP, ROUNDS, ROUND_SECONDS = 25, 7, 0.05
BATCHES = 10
FIXED = 0.75e-3
"""CPU seconds per step and table, and for all dense parameters, that count as fixed, on a slow core."""


def main(names: list[str]) -> int:
    """Measure the libraries given, or all that are installed, and print a table."""
    ratios: dict[str, float] = {}
    unexplained = []
    print(f"{'model':64} {'plain':>9} {'wrapped':>9} {'ratio':>6}  reason")
    for name in names or [name for name, library in LIBRARIES.items() if library.installed]:
        for case in LIBRARIES[name].cases():
            plain, wrapped, tables = _in_a_process(name, case.name)
            label = f"{name}: {case.name}"
            ratios[label] = ratio = wrapped / plain
            reason = (case.dear or _fixed_costs(wrapped - plain, tables)) if ratio > LIMIT else ""
            if ratio > LIMIT and not reason:
                unexplained.append(label)
            print(
                f"{label:64} {plain * 1e3:6.2f} ms {wrapped * 1e3:6.2f} ms {ratio:6.2f}  {reason}", flush=True
            )
    median = statistics.median(ratios.values())
    verdict = "met" if median <= GOAL else "missed"
    print(f"{len(ratios)} models: median {median:.2f} (goal: at most {GOAL}, {verdict})")
    if unexplained:
        print(f"above {LIMIT} without a reason: {', '.join(unexplained)}")
    return 1 if unexplained else 0


def measure(case: Case) -> tuple[float, float, int]:
    """CPU seconds per step, plain and wrapped, as medians of rounds that take turns, and its tables."""
    plain, wrapped = build(case), build(case)
    plain_optimizer, optimizer = (torch.optim.SGD(m.parameters(), lr=case.rate) for m in (plain, wrapped))
    model = autoada.AdaModel(wrapped, optimizer, tables=case.tables)
    batches = case.batches(BATCHES, 1)
    loader = autoada.AdaDataLoader(itertools.cycle(batches), model=model)
    steps = [
        _stepper(case, plain, plain_optimizer, itertools.cycle(batches)),
        _stepper(case, model, optimizer, iter(loader)),
    ]
    for step in steps:
        step(WARM_UP)
    count = max(5, round(ROUND_SECONDS / steps[0](5)))
    figures = list(zip(*([step(count) for step in steps] for _ in range(ROUNDS)), strict=True))
    model.close()
    return statistics.median(figures[0]), statistics.median(figures[1]), len(model.tables)


def _stepper(case: Case, model: Any, optimizer: Any, batches: Any) -> Callable[[int], float]:
    """A function that does so many steps and gives the CPU seconds of one."""

    def steps(count: int) -> float:
        start = time.process_time()
        for batch in itertools.islice(batches, count):
            loss = case.loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if case.after_step is not None:
                case.after_step(model)
        return (time.process_time() - start) / count

    return steps


def _fixed_costs(more: float, tables: int) -> str:
    """The reason, if these explain that a step takes so many CPU seconds more."""
    each = more / (tables + 1)
    if each > FIXED:
        return ""
    return (
        f"{each * 1e3:.2f} ms for each of {tables} tables and for the dense parameters, whatever their size"
    )


def _in_a_process(library: str, case: str) -> tuple[float, float, int]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "tests.models.costs", "--one", library, case]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    plain, wrapped, tables = json.loads(done.stdout.splitlines()[-1])
    return plain, wrapped, tables


def _one(library: str, name: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    case = next(case for case in LIBRARIES[library].cases() if case.name == name)
    print(json.dumps(measure(case)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
