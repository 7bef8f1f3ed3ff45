"""Prints the cost of a step of each model on one node: CPU time of the wrapped model ÷ the plain model's.

``python -m tests.models.costs [LIBRARY …]``, or ``make model-costs``. Both models train alternately in one
process, so other load of the machine affects both equally; the CPU time is that of all threads of the
process, including the server's. For a ratio above `LIMIT`, separate rounds measure the parts of the
difference: reads of rows, the optimizer's step, the loader, and the library's code after the step, each
compared with the plain step. A read costs some tens of microseconds even if it reads little, and a plain step
costs hardly more in these cases with small tables and batches. The exit code is 1 if a ratio is above `LIMIT`
and these parts explain less than `EXPLAINED` of the difference, unless the case gives another reason.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import multiprocessing
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

import autoada
from autoada.loader.batch_stream import BatchStream
from autoada.loader.prefetch_queue import PrefetchQueue

from .case import Case
from .suite import LIBRARIES
from .trial import build

LIMIT = 1.5
"""Largest ratio that needs no reason."""
GOAL = 1.05
"""Goal for the median ratio."""
WARM_UP, ROUNDS, ROUND_SECONDS = 25, 7, 0.05
PARTS_ROUNDS = 3
BATCHES = 10
EXPLAINED = 0.5
"""Smallest share of the difference that the measured parts must explain."""
PARTS = ("reading", "stepping", "loading", "ending")
Parts = dict[str, float]
"""CPU seconds per step of reads of rows of a table, ``optimizer.step()``, the loader, and the library's code
after the step; and `reads`, the number of these reads."""
FIGURES = "measured: "
"""Beginning of the line that reports the figures of a case."""


def main(names: list[str]) -> int:
    """Measure the libraries given, or all that are installed, and print a table."""
    ratios: dict[str, float] = {}
    unexplained = []
    print(f"{'model':64} {'plain':>9} {'wrapped':>9} {'ratio':>6}  reason")
    for name in names or [name for name, library in LIBRARIES.items() if library.installed]:
        for case, plain, wrapped, parts in _measured(name):
            label = f"{name}: {case.name}"
            ratios[label] = ratio = wrapped / plain
            reason = (case.dear or _reason(wrapped - plain, parts)) if ratio > LIMIT else ""
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


def measure(case: Case) -> tuple[float, float, Parts]:
    """CPU seconds per step, plain and wrapped, as medians of rounds that take turns, and their parts."""
    plain, wrapped = build(case), build(case)
    optimizers = [torch.optim.SGD(model.parameters(), lr=case.rate) for model in (plain, wrapped)]
    model = autoada.AdaModel(wrapped, optimizers[1], tables=case.tables)
    batches = case.batches(BATCHES, 1)
    loader = autoada.AdaDataLoader(itertools.cycle(batches), model=model)
    ending = SimpleNamespace(run=case.after_step or (lambda model: None))
    steps = [
        _stepper(case, plain, optimizers[0], itertools.cycle(batches), ending),
        _stepper(case, model, optimizers[1], iter(loader), ending),
    ]
    for step in steps:
        step(WARM_UP)
    count = max(5, round(ROUND_SECONDS / steps[0](5)))
    figures = list(zip(*([step(count) for step in steps] for _ in range(ROUNDS)), strict=True))
    rounds = [
        [_parts_of(step, count, each, ending) for step, each in zip(steps, optimizers, strict=True)]
        for _ in range(PARTS_ROUNDS)
    ]
    model.close()
    parts = {
        part: statistics.median(after[part] - before[part] for before, after in rounds) for part in PARTS
    }
    return (
        statistics.median(figures[0]),
        statistics.median(figures[1]),
        {**parts, "reads": rounds[0][1]["reads"]},
    )


def _parts_of(
    step: Callable[[int], float], count: int, optimizer: torch.optim.Optimizer, ending: Any
) -> Parts:
    """CPU seconds of the parts of a step, and its reads."""
    seconds, calls = defaultdict[str, float](float), Counter[str]()

    def timed(part: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "__getitem__" and not isinstance(args[0], nn.Parameter):  # no table
                return function(*args, **kwargs)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[part] += time.process_time() - start
                calls[part] += 1

        return call

    with ExitStack() as patches:
        for part, owner, name in (
            ("reading", nn.Embedding, "forward"),
            ("reading", nn.EmbeddingBag, "forward"),
            ("reading", torch.Tensor, "__getitem__"),
            ("stepping", optimizer, "step"),
            ("ending", ending, "run"),
            ("loading", PrefetchQueue, "finish_previous"),
            ("loading", BatchStream, "take"),
            ("loading", PrefetchQueue, "mark_in_use"),
        ):
            patches.enter_context(mock.patch.object(owner, name, timed(part, name, getattr(owner, name))))
        step(count)
    return {"reads": calls["reading"] / count, **{part: seconds[part] / count for part in PARTS}}


def _stepper(case: Case, model: Any, optimizer: Any, batches: Any, ending: Any) -> Callable[[int], float]:
    """A function that makes some number of steps and returns the CPU seconds of one."""

    def steps(count: int) -> float:
        start = time.process_time()
        for batch in itertools.islice(batches, count):
            loss = case.loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ending.run(model)
        return (time.process_time() - start) / count

    return steps


def _reason(more: float, parts: Parts) -> str:
    """The explanation of `more` additional CPU seconds per step, if the parts add up to them."""
    if sum(parts[part] for part in PARTS) < EXPLAINED * more:
        return ""
    each = parts["reading"] / max(1.0, parts["reads"])
    return (
        f"{more * 1e3:.2f} ms more: {parts['reads']:.0f} reads of rows, {each * 1e6:.0f} us each; the step "
        f"{parts['stepping'] * 1e3:.2f} ms; the loader {parts['loading'] * 1e3:.2f} ms; the library after it "
        f"{parts['ending'] * 1e3:.2f} ms"
    )


def _measured(library: str) -> Iterator[tuple[Case, float, float, Parts]]:
    """The results of `measure` for all cases of a library, each in a separate process.

    These processes are forks of one that has imported the library, which takes longer than measuring.
    """
    cases = LIBRARIES[library].cases()
    command = [sys.executable, "-m", "tests.models.costs", "--library", library]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = (line.removeprefix(FIGURES) for line in process.stdout if line.startswith(FIGURES))
        for case, line in zip(cases, found, strict=True):
            yield case, *json.loads(line)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)


def _library(name: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    cases = LIBRARIES[name].cases()
    build(cases[0])  # imports the library
    for case in cases:
        fork = multiprocessing.get_context("fork").Process(target=_one, args=(case,))
        fork.start()
        fork.join()
        if fork.exitcode != 0:
            sys.exit(f"{name}: {case.name} could not be measured")


def _one(case: Case) -> None:
    print(f"{FIGURES}{json.dumps(measure(case))}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--library"]:
        _library(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
