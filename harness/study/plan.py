"""The order of a study's runs: cells, blocks, and the random order inside each block."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from adabench.analysis.compare import blocks_advised
from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.harness.study.cell import Cell, checked_usecase, data_key, digest, with_identity
from adabench.harness.study.policy_per_cell import with_policy_per_cell
from adabench.harness.study.selection import select
from adabench.harness.study.study import Study
from adabench.harness.study.syntax import check_number, combinations, convert_params
from adabench.results.record import PlannedRun
from adabench.results.run_settings import RunSettings

WARMUP_BLOCK = -1


def cells_of(study: Study) -> list[Cell]:
    """Return the cells of a study, with the identity of their data and sources, and with their policies.

    Raises `UsageError` for an unknown plugin or parameter, a wrong value, data that cannot be used, a policy
    that does not fit or is not executed, or a study that is only simulated.
    """
    if study.simulation is not None:
        raise UsageError(
            f"study {study.name} is only simulated: use `adabench simulate`, or leave out its [simulation]"
        )
    chosen = selected_cells(study)
    groups: dict[bytes, list[Cell]] = {}
    for cell in chosen:
        groups.setdefault(data_key(cell), []).append(cell)
    resolved = {
        cell.id: final
        for alike in groups.values()
        for cell, final in zip(alike, _resolved(alike, study.seed), strict=True)
    }
    return [resolved[cell.id] for cell in chosen]


def selected_cells(study: Study) -> list[Cell]:
    """Return the selected combinations of use cases, backends and settings, with the plugins' defaults.

    No data is read. A backend that is not distributed ignores the topology: it is one process with one
    worker. Raises `UsageError` for an unknown plugin or parameter, or a wrong value.
    """
    of_usecases, of_backends = (
        sum(len(combinations(selected.values)) for selected in selections)
        for selections in (study.usecases, study.backends)
    )
    check_number("cells", of_usecases * of_backends * len(study.settings))
    cells: dict[str, Cell] = {}
    for selected in study.usecases:
        usecase = load_usecase(selected.name)
        for params in combinations(selected.values):
            checked = convert_params(usecase.Params, params, f"use case {selected.name!r}")
            path = study.data.get(selected.name)
            own = msgspec.to_builtins(checked)
            for cell in _with_backends(selected.name, own, path, study):
                cells.setdefault(cell.id, cell)
    return select(list(cells.values()), study.include, study.exclude, study.sample, study.seed)


def order(cells: Sequence[Cell], repeats: int, seed: int, warmup: bool) -> list[PlannedRun]:
    """The runs in their order: block by block, every use case's cells once per block.

    Inside a use case the orders of consecutive blocks are the rows of random cyclic Latin squares, so over as
    many blocks as there are cells each cell takes each position once. A plan for fewer blocks is a prefix of
    a plan for more. `seed` determines the order; block b trains with seed + b. With `warmup`, a discarded
    block with one epoch per run comes first.
    """
    by_usecase: dict[str, list[Cell]] = {}
    for cell in cells:
        by_usecase.setdefault(cell.usecase, []).append(cell)
    orders = {
        usecase: _latin_orders(len(own), repeats, random.Random(f"{seed} {usecase}"))
        for usecase, own in by_usecase.items()
    }
    planned = []
    for block in range(WARMUP_BLOCK if warmup else 0, repeats):
        for usecase, own in by_usecase.items():
            for position, index in enumerate(orders[usecase][max(block, 0)]):
                planned.append(_planned(own[index], block, position, seed))
    return planned


def with_repeats(study: Study, cells: Sequence[Cell]) -> Study:
    """Return the study with a number of blocks: its own, or `blocks_advised` for its cells."""
    if study.repeats:
        return study
    return msgspec.structs.replace(study, repeats=blocks_advised(order(cells, 1, study.seed, warmup=False)))


def planned_runs(cells: Sequence[Cell], study: Study, repeats: int | None = None) -> list[PlannedRun]:
    """Return the order of a study's runs, with the study's or the given number of blocks."""
    blocks = study.repeats if repeats is None else repeats
    # A single block is compared with nothing, so it needs no warm-up.
    return order(cells, blocks, study.seed, study.warmup and blocks > 1)


def study_id(study: Study, cells: Sequence[Cell]) -> str:
    """Hash of a resolved study, its sources and data: a session with the same one is continued."""
    resolved = {
        "cells": [cell.id for cell in cells],
        "seed": study.seed,
        "warmup": study.warmup,
        "targets": study.targets,
        "timeout": study.timeout,
    }
    if study.launcher != "local":  # Older sessions have no such key.
        resolved["launcher"] = study.launcher
    return digest(msgspec.json.encode(resolved, order="deterministic"))[:16]


def _resolved(alike: Sequence[Cell], seed: int) -> list[Cell]:
    """Return cells with equal data, with their identity and policies.

    Their use case is built once, because this takes most of the time. It is not kept, because its data can
    fill the memory.
    """
    usecase = checked_usecase(alike, seed)
    return with_policy_per_cell(with_identity(alike, usecase.fingerprint), usecase)


def _with_backends(usecase: str, params: dict[str, Any], path: str | None, study: Study) -> Iterator[Cell]:
    for selected in study.backends:
        backend = load_backend(selected.name)
        for options in combinations(selected.values):
            checked = msgspec.to_builtins(
                convert_params(backend.Options, options, f"backend {selected.name!r}")
            )
            clash = sorted(set(checked) & set(params))
            if clash:
                raise UsageError(
                    f"parameter {clash[0]} belongs to both use case {usecase!r} and "
                    f"backend {selected.name!r}: "
                    "one of the plugins has to rename it"
                )
            for settings in study.settings:
                yield Cell(
                    **_reduced(settings, backend.distributed).settings(),
                    usecase=usecase,
                    backend=selected.name,
                    params=params,
                    options=checked,
                    data_path=path,
                )


def _reduced(settings: RunSettings, distributed: bool) -> RunSettings:
    """Return settings with irrelevant values removed, so that equivalent settings make one cell."""
    if not distributed:
        return msgspec.structs.replace(settings, nodes=1, workers=1, network="loopback")
    # One node has no links: it is the same on every network.
    return settings if settings.nodes > 1 else msgspec.structs.replace(settings, network="loopback")


def _latin_orders(size: int, blocks: int, generator: random.Random) -> list[list[int]]:
    """Yield rows of random cyclic Latin squares: a random order, its rotations in random order, and so on."""
    rows: list[list[int]] = []
    while len(rows) < max(blocks, 1):
        base = generator.sample(range(size), size)
        rows += [base[shift:] + base[:shift] for shift in generator.sample(range(size), size)]
    return rows[: max(blocks, 1)]


def _planned(cell: Cell, block: int, position: int, seed: int) -> PlannedRun:
    warm = block == WARMUP_BLOCK
    params = {**cell.recorded_params, "epochs": 1} if warm else cell.recorded_params
    return PlannedRun(
        **cell.settings(),
        cell=cell.id,
        usecase=cell.usecase,
        backend=cell.backend,
        params=params,
        block=block,
        position=position,
        seed=seed + max(block, 0),
        phase="warmup" if warm else "measured",
    )
