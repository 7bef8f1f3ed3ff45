"""Which C++ folder may include which; the Python packages' arrows are contracts in pyproject.toml."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE_FOLDERS = ("common", "store", "transport", "storage", "protocol", "node", "replay")
"""Folders of the C++ server; each may include those before it."""


def test_folders_of_the_server_include_those_before_them() -> None:
    core = ROOT / "csrc" / "core"
    folders = sorted(path.name for path in core.iterdir() if path.is_dir())
    assert folders == sorted(CORE_FOLDERS)
    for file in sorted(core.rglob("*.*")):
        folder = file.relative_to(core).parts[0]
        text = file.read_text(encoding="utf-8")
        for other, name in re.findall(r'^#include "(?:(\w+)/)?([^"]+)"', text, re.MULTILINE):
            assert other in folders, f"{file} includes {name} without its folder"
            assert CORE_FOLDERS.index(other) <= CORE_FOLDERS.index(folder), f"{file} includes {other}/{name}"


@pytest.mark.parametrize("folder", ["core", "bindings"])
def test_the_server_uses_no_streams(folder: str) -> None:
    """With another copy of the C++ library in the process, a stream may find that one's locale and crash."""
    for file in sorted((ROOT / "csrc" / folder).rglob("*.*")):
        used = re.findall(r"#include <(\w*stream|iomanip|locale|regex)>", file.read_text(encoding="utf-8"))
        assert used == [], f"{file} includes {used}"
