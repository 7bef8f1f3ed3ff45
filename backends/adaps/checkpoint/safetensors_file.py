"""Files in the safetensors format, written and read in pieces.

A file begins with eight bytes: the header's length, little-endian. The header is JSON. It contains the dtype,
shape and place of each tensor (first byte and end, counted from the header's end), and text under
``__metadata__``. Then the tensors follow, little-endian. The checksums are CRC-32 as computed by
`zlib.crc32`: the name ``header`` has the checksum of the first two parts together, and each tensor's name the
checksum of the tensor.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec
import numpy as np

from adaps.checkpoint import disk_calls
from adaps.errors import CheckpointError

__all__ = ["DTYPES", "HEADER", "Header", "Reader", "Shapes", "Tensor", "Writer", "read_header", "verify"]

HEADER = "header"
"""Name of the header in a file's checksums."""

MOST_HEADER_BYTES = 1 << 24
CHUNK_BYTES = 1 << 22

DTYPES: dict[str, type[np.number[Any] | np.bool_]] = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8},
    **{"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8},
    "BOOL": np.bool_,
}
"""Types of elements, by their names in the format."""

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of each tensor, in the order of the file."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's type and place in its file."""

    dtype: str
    shape: tuple[int, ...]
    first_byte: int
    """Index of the first byte, counted from the start of the file."""

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return size_of(self.dtype, self.shape)


@dataclass(frozen=True)
class Header:
    """The tensors and texts of a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    bytes: int
    """Size of the header including its length field."""


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the size of a tensor in bytes."""
    return np.dtype(DTYPES[dtype]).itemsize * prod(shape)


class Writer:
    """A new file. The sizes of its tensors are known, and their contents are written in pieces.

    Parameters
    ----------
    path : Path
        File to write.
    tensors : mapping of str to (dtype, shape)
        Types of the tensors, in the order of the file.
    metadata : mapping of str to str
        Text in the header.

    Attributes
    ----------
    bytes : int
        Size of the complete file.
    checksums : dict of str to int
        CRC-32 of the header, and of the bytes written so far of each tensor.
    """

    def __init__(self, path: Path, tensors: Shapes, metadata: Mapping[str, str]) -> None:
        head = _encode(tensors, metadata)
        self._places: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        offset = len(head)
        for name, (dtype, shape) in tensors.items():
            self._places[name] = offset
            offset += size_of(dtype, shape)
            self._ends[name] = offset
        self.path = path
        self.bytes = offset
        self.checksums = {HEADER: zlib.crc32(head)} | dict.fromkeys(tensors, 0)
        self._descriptor = disk_calls.create(path)
        try:
            with disk_calls.naming(path):
                disk_calls.write_at(self._descriptor, head, 0)
        except BaseException:
            disk_calls.close(self._descriptor)
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with disk_calls.naming(self.path):
                    disk_calls.sync(self._descriptor)
        finally:
            disk_calls.close(self._descriptor)
        if kind is None and self._places != self._ends:
            raise AssertionError(f"{self.path} was left incomplete")

    def append(self, tensor: str, data: Any) -> None:
        """Write the next bytes of a tensor from any C-contiguous buffer."""
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        self.checksums[tensor] = zlib.crc32(view, self.checksums[tensor])
        with disk_calls.naming(self.path):
            disk_calls.write_at(self._descriptor, view, self._places[tensor])
        self._places[tensor] += len(view)


class Reader:
    """An open file. Raises CheckpointError that names the file if its content is invalid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = disk_calls.open_file(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            self.header = read_header(path, self._file)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def checksum(self, first: int, count: int, buffer: bytearray) -> int:
        """Return the CRC-32 of `count` bytes of the file, which are read into `buffer`."""
        self._file.seek(first)
        checksum, view = 0, memoryview(buffer)
        while count:
            got: int = self._file.readinto(view[: min(count, len(view))])  # type: ignore[attr-defined]
            if not got:
                raise CheckpointError(f"{self.path} ends too early")
            checksum = zlib.crc32(view[:got], checksum)
            count -= got
        return checksum

    def read_into(self, tensor: str, offset: int, buffer: Any) -> None:
        """Fill `buffer` with bytes of a tensor, starting at its byte `offset`."""
        view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
        self._file.seek(self.header.tensors[tensor].first_byte + offset)
        while view:
            count = self._file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(f"{self.path} ends inside the tensor {tensor!r}")
            view = view[count:]


def read_header(path: Path, file: BinaryIO) -> Header:
    """Return the header of an open file. The file's size must match the header."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(size - 8, MOST_HEADER_BYTES):
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: it has {size} bytes, and its header should have "
            f"{length}"
        )
    text = file.read(length)
    try:
        raw = msgspec.json.decode(text)  # stricter than json: no NaN, no text that cannot be encoded
        metadata = raw.pop("__metadata__", {})
        tensors = {name: _tensor(entry, 8 + length) for name, entry in raw.items()}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("metadata is not text")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].first_byte):
        if tensor.first_byte != end:
            raise CheckpointError(f"{path} has a damaged header: the tensor {name!r} begins at a wrong byte")
        end += tensor.bytes
    if end != size:
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, but its header describes {end}")
    return Header(tensors, metadata, 8 + length)


def verify(path: Path, size: int, checksums: Mapping[str, int]) -> Header:
    """Read a whole file and compare its size and checksums."""
    told = f"the manifest lists {size} bytes"
    try:
        with disk_calls.open_file(path) as file:
            found = file.seek(0, io.SEEK_END)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {told}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror}") from error
    if found != size:
        raise CheckpointError(f"{path} has {found} bytes; {told}")
    with Reader(path) as reader:
        header = reader.header
        if set(checksums) != {HEADER, *header.tensors}:
            raise CheckpointError(
                f"{path} holds {', '.join(map(repr, header.tensors))}; the manifest lists other tensors"
            )
        buffer = bytearray(CHUNK_BYTES)
        places = {HEADER: (0, header.bytes)} | {
            name: (tensor.first_byte, tensor.bytes) for name, tensor in header.tensors.items()
        }
        for name, (first, count) in places.items():
            checksum = reader.checksum(first, count, buffer)
            if checksum != checksums[name]:
                raise CheckpointError(
                    f"{path} is damaged: {name} has the checksum {checksum:08x}; "
                    f"the manifest says {checksums[name]:08x}"
                )
    return header


def _encode(tensors: Shapes, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + size_of(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the first tensor
    return len(text).to_bytes(8, "little") + text


def _tensor(entry: Any, start: int) -> Tensor:
    dtype, shape, (first, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, first, end)):
        raise ValueError("a shape or an offset is not a natural number")
    tensor = Tensor(dtype, tuple(shape), start + first)
    if tensor.bytes != end - first:
        raise ValueError(f"a tensor of shape {shape} and dtype {dtype!r} does not have {end - first} bytes")
    return tensor
