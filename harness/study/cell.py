"""A cell, and its identity: parameters, settings, data and sources."""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import load_backend, load_usecase, source_files
from adabench.results.run_settings import RunSettings

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase


class Cell(RunSettings, kw_only=True, frozen=True):
    """Use case × backend × parameters × settings, everything resolved.

    `params` belong to the use case and `options` to the backend; a run's record stores both in one table.
    `policy` is the document of the policy that an option of the backend names.
    """

    usecase: str
    backend: str
    params: dict[str, Any]
    options: dict[str, Any]
    data_path: str | None = None
    data: str | None = None
    source: str | None = None
    policy: str | None = None

    @property
    def id(self) -> str:
        """Hash of everything that defines the cell. Runs with equal identifiers are repetitions."""
        identity = {
            "usecase": self.usecase,
            "backend": self.backend,
            "params": self.params,
            "options": self.options,
            "settings": self.settings(),
            "data": self.data,
            "source": self.source,
            "policy": self.policy,
        }
        return digest(msgspec.json.encode(identity, order="deterministic"))[:16]

    @property
    def recorded_params(self) -> dict[str, Any]:
        return {**self.params, **self.options}

    @property
    def label(self) -> str:
        return f"{self.usecase} · {self.backend}"


def with_identity(cells: Sequence[Cell], fingerprint: str) -> list[Cell]:
    """The cells with the fingerprint of their data and the hash of their sources."""
    shared = _shared_sources()
    sources = {
        (usecase, backend): _sources_hash(
            [*source_files(load_usecase(usecase)), *source_files(load_backend(backend)), *shared]
        )
        for usecase, backend in {(cell.usecase, cell.backend) for cell in cells}
    }
    return [
        msgspec.structs.replace(cell, data=fingerprint, source=sources[cell.usecase, cell.backend])
        for cell in cells
    ]


def data_key(cell: Cell) -> bytes:
    """Return a key that is equal for cells that train the same use case on the same data."""
    return msgspec.json.encode([cell.usecase, cell.params, cell.data_path], order="deterministic")


def digest(content: bytes) -> str:
    """SHA-256 as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def usecase_of(cell: Cell, seed: int) -> UseCase:
    """The use case that a cell trains."""
    kind = load_usecase(cell.usecase)
    path = Path(cell.data_path) if cell.data_path is not None else None
    return kind(msgspec.convert(cell.params, kind.Params), path, seed)


def checked_usecase(cells: Sequence[Cell], seed: int) -> UseCase:
    """The use case of cells with equal data, after it has created the loaders of each number of workers.

    Thus unusable data are found before anything is launched. Raises `UsageError` for such data.
    """
    from adabench.usecases.interface import DataError

    name = cells[0].usecase
    try:
        usecase = usecase_of(cells[0], seed)
        for world in sorted({cell.nodes * cell.workers for cell in cells}):
            usecase.loaders(0, world)
    except DataError as error:
        raise UsageError(f"use case {name!r}: {error}") from error
    except MemoryError as error:
        raise UsageError(
            f"use case {name!r}: there is too little memory for its data ({error}): use fewer"
        ) from error
    return usecase


def shared_sources_hash(*more: Path) -> str:
    """Hash of the sources that every run uses, and of further files."""
    return _sources_hash([*_shared_sources(), *more])


def _shared_sources() -> list[Path]:
    """Sources that every run uses: the training loop, the wrapper, the parameter server and its binary."""
    files = [*(Path(__file__).parents[1] / "run").glob("*.py")]
    for package in ("autoada", "adaps"):
        spec = importlib.util.find_spec(package)
        folders = list(spec.submodule_search_locations or []) if spec is not None else []
        # An editable installation keeps Python in the clone and the binary in site-packages.
        for folder in {*folders, str(Path(sysconfig.get_path("platlib")) / package)}:
            files += [file for file in Path(folder).rglob("*") if file.suffix in (".py", ".so")]
    return files


def _sources_hash(files: Sequence[Path]) -> str:
    """Hash of the contents of source files, in the order of their names."""
    found = hashlib.sha256()
    for file in sorted(set(files), key=lambda one: (one.name, str(one))):
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
