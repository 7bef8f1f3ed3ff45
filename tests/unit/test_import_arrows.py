"""Who may import or include whom. Imports inside functions count too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS = (
    "adabench.backends.protocol",
    "adabench.backends.policies.protocol",
    "adabench.usecases.protocol",
)

# Folder -> its own import name, and what else of the project it may import.
ARROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "results": ("adabench.results", ()),
    "analysis": ("adabench.analysis", ("adabench.results",)),
    # `data fetch` is the one command of a single use case; hosts of a session meet as nodes of a job do.
    "harness": (
        "adabench.harness",
        (
            *("adabench.analysis", "adabench.results", *PROTOCOLS, "adabench.usecases.gcn"),
            *("adaps.rendezvous", "adaps.errors"),
        ),
    ),
    "backends": ("adabench.backends", ("autoada", "adaps", "adabench.usecases.protocol")),
    "backends/autoada": ("autoada", ("adaps",)),
    "usecases": ("adabench.usecases", ()),
    "csrc/adaps": ("adaps", ()),
}
LIGHT = ("results", "analysis")
ROOMS = ("errors", "machine", "plugins", "planning", "trial", "launch", "session", "checks", "cli")
"""Of the harness; each may import those before it."""
CORE_ROOMS = ("common", "store", "transport", "protocol", "node", "replay")
"""Of the C++ server; each may include those before it."""
FLOORS = (
    (
        "access",
        "aggregation",
        "announcing",
        "batches",
        "freshness",
        "group",
        "guard",
        "lookahead",
        "random_state",
        "stretches",
        "transfer",
    ),
    ("choice",),
    ("initialization",),
    ("rows", "position", "meeting"),
    ("table",),
    ("parameter", "optimizers", "steps"),
    ("adoption", "negatives", "schedules", "shards"),
    ("layout", "state"),
    ("management",),
    ("dense",),
    ("shared",),
    ("allreduce", "combined"),
    ("parts", "checkpoint"),
    ("calls",),
    ("model",),
    ("unwrap",),
    ("loop",),
    ("intent",),
    ("ahead",),
    ("dataloader",),
)
"""Of AutoAda; each may import those below it. What model and loader have to agree about is in `steps`."""


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    nested = [ROOT / other for other in ARROWS if other.startswith(f"{folder}/")]
    for file in sorted((ROOT / folder).rglob("*.py")):
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


def test_rooms_of_the_server_include_those_before_them() -> None:
    core = ROOT / "csrc" / "core"
    rooms = sorted(path.name for path in core.iterdir() if path.is_dir())
    assert rooms == sorted(CORE_ROOMS)
    for file in sorted(core.rglob("*.*")):
        room = file.relative_to(core).parts[0]
        text = file.read_text(encoding="utf-8")
        for other, name in re.findall(r'^#include "(?:(\w+)/)?([^"]+)"', text, re.MULTILINE):
            assert other in rooms, f"{file} includes {name} without its room"
            assert CORE_ROOMS.index(other) <= CORE_ROOMS.index(room), f"{file} includes {other}/{name}"


@pytest.mark.parametrize("folder", ["core", "bindings"])
def test_the_server_uses_no_streams(folder: str) -> None:
    """With another copy of the C++ library in the process, a stream may find that one's locale and crash."""
    for file in sorted((ROOT / "csrc" / folder).rglob("*.*")):
        used = re.findall(r"#include <(\w*stream|iomanip|locale|regex)>", file.read_text(encoding="utf-8"))
        assert used == [], f"{file} includes {used}"


def test_floors_of_autoada_import_those_below_them() -> None:
    folder = ROOT / "backends" / "autoada"
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    rooms = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert rooms - {"__init__"} == set(floor)
    for file, name in imports("backends/autoada"):
        room = file.relative_to(folder).parts[0].removesuffix(".py")
        if room != "__init__" and inside(name, "autoada"):
            other = name.split(".")[1]
            assert other == room == "access" or floor[other] < floor[room], f"{file} imports {name}"


def test_files_of_access_prediction_import_each_other_one_way() -> None:
    graph: dict[str, set[str]] = {}
    for file, name in imports("backends/autoada"):
        if inside(name, "autoada.access") and file.parent.name == "access" and file.stem != "__init__":
            graph.setdefault(file.stem, set()).add(name.split(".")[2])
    assert list(TopologicalSorter(graph).static_order())  # CycleError names the circle


@pytest.mark.parametrize("folder", LIGHT)
def test_records_are_read_without_torch(folder: str) -> None:
    for file, name in imports(folder):
        assert not inside(name, "torch"), f"{file} imports {name}"
