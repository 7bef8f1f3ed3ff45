"""Who may import whom. Imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS = ("adabench.backends.protocol", "adabench.usecases.protocol")

# Folder -> its own import name, and what else of the project it may import.
ARROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "results": ("adabench.results", ()),
    "analysis": ("adabench.analysis", ("adabench.results",)),
    # `data fetch` is the one command of a single use case.
    "harness": (
        "adabench.harness",
        ("adabench.analysis", "adabench.results", *PROTOCOLS, "adabench.usecases.gcn"),
    ),
    "backends": ("adabench.backends", ("autoada", "adaps", "adabench.usecases.protocol")),
    "backends/autoada": ("autoada", ("adaps",)),
    "usecases": ("adabench.usecases", ()),
    "csrc/adaps": ("adaps", ()),
}
LIGHT = ("results", "analysis")
ROOMS = ("errors", "machine", "plugins", "planning", "trial", "launch", "session", "checks", "cli")
"""Of the harness; each may import those before it."""


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    nested = [ROOT / other for other in ARROWS if other.startswith(f"{folder}/")]
    for file in sorted((ROOT / folder).rglob("*.py")):
        # A script beside recorded sessions, which is no part of the package.
        if file.is_relative_to(ROOT / "results" / "reference"):
            continue
        if any(inner in file.parents for inner in nested):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} imports relatively, which no other file does"
                # `from adabench.usecases import gcn` imports the module adabench.usecases.gcn.
                yield from ((file, f"{node.module}.{alias.name}") for alias in node.names)


def inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("folder", ARROWS)
def test_imports_follow_the_arrows(folder: str) -> None:
    own, allowed = ARROWS[folder]
    found = list(imports(folder))
    assert found
    for file, name in found:
        if any(inside(name, project) for project in ("adabench", "autoada", "adaps")):
            assert any(inside(name, package) for package in (own, *allowed)), f"{file} imports {name}"


def test_rooms_of_the_harness_import_those_before_them() -> None:
    rooms = {path.stem for path in (ROOT / "harness").iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(ROOMS) - {"errors"}
    for file, name in imports("harness"):
        room = file.relative_to(ROOT / "harness").parts[0]
        if room in rooms and inside(name, "adabench.harness"):
            other = name.split(".")[2]
            assert ROOMS.index(other) <= ROOMS.index(room), f"{file} imports {name}"


@pytest.mark.parametrize("folder", LIGHT)
def test_records_are_read_without_torch(folder: str) -> None:
    for file, name in imports(folder):
        assert not inside(name, "torch"), f"{file} imports {name}"
