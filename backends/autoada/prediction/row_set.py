"""Rows that a batch will read, de-duplicated once when the batch is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

import adaps
from autoada.prediction.result import Prediction


class Lookup(NamedTuple):
    """Ids of one read, and each id's position among the unique rows."""

    ids: Tensor
    inverse: Tensor


class TableRows(NamedTuple):
    """Keys in the server of the distinct rows of a table that a batch reads, and its reads in order."""

    keys: Tensor
    lookups: tuple[Lookup, ...]


class Expected(NamedTuple):
    """Reads that a batch is expected to make."""

    rows: dict[str, TableRows]
    """Distinct rows by table."""
    prediction: Prediction | None = None
    """Prediction of these reads; None if the rows were given by hand."""
    calls: int = 1
    """Number of calls of the model that make these reads."""
    whole: frozenset[str] = frozenset()
    """Tables with unknown reads, of which any row may be read."""
    around: AbstractContextManager[Any] | None = None
    """Context for the calls, which run one after the other, if they need one."""


def rows_of_reads(
    reads: Iterable[tuple[str, Tensor]], keys_of: Callable[[str, Tensor], Tensor | None]
) -> dict[str, TableRows]:
    """De-duplicate reads ``(table, ids)`` by table. Equal reads of several tables are processed once.

    ``keys_of(table, ids)`` gives the server's keys of row ids; tables without keys are left out.
    """
    by_table: dict[str, list[Tensor]] = {}
    for table, ids in reads:
        by_table.setdefault(table, []).append(ids)
    done: dict[tuple[int, ...], tuple[Tensor, tuple[Lookup, ...]]] = {}
    result = {}
    for table, parts in by_table.items():
        same = tuple(map(id, parts))
        if same not in done:
            done[same] = unique_rows(parts)
        unique, lookups = done[same]
        keys = keys_of(table, unique)
        if keys is not None:
            result[table] = TableRows(keys, lookups)
    return result


def unique_rows(ids: Sequence[Tensor]) -> tuple[Tensor, tuple[Lookup, ...]]:
    """Return the distinct row ids of several reads of one table, and the reads with positions among them."""
    if len(ids) == 1:
        unique, inverse = adaps.deduplicate(host_ids(ids[0]))
        return unique, (Lookup(ids[0], inverse.view(ids[0].shape)),)
    unique, inverse = adaps.deduplicate(torch.cat([host_ids(part).reshape(-1) for part in ids]))
    parts = inverse.split([part.numel() for part in ids])
    return unique, tuple(
        Lookup(given, part.view(given.shape)) for given, part in zip(ids, parts, strict=True)
    )


def host_ids(ids: Tensor) -> Tensor:
    """Return the ids in the form that the server takes: int64, contiguous, on the CPU."""
    if ids.dtype is torch.int64 and ids.is_cpu and ids.is_contiguous() and not ids.requires_grad:
        return ids
    return ids.detach().to(device="cpu", dtype=torch.int64).contiguous()
