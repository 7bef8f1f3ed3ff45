"""A fuzz target for the readers of checkpoints and exports: they accept any bytes or refuse them clearly.

As a program, it runs a coverage-guided search with atheris, which takes libFuzzer's options. Without atheris,
`run` takes one input; the tests pass it the inputs of the corpus.

An input consists of one byte of choices, then a manifest, a table's file and a worker's file, each preceded
by its length in two bytes. If the choices ask for it, sizes and checksums are corrected, which lets the
search reach the code behind those checks.
"""

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

import adaps

TABLE_FILE, EXTRA_FILE = "table-0000-rank-0000.safetensors", "extra-rank-0000-worker-0000.safetensors"
FOLDER = "00000001-0123456789abcdef"
ROWS, LENGTH = 6, 2

HONEST, STRAY, EXPORTED = 1, 2, 4
"""Choices: checksums fit; one byte of the last file is dropped, behind whatever the manifest says; it is an
export, whose only file is the table's."""


class Target:
    """A node with one table that restores the checkpoint of an input.

    Parameters
    ----------
    directory : Path
        An empty directory for the files of an input.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        table = adaps.Table("t", rows=ROWS, length=LENGTH, optimizer=adaps.Adagrad(lr=0.5))
        self._node = adaps.Node([table], channels=1)
        kv = self._node.worker(0)
        kv.push_gradients(np.arange(4), np.ones((4, LENGTH), np.float32))
        self._node.checkpoint(directory, extra={"a": np.arange(3, dtype=np.uint8), "step": 7})
        self._node.export(directory.with_name("exported")).wait()

    def close(self) -> None:
        """End the node."""
        self._node.close()

    def examples(self) -> list[bytes]:
        """Well-formed inputs."""
        saved, exported = (
            _example(directory, name)
            for directory, name in [
                (self._directory, "checkpoint"),
                (self._directory.with_name("exported"), "export"),
            ]
        )
        return [
            *(packed(choice, *saved) for choice in (0, HONEST)),
            *(packed(choice | EXPORTED, *exported) for choice in (0, HONEST)),
        ]

    def run(self, data: bytes) -> str | None:
        """Read one input and return the message of the refusal, or None if the input was accepted.

        Raises
        ------
        AssertionError
            If the refusal is longer than one sentence, does not name the directory, or breaks the node.
        Exception
            Any other exception of the reader, which may raise only `CheckpointError`.
        """
        choice, manifest, files = unpacked(data)
        shutil.rmtree(self._directory)
        self._directory.mkdir()
        if choice & HONEST:
            manifest = _made_to_fit(manifest, files)
        folder = self._directory / _folder_of(manifest)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content[:-1] if choice & STRAY and name == EXTRA_FILE else content)
        (self._directory / _name_of(manifest)).write_bytes(manifest)
        said = None
        try:
            if choice & EXPORTED:
                adaps.load_export(self._directory)
            else:
                self._node.restore(self._directory)
        except adaps.CheckpointError as error:
            said = str(error)
            if str(self._directory) not in said or len(said.splitlines()) != 1:
                raise AssertionError(f"not one sentence that names the directory: {said!r}") from error
        out = np.empty((ROWS, LENGTH), np.float32)
        self._node.worker(0).pull(np.arange(ROWS), out)
        return said


def _example(directory: Path, kind: str) -> list[bytes]:
    """Manifest and files of a directory, the same in every run."""
    (path,) = directory.glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    content = manifest[kind] if kind == "checkpoint" else manifest[kind]["parts"][0]
    files = [directory / content["folder"] / name for name in (TABLE_FILE, EXTRA_FILE)]
    content["folder"] = FOLDER
    manifest["writer"] = {"life": "0123456789abcdef", "process": 1, "host": "h", "since": "now"}
    manifest["crc32"] = _checksum_of(manifest)
    text = json.dumps(manifest, separators=(",", ":")).encode()
    return [text, *(file.read_bytes() for file in files if file.exists())]


def packed(choice: int, *parts: bytes) -> bytes:
    """An input."""
    return bytes([choice]) + b"".join(len(part).to_bytes(2, "little") + part for part in parts)


def unpacked(data: bytes) -> tuple[int, bytes, dict[str, bytes]]:
    """The choices, the manifest and the files by name; parts that the input is too short for are empty."""
    choice, data = (data[0] if data else 0), data[1:]
    parts = []
    for _ in range(3):
        length = int.from_bytes(data[:2], "little")
        parts.append(data[2 : 2 + length])
        data = data[2 + length :]
    return choice, parts[0], {TABLE_FILE: parts[1], EXTRA_FILE: parts[2]}


def _folder_of(manifest: bytes) -> str:
    found = re.search(rb'"folder": ?"([0-9]{8,20}-[0-9a-f]{16})"', manifest)
    return found[1].decode() if found else FOLDER


def _name_of(manifest: bytes) -> str:
    """Where a manifest of its version is."""
    return "manifest.json" if b"checkpoint, version 1" in manifest else "manifest-00000001.json"


def _made_to_fit(manifest: bytes, files: dict[str, bytes]) -> bytes:
    """The manifest with the true sizes and checksums of the files, where they can be computed."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = json.loads(manifest)
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            content = whole["checkpoint"] if "checkpoint" in whole else whole["export"]["parts"][0]
            for file in content["files"]:
                found = files[file["name"]]
                file |= {"bytes": len(found), "checksums": _checksums(found)}
        whole["crc32"] = _checksum_of(whole)
        return json.dumps(whole).encode()
    return manifest


def _checksums(content: bytes) -> dict[str, int]:
    start = 8 + int.from_bytes(content[:8], "little")
    found = {"header": zlib.crc32(content[:start])}
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        for name, entry in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                found[name] = zlib.crc32(content[start + first : start + end])
    return found


def _checksum_of(whole: Any) -> int:
    """The checksum that a manifest of this version carries."""
    if "writer" not in whole:
        return _checksum(whole["checkpoint"])
    return _checksum({name: whole[name] for name in ("checkpoint", "export", "writer") if name in whole})


def _checksum(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


@contextlib.contextmanager
def target() -> Iterator[Target]:
    """A target in a folder in memory."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        made = Target(Path(folder) / "checkpoint")
        try:
            yield made
        finally:
            made.close()


def main() -> None:
    """Search with libFuzzer."""
    import atheris  # type: ignore[import-untyped]  # only a search needs it

    from adaps import checkpoint
    from adaps.checkpoint import (
        checkpoint_worker,
        editions,
        export_reader,
        manifests,
        safetensors_file,
        table_export,
        table_files,
        table_match,
    )

    exports = export_reader, table_export
    files = safetensors_file, table_files, table_match
    own = (checkpoint, checkpoint_worker, *exports, *files, editions, manifests)
    for module in (*own, json.decoder):
        for function in _functions(module):
            atheris.instrument_func(function)
    with target() as made:
        if folder := os.environ.get("ADAPS_EXAMPLES"):
            for number, example in enumerate(made.examples()):
                (Path(folder) / f"example-{number}").write_bytes(example)
        atheris.Setup(sys.argv, lambda data: made.run(data) and None)
        atheris.Fuzz()


def _functions(of: ModuleType | type) -> Iterator[FunctionType]:
    """All functions that a module or a class defines, including those of nested classes."""
    for value in vars(of).values():
        if isinstance(value, FunctionType):
            if value.__module__ == (of.__name__ if isinstance(of, ModuleType) else of.__module__):
                yield value
        elif isinstance(value, type) and isinstance(of, ModuleType) and value.__module__ == of.__name__:
            yield from _functions(value)


if __name__ == "__main__":
    main()
