"""The parameters of a use case's model, and how often each row is read by its own batches."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.study.syntax import convert_params, parse_one
from adaps.policy import Catalogue, PolicyError

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase

_PARAMETERS, _BATCHES, _COUNTS, _HOMES = "parameters", "batches", "accesses", "homes"


def usecase_from(text: str, data: Path | None, seed: int) -> UseCase:
    """Return the use case of a text such as ``ctr`` or ``ctr[dim=8]``.

    Raises `UsageError` if there is no such use case, or if its data cannot be used.
    """
    from adabench.usecases.interface import DataError

    parsed = parse_one(text)
    if parsed is None:
        raise UsageError(f"{text!r} is not one use case: give one, with one value for each parameter")
    name, given = parsed
    kind = load_usecase(name)
    try:
        return kind(convert_params(kind.Params, given, f"use case {name!r}"), data, seed)
    except DataError as error:
        raise UsageError(f"use case {name!r}: {error}") from error


def model_parameters_of(usecase: UseCase) -> Catalogue:
    """Return the parameters of a use case's model; tables are the parameters with rows in its `keys`."""
    from adabench.usecases.interface import hashed_tables

    shapes = [(name, tuple(value.shape)) for name, value in usecase.model().named_parameters()]
    batch = next(iter(usecase.loaders(0, 1).train))
    try:
        return Catalogue.of_shapes(shapes, usecase.keys(batch), hashed_tables(usecase))
    except PolicyError as error:
        raise UsageError(f"use case {usecase.name!r}: keys: {error}") from error


def count_accesses(usecase: UseCase, workers: int, epochs: int, nodes: int | None = None) -> Catalogue:
    """Parameters of a use case's model, with the number of training batches that read each row.

    Parameters
    ----------
    usecase : UseCase
        Use case with the model and the data.
    workers : int
        Number of workers of all nodes. Each worker has its share of the data.
    epochs : int
        Number of passes over the training data.
    nodes : int, optional
        Number of nodes in the cluster; by default each worker is a node.

    Raises
    ------
    UsageError
        If a table has ids of any value as keys.
    """
    from adabench.usecases.interface import hashed_tables

    if hashed := sorted(hashed_tables(usecase)):
        raise UsageError(
            f"use case {usecase.name!r}: accesses to rows of {hashed[0]} cannot be counted, because its rows "
            "are numbered during training: use keys=dense"
        )
    catalogue = model_parameters_of(usecase)
    per_node = workers // (nodes or workers)
    tables = {one.name: one.rows for one in catalogue.parameters if one.kind == "table"}
    total, most = ({name: np.zeros(rows, dtype=np.int64) for name, rows in tables.items()} for _ in "ab")
    homes = {name: np.full(rows, -1, dtype=np.int32) for name, rows in tables.items()}
    batches = 0
    for node in range(workers // per_node):
        counts = {name: np.zeros(rows, dtype=np.int64) for name, rows in tables.items()}
        for worker in range(node * per_node, (node + 1) * per_node):
            train = usecase.loaders(worker, workers).train
            for batch in itertools.chain.from_iterable(train for _ in range(epochs)):
                batches += 1
                for name, rows in usecase.keys(batch).items():
                    # A row that a batch names twice is read once.
                    counts[name][np.unique(rows.numpy())] += 1
        for name, count in counts.items():
            total[name] += count
            homes[name][count > most[name]] = node
            np.maximum(most[name], count, out=most[name])
    return Catalogue(catalogue.parameters, total, batches, homes)


def write_accesses(file: Path, catalogue: Catalogue) -> None:
    """Write a catalogue with its counts; equal ones give equal files."""
    known = [(one.name, one.rows, one.length, one.kind) for one in catalogue.parameters]
    arrays: dict[str, Any] = {
        _PARAMETERS: np.frombuffer(msgspec.json.encode(known), dtype=np.uint8),
        _BATCHES: np.array([catalogue.batches], dtype=np.int64),
    }
    for number, one in enumerate(catalogue.parameters):
        if one.name in catalogue.accesses:
            arrays[f"{_COUNTS}.{number}"] = catalogue.accesses[one.name]
        if one.name in catalogue.homes:
            arrays[f"{_HOMES}.{number}"] = catalogue.homes[one.name]
    try:
        with file.open("wb") as out:
            np.savez_compressed(out, **arrays)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error


def read_accesses(file: Path, catalogue: Catalogue) -> Catalogue:
    """The catalogue with the access counts of a file, which must be counts of this model's parameters."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            listed = msgspec.json.decode(arrays[_PARAMETERS].tobytes(), type=list[tuple[str, int, int, str]])
            (batches,) = arrays[_BATCHES].tolist()
            counts = {
                one[0]: arrays[f"{_COUNTS}.{number}"].astype(np.int64, casting="safe")
                for number, one in enumerate(listed)
                if f"{_COUNTS}.{number}" in arrays
            }
            homes = {
                one[0]: arrays[f"{_HOMES}.{number}"].astype(np.int32, casting="safe")
                for number, one in enumerate(listed)
                if f"{_HOMES}.{number}" in arrays  # Older files have no such entry.
            }
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except (
        *(ValueError, TypeError, KeyError, EOFError, AttributeError),
        *(msgspec.DecodeError, zipfile.BadZipFile),
    ) as error:
        raise UsageError(f"{file} holds no access counts, as `adabench accesses` writes them") from error
    if [(one.name, one.rows, one.length, one.kind) for one in catalogue.parameters] != listed:
        raise UsageError(
            f"{file} holds access counts of another model: run `adabench accesses` with the same use case "
            "and parameters"
        )
    return Catalogue(catalogue.parameters, counts, batches, homes)
