"""The manifest of a checkpoint: what it consists of, and whether a node's tables are those that it holds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from adaps import _disk
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = [
    "NAME",
    "TEMPORARY",
    "File",
    "Manifest",
    "TableEntry",
    "check_tables",
    "entry_of",
    "is_folder_name",
    "read",
    "write",
]

NAME = "manifest.json"
TEMPORARY = f"{NAME}.new"
FORMAT = "adaps checkpoint, version 1"

FOLDER = r"^[0-9]{8,}-[0-9a-f]{16}$"


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a checkpoint: rows of a table, or what a worker wanted to be kept."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+\.safetensors$")]
    bytes: Natural
    checksums: dict[str, Natural]
    rank: Natural
    table: str | None = None
    rows: Natural = 0
    worker: Natural | None = None


@dataclasses.dataclass(frozen=True)
class TableEntry:
    """A table as it was."""

    name: str
    rows: Positive
    length: Positive
    state_length: Natural
    optimizer: dict[str, Any]
    init: dict[str, Any]
    learning_rate: Annotated[float, msgspec.Meta(ge=0)]
    step: Natural


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A complete checkpoint.

    Attributes
    ----------
    sequence : int
        Counts the checkpoints of a directory, from 1.
    folder : str
        Where its files are, within the directory.
    world_size, workers : int
        Nodes, and workers of each, that wrote it.
    clocks : list of list of int
        Of each node's workers.
    """

    sequence: Positive
    folder: Annotated[str, msgspec.Meta(pattern=FOLDER)]
    world_size: Positive
    workers: Positive
    clocks: list[list[Natural]]
    tables: list[TableEntry]
    files: list[File]

    def __post_init__(self) -> None:
        if [len(clocks) for clocks in self.clocks] != [self.workers] * self.world_size:
            raise ValueError(f"there are no clocks of {self.world_size} nodes of {self.workers} workers")


# Workers restore at the same time. What msgspec knows of a type it makes when it first meets it, and threads
# that do so at once crash the process: it meets this one here, where there is one thread.
msgspec.json.Decoder(Manifest)


def is_folder_name(name: str) -> bool:
    """Whether a folder of that name was made for a checkpoint."""
    return re.match(FOLDER, name) is not None


def entry_of(table: Table, state_length: int, learning_rate: float, step: int) -> TableEntry:
    """A table of a node, as a manifest describes it."""
    return TableEntry(
        table.name,
        table.rows,
        table.length,
        state_length,
        _described(table.optimizer),
        _described(table.init),
        learning_rate,
        step,
    )


def check_tables(manifest: Manifest, path: Path, present: Sequence[TableEntry]) -> None:
    """Raise CheckpointError unless the checkpoint holds what the tables of a node need."""
    saved = {entry.name: entry for entry in manifest.tables}
    if superfluous := saved.keys() - {entry.name for entry in present}:
        raise CheckpointError(f"{path} has the table {min(superfluous)!r}, which this node does not have")
    written: dict[str | None, int] = {}
    for file in manifest.files:
        if file.table is not None and file.table not in saved:
            raise CheckpointError(f"{path} tells of rows of {file.table!r}, which is no table of it")
        written[file.table] = written.get(file.table, 0) + file.rows
    for entry in present:
        if entry.name not in saved:
            raise CheckpointError(f"{path} has no table {entry.name!r}; it has {', '.join(map(repr, saved))}")
        other = saved[entry.name]
        compared = ["rows", "length", "optimizer", "state_length"]
        if written.get(entry.name, 0) < entry.rows:
            compared.append("init")  # rows that nobody had touched are not in the checkpoint
        for what in compared:
            here, there = _without_rate(getattr(entry, what)), _without_rate(getattr(other, what))
            if here != there:
                raise CheckpointError(
                    f"{path}: the table {entry.name!r} has {what} {_text(there)} in the checkpoint, "
                    f"but {_text(here)} on this node"
                )


def read(directory: Path) -> Manifest | None:
    """The manifest of the checkpoint in a directory; None if there is none.

    Raises
    ------
    CheckpointError
        If there is one, but it cannot be read or is damaged.
    """
    path = directory / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        raw = msgspec.json.decode(text)  # stricter than json: no NaN, no text that cannot be encoded
        body, checksum, version = raw["checkpoint"], raw["crc32"], raw["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or not the manifest of a checkpoint") from error
    if version != FORMAT:
        raise CheckpointError(f"{path} has the format {version!r}; this version reads {FORMAT!r}")
    if zlib.crc32(_canonical(body)) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum is not {checksum!r}")
    try:
        return msgspec.convert(body, Manifest)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error


def write(directory: Path, manifest: Manifest) -> None:
    """Make a checkpoint the one of its directory, in one step; its files have to be on the disk."""
    body = dataclasses.asdict(manifest)
    whole = {"format": FORMAT, "crc32": zlib.crc32(_canonical(body)), "checkpoint": body}
    new = directory / TEMPORARY
    descriptor = _disk.create(new)
    try:
        with _disk.naming(new):
            _disk.write_at(descriptor, json.dumps(whole, indent=1).encode(), 0)
            _disk.sync(descriptor)
    finally:
        os.close(descriptor)
    _disk.replace(new, directory / NAME)
    _disk.sync_folder(directory)


def _described(value: Any) -> dict[str, Any]:
    # by way of JSON, so that it equals what a manifest gives back
    described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value)))
    return {"kind": type(value).__name__, **described}


def _without_rate(value: Any) -> Any:
    """An optimizer's learning rate may change, and is restored."""
    return {k: v for k, v in value.items() if k != "lr"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    arguments = ", ".join(f"{name}={given}" for name, given in value.items() if name != "kind")
    return " ".join(f"{value.get('kind')}({arguments})".split())  # one line, whatever a manifest says


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
