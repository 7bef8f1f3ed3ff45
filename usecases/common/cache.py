"""Files that are read once, into arrays on disk that all nodes of all runs map into memory.

A cache is a folder for each set of files, below ``$ADABENCH_CACHE``, else ``$XDG_CACHE_HOME/adabench``, else
``~/.cache/adabench``. A file that has another size or time of change than when it was read is read anew.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from adabench.usecases.interface import DataError

__all__ = ["CACHE_VARIABLE", "cache_root", "digest_of", "map_arrays", "read_once"]

CACHE_VARIABLE = "ADABENCH_CACHE"

T = TypeVar("T")

# Python has a name for it from 3.13 on; this is Linux's number, on x86-64 and Arm.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)


def cache_root() -> Path:
    """The folder of all caches."""
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
    """What was read of `files`, from the cache if it is there; blocks while another process reads them.

    Parameters
    ----------
    kind : str
        What folders of this kind begin with.
    files : sequence of Path
        What is read; they must exist.
    build : callable
        Reads the files into a new folder, which takes its name when it is complete.
    open_folder : callable
        Gives what a complete folder holds; None if there is none, or it is damaged.
    settings : object
        Of msgspec's; files that are read with other settings have another folder.

    Raises
    ------
    DataError
        If the cache cannot be written, or what `build` raises.
    """
    stats = [file.stat() for file in files]
    names: list[Any] = [str(file.resolve()) for file in files]
    home = cache_root() / f"{kind}-{_hash(names if settings is None else [names, settings])}"
    state = _hash([[one.st_size, one.st_mtime_ns] for one in stats])
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / "lock"):
            found = open_folder(home / state)
            if found is None:
                _build(home / state, build)
                found = open_folder(home / state)
            _forget_others(home, state)
    except OSError as error:
        raise DataError(
            f"the cache {home} cannot be used ({error.strerror or error}): say with the environment variable "
            f"{CACHE_VARIABLE} where there is room for it"
        ) from error
    if found is None:
        raise DataError(f"the cache {home} is damaged right after it was written: the disk may be faulty")
    return found


def map_arrays(folder: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any] | None:
    """Arrays of ``NAME.bin``, mapped from the files: writing to them changes no file.

    They may be larger than memory and swap space.

    Parameters
    ----------
    folder : Path
    shapes : mapping
        Name -> dtype and shape.

    Returns
    -------
    dict of str to array, or None
        None if a file is missing or has another size.
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
    """Unlike `numpy.memmap`, without a reservation for copies of all pages, which Linux may refuse."""
    with file.open("rb") as opened:
        pages = mmap.mmap(
            opened.fileno(),
            size,
            flags=mmap.MAP_PRIVATE | _NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    return np.frombuffer(pages, dtype=dtype)


def digest_of(what: str, arrays: Iterable[NDArray[Any]]) -> str:
    """``sha256:…`` of a description and of arrays, of which no copy is made."""
    digest = hashlib.sha256(what.encode())
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, len(flat), 1 << 20):
            digest.update(flat[start : start + (1 << 20)].data)
    return f"sha256:{digest.hexdigest()}"


def _build(target: Path, build: Callable[[Path], None]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=target.parent))
    try:
        build(folder)
        shutil.rmtree(target, ignore_errors=True)  # a damaged one
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _forget_others(home: Path, state: str) -> None:
    """Remove what was read of the files as they were before, and what a killed process left."""
    for folder in home.iterdir():
        if folder.is_dir() and folder.name != state:
            shutil.rmtree(folder, ignore_errors=True)


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
