"""Compares the tables of a node with the tables of a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaps import optimizers
from adaps.checkpoint.manifests import CheckpointManifest, TableEntry
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = ["check_tables", "entry_of"]

_REMEDY = "restore into a node with the tables and optimizers that the checkpoint has"


def entry_of(table: Table, state_length: int, learning_rate: float, step: int) -> TableEntry:
    """Return a table of a node as described in a manifest."""
    return TableEntry(
        table.name,
        table.rows,
        table.length,
        state_length,
        _described(table.optimizer),
        _described(table.init),
        learning_rate,
        step,
        table.keys,
    )


def check_tables(manifest: CheckpointManifest, path: Path, present: Sequence[TableEntry]) -> None:
    """Raise CheckpointError unless the checkpoint fits the tables of a node, which are `present`."""
    saved = {entry.name: entry for entry in manifest.tables}
    if superfluous := saved.keys() - {entry.name for entry in present}:
        raise CheckpointError(
            f"{path} has the table {min(superfluous)!r}, which this node does not have: {_REMEDY}"
        )
    written: dict[str | None, int] = {}
    for file in manifest.files:
        if file.table is not None and file.table not in saved:
            raise CheckpointError(f"{path} lists rows of {file.table!r}, which is not one of its tables")
        written[file.table] = written.get(file.table, 0) + file.rows
    for entry in present:
        if entry.name not in saved:
            raise CheckpointError(
                f"{path} has no table {entry.name!r}, only {', '.join(map(repr, saved))}: {_REMEDY}"
            )
        other = saved[entry.name]
        compared = ["keys", "length", "optimizer", "state_length"]
        if entry.keys is None:
            compared.append("rows")  # A table of ids only needs room for them, which the restore checks.
        if entry.keys is not None or written.get(entry.name, 0) < entry.rows:
            compared.append("init")  # untouched rows are not in the checkpoint, so they start from it
        for what in compared:
            here, there = _without_rate(getattr(entry, what)), _without_rate(getattr(other, what))
            if what == "optimizer":
                there = _completed(there)
            if here != there:
                raise CheckpointError(
                    f"{path}: the table {entry.name!r} has {what} {_text(there)} in the checkpoint, "
                    f"but {_text(here)} on this node: {_REMEDY}"
                )


def _described(value: Any) -> dict[str, Any]:
    # The conversion to JSON and back makes the value equal to a value from a manifest. NumPy's numbers and
    # tensors are converted by their method `item`.
    text = json.dumps(dataclasses.asdict(value), default=operator.methodcaller("item"))
    described: dict[str, Any] = json.loads(text)
    return {"kind": type(value).__name__, **described}


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer, completed with defaults of hyperparameters that are newer than the checkpoint."""
    kind = getattr(optimizers, str(described.get("kind")), None)
    if not dataclasses.is_dataclass(kind):
        return described
    defaults = {field.name: field.default for field in dataclasses.fields(kind) if field.name != "lr"}
    return {**defaults, **described}


def _without_rate(value: Any) -> Any:
    """Return an optimizer without its learning rate, which may differ and is restored."""
    return {k: v for k, v in value.items() if k != "lr"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    arguments = ", ".join(f"{name}={given}" for name, given in value.items() if name != "kind")
    return " ".join(f"{value.get('kind')}({arguments})".split())  # one line for any manifest
