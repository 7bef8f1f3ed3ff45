"""The committed sessions: their figures are drawn from their records, and the README shows those figures."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from adabench.analysis.figures import draw_figures
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
    again = {file.name: file for file in draw_figures(SessionStore(copy)) if file.suffix == ".svg"}
    recorded = {file.name: file for file in (session / "figures").glob("*.svg")}
    assert set(recorded) == set(again)
    for name, file in recorded.items():
        assert drawn_data(file) == drawn_data(again[name]), name


def test_the_readme_shows_figures_of_recorded_sessions() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"results/reference/[^\s()\"'<>]+\.(?:png|svg)", text)
    assert bool(shown) == bool(SESSIONS)
    for figure in shown:
        assert (ROOT / figure).is_file(), figure
        assert (ROOT / figure).parents[1] in SESSIONS
