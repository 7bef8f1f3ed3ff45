"""Results of long computations, kept in a file between commands."""

from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.study.cell import digest
from adabench.results.store import UNDECODABLE, write_atomically

T = TypeVar("T")


class StoredResults(Generic[T]):
    """Results by the values that determine them.

    Parameters
    ----------
    file : Path
        File of the results. It is written only if its folder exists.
    kind : type
        Type of a result, which msgspec can encode.

    Raises
    ------
    UsageError
        If the file is damaged.
    """

    def __init__(self, file: Path, kind: type[T]) -> None:
        self._file = file
        self._found: dict[str, T] = {}
        self._changed = False
        if file.is_file():
            try:
                self._found = msgspec.json.decode(file.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
            except UNDECODABLE as error:
                raise UsageError(f"{file} is damaged: delete it ({error})") from error

    @staticmethod
    def key(determined_by: Any) -> str:
        """Return the key of a result, a hash of the values that determine it."""
        return digest(msgspec.json.encode(determined_by, order="deterministic"))[:16]

    def get(self, key: str) -> T | None:
        """Return the result with this key, if there is one."""
        return self._found.get(key)

    def put(self, key: str, result: T) -> None:
        """Keep a result."""
        self._found[key] = result
        self._changed = True

    def write(self) -> None:
        """Write new results."""
        if self._changed and self._file.parent.is_dir():
            write_atomically(self._file, msgspec.json.encode(self._found))
            self._changed = False
