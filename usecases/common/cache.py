"""A cache of data files: they are read once into arrays on disk, which all nodes of all runs map into memory.

A cache has a folder for each set of files, below ``$ADABENCH_CACHE``, else ``$XDG_CACHE_HOME/adabench``, else
``~/.cache/adabench``. Files are read again if their content changes. The digest of a file's content is
computed once for each state of the file. The state includes the kernel's time of change (``st_ctime``), which
a program cannot set, unlike the time of the last write.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from adabench.usecases.interface import DataError

CACHE_VARIABLE = "ADABENCH_CACHE"
CONTENTS = "arrays.json"
"""File that describes the arrays of a folder. It is written last, so a folder without it is not complete."""

T = TypeVar("T")
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of arrays, by name."""

_CLOCK_RESOLUTION_NS = 2_000_000_000
"""Resolution of the coarsest file system's time stamps (FAT)."""

# Python 3.13 has a name for this flag. The number is Linux's, on x86-64 and Arm.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)


def cache_root() -> Path:
    """Return the folder of all caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adabench"


def read_once(
    kind: str,
    files: Sequence[Path],
    build: Callable[[Path], None],
    open_folder: Callable[[Path], T | None],
    settings: Any = None,
) -> T:
    """Return the data of `files` from the cache, or read them first. Blocks while another process reads them.

    Parameters
    ----------
    kind : str
        Prefix of the names of folders of this kind.
    files : sequence of Path
        Files to read; they must exist.
    build : callable
        Function that reads the files into a new folder, which gets its name when it is complete.
    open_folder : callable
        Function that returns the data in a complete folder; None if there is none, or if it is damaged.
    settings : object
        Settings of the reader, which msgspec can encode. Other settings use another folder.

    Raises
    ------
    DataError
        If the cache cannot be written, or if `build` raises it.
    """
    names: list[Any] = [str(file.resolve()) for file in files]
    home = cache_root() / f"{kind}-{_hash(names if settings is None else [names, settings])}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / "lock") as now:
            identities = [_identity(file) for file in files]
            state = _hash(_contents(files, identities, home / "contents.json", now))
            found = open_folder(home / state)
            if found is None:
                _build(home / state, build)
                for file, identity in zip(files, identities, strict=True):
                    if _identity(file) != identity:
                        shutil.rmtree(home / state, ignore_errors=True)
                        raise DataError(f"{file} changed while it was read: start again when it is complete")
                found = open_folder(home / state)
            _forget_others(home, state)
    except OSError as error:
        raise DataError(
            f"the cache {home} cannot be used ({error.strerror or error}): set the environment variable "
            f"{CACHE_VARIABLE} to a folder with enough space"
        ) from error
    if found is None:
        raise DataError(f"the cache {home} is damaged right after it was written: the disk may be faulty")
    return found


class ArrayWriter:
    """Writes arrays into a folder, part by part, as ``NAME.bin``; a context manager that closes the files.

    Attributes
    ----------
    shapes : dict
        Dtype and shape of each array so far, by name, in the order of their first parts.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._folder, self._files = folder, ExitStack()
        self._outputs: dict[str, IO[bytes]] = {}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def append(self, **parts: NDArray[Any]) -> None:
        """Write the next rows of some arrays."""
        for name, part in parts.items():
            if name not in self._outputs:
                file = (self._folder / f"{name}.bin").open("wb", buffering=0)
                self._outputs[name] = self._files.enter_context(file)
                self.shapes[name] = part.dtype.str, (0, *part.shape[1:])
            np.ascontiguousarray(part).tofile(self._outputs[name])
            dtype, (count, *width) = self.shapes[name]
            self.shapes[name] = dtype, (count + len(part), *width)


class Kept(NamedTuple):
    """The contents of a folder.

    Attributes
    ----------
    arrays : dict of str to array
        Arrays by name, mapped from files.
    facts : dict
        Other data that were stored with them.
    fingerprint : str
        Digest of the data.
    """

    arrays: dict[str, Any]
    facts: dict[str, Any]
    fingerprint: str


class _Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    shapes: dict[str, tuple[str, tuple[int, ...]]]
    facts: dict[str, Any]
    fingerprint: str


def describe_arrays(
    folder: Path, version: int, shapes: Shapes, fingerprint: str | None = None, what: str = "", **facts: Any
) -> None:
    """Write the description of a folder's arrays, which `kept_arrays` reads.

    Parameters
    ----------
    folder : Path
        Folder of ``NAME.bin`` for each array.
    version : int
        Version of the format of the data.
    shapes : mapping
        Dtype and shape of each array, by name.
    fingerprint : str, optional
        Digest of the data; by default the digest of `what` and of the arrays.
    what : str
        Name of the data in the digest.
    **facts : object
        Other data to store, which msgspec can encode.
    """
    if fingerprint is None:
        arrays = map_arrays(folder, shapes)
        assert arrays is not None
        fingerprint = digest_of(what, arrays.values())
    contents = _Contents(format=version, shapes=dict(shapes), facts=facts, fingerprint=fingerprint)
    (folder / CONTENTS).write_bytes(msgspec.json.encode(contents))


def kept_arrays(folder: Path, version: int) -> Kept | None:
    """Return the arrays of a folder; None if it is not complete, damaged, or of another version."""
    contents = _decoded(folder / CONTENTS, _Contents)
    if contents is None:
        return None
    arrays = map_arrays(folder, contents.shapes) if contents.format == version else None
    return None if arrays is None else Kept(arrays, contents.facts, contents.fingerprint)


def _decoded(file: Path, kind: type[T]) -> T | None:
    """Return the content of a file; None if it is missing or damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def map_arrays(folder: Path, shapes: Shapes) -> dict[str, Any] | None:
    """Return arrays of ``NAME.bin``, mapped from the files. Changes of the arrays do not change the files.

    The arrays may be larger than memory and swap space.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    shapes : mapping
        Dtype and shape of each array, by name.

    Returns
    -------
    dict of str to array, or None
        Arrays by name; None if a file is missing or has another size.
    """
    arrays: dict[str, Any] = {}
    for name, (dtype, shape) in shapes.items():
        file = folder / f"{name}.bin"
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not file.is_file() or file.stat().st_size != size:
            return None
        # An empty file cannot be mapped.
        arrays[name] = _mapped(file, size, dtype).reshape(shape) if size else np.empty(shape, dtype)
    return arrays


def _mapped(file: Path, size: int, dtype: str) -> NDArray[Any]:
    """Map a file like `numpy.memmap`, but without reserving memory for all pages, which Linux may refuse."""
    with file.open("rb") as opened:
        pages = mmap.mmap(
            opened.fileno(), size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    return np.frombuffer(pages, dtype=dtype)


def digest_of(what: str, arrays: Iterable[NDArray[Any]]) -> str:
    """Return ``sha256:…`` of a description and of arrays, without a copy of the arrays."""
    digest = hashlib.sha256(what.encode())
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, len(flat), 1 << 20):
            digest.update(flat[start : start + (1 << 20)].data)
    return f"sha256:{digest.hexdigest()}"


def _identity(file: Path) -> list[int]:
    """Return numbers that change when a file is written, truncated or replaced."""
    found = file.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _contents(files: Sequence[Path], identities: Sequence[list[int]], known: Path, now: int) -> list[str]:
    """Return the SHA-256 of each file's content, which the file `known` stores for these identities."""
    before = _decoded(known, dict[str, tuple[list[int], str]]) or {}
    after: dict[str, tuple[list[int], str]] = {}
    for file, identity in zip(files, identities, strict=True):
        identity_before, digest = before.get(str(file), ([], ""))
        if identity != identity_before:
            digest = file_digest(file)
        after[str(file)] = (identity, digest)
    # A second write within the clock's resolution does not change the identity, so recent identities are not
    # stored.
    trusted = {name: one for name, one in after.items() if one[0][-1] < now - _CLOCK_RESOLUTION_NS}
    known.write_bytes(msgspec.json.encode(trusted))
    return [after[str(file)][1] for file in files]


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 14):
            digest.update(block)
    return digest.hexdigest()


def _build(target: Path, build: Callable[[Path], None]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=target.parent))
    try:
        build(folder)
        shutil.rmtree(target, ignore_errors=True)  # removes a damaged one
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _forget_others(home: Path, state: str) -> None:
    """Remove data of earlier states of the files, and data that a killed process left."""
    for folder in home.iterdir():
        if folder.is_dir() and folder.name != state:
            shutil.rmtree(folder, ignore_errors=True)


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16]


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """Hold a lock. Yields the time of the file system's clock, in nanoseconds."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.utime(handle)
        yield os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)
