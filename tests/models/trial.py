"""Trains models of one library plainly, wrapped, and as one of two nodes, and reports the observations.

Both ranks train all cases together; then each rank trains half of them alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import autoada
from autoada.prediction.tables import find_tables
from tests.unit.autoada.prediction.model_zoo.specimen import Observer as KernelObserver

from .case import Case
from .observer import Observer, TableClocks
from .suite import LIBRARIES

STEPS = 30
CLUSTER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def alone(case: Case) -> dict[str, Any]:
    """Losses of the plain and the wrapped model, and whether the latter read the former's rows."""
    plain, rows, full = _plainly(case)
    with _single():
        observer, model, losses, told = _wrapped(case, seed=1, lookahead=2)  # predicts on one node, too
        _, _, unpredicted, _ = _wrapped(case, seed=1)
    superfluous = {}
    for name, clocks in _clocks(observer, model).items():
        wrong = [clock for clock in range(len(rows)) if clocks.rows[clock] != rows[clock][name]]
        if wrong and name not in full:
            superfluous[name] = wrong
    return {
        "plain": plain,
        "wrapped": losses,
        "unpredicted": unpredicted,
        "nearby": _nearby(case) if case.sensitive else plain,
        "told": told,
        "other_rows": superfluous,
    }


def together(case: Case, rank: int) -> dict[str, Any]:
    """The observations on this node during training together with the others."""
    observer, model, _, told = _wrapped(case, seed=1 + rank)
    clocks = _clocks(observer, model)
    settled = {name: table.exact_from for name, table in clocks.items()}
    late = [name for name, start in settled.items() if start > STEPS // 2]
    return {
        "told": told,
        "exact_from": max((start for name, start in settled.items() if name not in late), default=0),
        "kept": [name for name, table in clocks.items() if table.kept],
        "on_demand": late,
    }


def _plainly(case: Case) -> tuple[list[float], list[dict[str, set[int]]], set[str]]:
    """Losses of the plain model, the rows that its kernels read in each step, and tables read as a whole."""
    model = build(case)
    tables = find_tables(model, case.tables)
    found = dict(model.named_parameters())
    rows: list[dict[str, set[int]]] = []
    full: set[str] = set()

    def seen(function: Any, *arguments: Any) -> Any:
        with KernelObserver({name: found[name] for name in tables}) as kernels:
            result = function(*arguments)
        rows.append({name: set(counts) for name, counts in kernels.rows.items()})
        full.update(kernels.full)
        return result

    def loss(model: Any, batch: Any) -> Any:
        return seen(case.loss, model, batch)

    def after_step(model: Any) -> None:
        if case.after_step is not None:
            seen(case.after_step, model)
            for name, more in rows.pop().items():
                rows[-1][name] |= more

    optimizer = torch.optim.SGD(model.parameters(), lr=case.rate)
    watched = dataclasses.replace(case, loss=loss, after_step=after_step)
    return _train(watched, model, optimizer, case.batches(STEPS, 1)), rows, full


def _nearby(case: Case) -> list[float]:
    """Losses of the plain model if each of its parameters begins at the next float, above or below."""
    model = build(case)
    with torch.no_grad():
        for parameter in model.parameters():
            towards = torch.where(torch.rand_like(parameter) < 0.5, torch.inf, -torch.inf)
            parameter.copy_(torch.nextafter(parameter, towards))
    optimizer = torch.optim.SGD(model.parameters(), lr=case.rate)
    return _train(case, model, optimizer, case.batches(STEPS, 1))


def _wrapped(
    case: Case, seed: int, lookahead: int | Literal["auto"] = "auto"
) -> tuple[Observer, autoada.AdaModel, list[float], list[str]]:
    plain = build(case)
    optimizer = torch.optim.SGD(plain.parameters(), lr=case.rate)
    observer = Observer()
    with _listening() as told, observer.watching():
        model = autoada.AdaModel(plain, optimizer, tables=case.tables)
        try:
            loader: Any = autoada.AdaDataLoader(case.batches(STEPS, seed), lookahead)
            losses = _train(case, model, optimizer, loader)
        except BaseException as error:
            model.node.__exit__(type(error), error, error.__traceback__)
            raise
        clock = int(model.worker.current_clock)
        model.close()
    if clock < STEPS:
        raise RuntimeError(f"the worker's clock counted {clock} steps of {STEPS}")
    return observer, model, losses, told


def _train(case: Case, model: Any, optimizer: Any, loader: Iterable[Any]) -> list[float]:
    _seed(3)
    losses = []
    for batch in loader:
        loss = case.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if case.after_step is not None:
            case.after_step(model)
        losses.append(loss.item())
    return losses


def build(case: Case) -> nn.Module:
    """The model as every run begins with it."""
    _seed(7)
    model = case.build()
    # A module of RecBole switches it on when it is imported; models then mostly write down stacks.
    torch.autograd.set_detect_anomaly(False)
    model.train()
    return model


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the global generator is what libraries use
    random.seed(seed)


def _clocks(observer: Observer, model: autoada.AdaModel) -> dict[str, TableClocks]:
    tables = {}
    for name in model.tables:
        table = model.node.table(name)
        tables[name] = range(table.first_key, table.first_key + table.rows)
    return observer.clocks(STEPS, tables)


@contextlib.contextmanager
def _single() -> Iterator[None]:
    """Outside of the cluster that the environment describes."""
    before = {name: os.environ.pop(name) for name in CLUSTER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """The warnings of AutoAda in the meantime."""
    told: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    log, handler = logging.getLogger("autoada"), Keep(logging.WARNING)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield told
    finally:
        log.removeHandler(handler)


def _attempt(function: Any, *arguments: Any) -> dict[str, Any]:
    """The result of the function, or its failure."""
    try:
        result: dict[str, Any] = function(*arguments)
    except Exception:
        return {"failed": traceback.format_exc()}
    return result


def observe(library: str, cases: Sequence[str], device: str) -> dict[str, Any]:
    """Observe the cases of one library as a rank."""
    rank = int(os.environ["RANK"])
    chosen = [case.on(torch.device(device)) for case in LIBRARIES[library].cases() if case.name in cases]
    pairs = {case.name: _attempt(together, case, rank) for case in chosen}
    return {"alone": {case.name: _attempt(alone, case) for case in chosen[rank::2]}, "together": pairs}
