"""Reads a checkpoint without the project."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DTYPES = {"I64": "<i8", "F32": "<f4", "U8": "u1", "F64": "<f8", "BOOL": "?"}


class TableContent(NamedTuple):
    """All rows of a table that a checkpoint holds, in rising order."""

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32]


def tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    result = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = np.frombuffer(data[start + first : start + end], DTYPES[entry["dtype"]])
        result[name] = array.reshape(entry["shape"])
    return result


def manifest_path(directory: Path) -> Path:
    """The file of the manifest with the highest number in `directory`."""
    return max(directory.glob("manifest-*.json"))


def manifest(directory: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(manifest_path(directory).read_text())["checkpoint"]
    return body


def content(directory: Path, table: str) -> TableContent:
    body = manifest(directory)
    parts = [
        tensors(directory / body["folder"] / file["name"]) for file in body["files"] if file["table"] == table
    ]
    rows, values, state = (
        np.concatenate([part[name] for part in parts]) for name in ("rows", "values", "state")
    )
    order = np.argsort(rows)
    return TableContent(rows[order], values[order], state[order])


def change_manifest(directory: Path, kind: str, change: Callable[[Any], object]) -> None:
    """Change a manifest's checkpoint or export, and make its checksum fit."""
    path = manifest_path(directory)
    whole = json.loads(path.read_bytes())
    change(whole[kind])
    whole["crc32"] = checksum({name: whole[name] for name in (kind, "writer")})
    path.write_text(json.dumps(whole))


def checksum(content: Any) -> int:
    """The checksum that a manifest with this content carries."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
