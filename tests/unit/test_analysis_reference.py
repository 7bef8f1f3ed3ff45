"""The committed sessions: their figures are drawn from their records, and the README shows those figures."""

from __future__ import annotations

import importlib.util
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from adabench.analysis.figures import draw_figures
from adabench.results.record import RecordError
from adabench.results.store import SessionStore

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
SESSIONS = sorted(file.parent for file in REFERENCE.glob("*/session.json"))


def drawn_data(svg: Path) -> list[object]:
    """Every text and every coordinate of a figure; not its identifiers and who wrote it."""
    found: list[object] = []
    for element in ElementTree.parse(svg).getroot().iter():
        if element.tag.endswith("}text"):
            found.append("".join(element.itertext()).strip())
        for attribute in ("d", "x", "y", "transform"):
            numbers = re.findall(r"-?\d+(?:\.\d+)?", element.get(attribute, ""))
            found += [round(float(number), 2) for number in numbers]
    return found


@pytest.mark.parametrize("session", SESSIONS, ids=lambda folder: folder.name)
def test_the_figures_of_a_recorded_session_are_those_of_its_records(session: Path, tmp_path: Path) -> None:
    copy = tmp_path / session.name
    copy.mkdir()
    for name in ("session.json", "runs.jsonl"):
        shutil.copy(session / name, copy / name)
    if (session / "traces").is_dir():
        shutil.copytree(session / "traces", copy / "traces")
    again = {file.name: file for file in draw_figures(SessionStore(copy)) if file.suffix == ".svg"}
    recorded = {file.name: file for file in (session / "figures").glob("*.svg")}
    assert set(recorded) == set(again)
    for name, file in recorded.items():
        assert drawn_data(file) == drawn_data(again[name]), name


def test_the_readme_shows_the_recorded_sessions(keep: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert keep.readme_with_figures(text) == text
    shown = re.findall(r"\]\((results/reference/[^\s()]+)\)", text)
    assert {Path(file).parts[2] for file in shown} >= {folder.name for folder in SESSIONS}
    assert all((ROOT / file.partition("#")[0]).is_file() for file in shown)


def test_the_readme_has_the_table_of_goals(keep: ModuleType, tmp_path: Path) -> None:
    text = f"before {keep.BEGIN} old {keep.END} after"
    assert keep.readme_with_figures(text, tmp_path) == f"before {keep.BEGIN}\n\n{keep.END} after"
    (tmp_path / "BENCH.md").write_text("# Figures\n\nBy whom.\n\n| what |\n|---|\n| a |\n\n## Why\n\n| b |\n")
    said = keep.readme_with_figures(text, tmp_path)
    assert "(results/reference/BENCH.md).\n\n| what |\n|---|\n| a |\n\n<!--" in said
    assert "| b |" not in said


def test_only_a_complete_session_is_kept(keep: ModuleType, tmp_path: Path) -> None:
    sessions, reference = tmp_path / "sessions", tmp_path / "reference"
    reference.mkdir()
    with pytest.raises(RecordError, match=r"there is no session of 'default' in .*--study default"):
        keep.keep("default", sessions, reference)
    shutil.copytree(REFERENCE / "default", sessions / "default-1")
    kept = keep.keep("default", sessions, reference)
    for file in sorted((REFERENCE / "default").rglob("*")):
        copy = kept.folder / file.relative_to(REFERENCE / "default")
        if file.name == "session.json":
            assert kept.session() == SessionStore(REFERENCE / "default").session()
        else:
            assert copy.is_dir() if file.is_dir() else copy.stat().st_size == file.stat().st_size, file
    assert keep.keep("other", sessions, reference, session="default-1").folder == reference / "other"
    with pytest.raises(RecordError, match=r"there is no session default-2 in "):
        keep.keep("other", sessions, reference, session="default-2")
    runs = sessions / "default-1" / "runs.jsonl"
    runs.write_bytes(b"".join(runs.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(RecordError, match="block 2, was not run"):
        keep.keep("default", sessions, reference)


@pytest.fixture(scope="module")
def keep() -> ModuleType:
    """The script beside the recorded sessions; it is no part of the package."""
    spec = importlib.util.spec_from_file_location("keep", REFERENCE / "keep.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
