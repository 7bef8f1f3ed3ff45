"""The committed sessions: their figures are drawn from their records, and a page shows each of them."""

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from adabench.analysis.figures import draw_figures
from adabench.analysis.panels import draw_forest
from adabench.analysis.style import standalone_svg
from adabench.results.record import RecordError
from adabench.results.store import SessionStore, list_sessions
from tests.scripts import ROOT, load_script

keeping = load_script("tools/keep_sessions.py")
REFERENCE = ROOT / "results" / "reference"
SESSIONS = sorted(store.folder for store in list_sessions(REFERENCE))


def uncompressed(name: str, folder: Path) -> SessionStore:
    """A copy of a committed session to which runs can be added."""
    kept, copy = SessionStore(REFERENCE / name), SessionStore(folder)
    copy.create(kept.session())
    for run in kept.runs():
        copy.append(run)
    if kept.traces.is_dir():
        shutil.copytree(kept.traces, copy.traces)
    return copy


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
    copy = uncompressed(session.name, tmp_path / session.name)
    drawn = [] if session.name in keeping.UNSHOWN else draw_figures(copy)
    again = {file.name: file for file in drawn if file.suffix == ".svg"}
    recorded = {file.name: file for file in (session / "figures").glob("*.svg")}
    assert recorded.keys() == {name for name in again if keeping._is_shown(Path(name).stem, session.name)}
    for name, file in recorded.items():
        assert drawn_data(file) == drawn_data(again[name]), name


def test_the_page_of_recorded_sessions_shows_all_and_only_what_is_kept() -> None:
    text = keeping.PAGE.read_text(encoding="utf-8")
    assert text == keeping.page()
    shown = {Path(file) for file in re.findall(r"\]\(\.\./\.\./(results/reference/[^\s()]+)\)", text)}
    assert {file.parts[2] for file in shown} >= {folder.name for folder in SESSIONS}
    assert all((ROOT / file).is_file() for file in shown)
    kept = {file.relative_to(ROOT) for session in SESSIONS for file in session.glob("figures/*")}
    assert kept == {file for file in shown if file.parent.name == "figures"}


def test_the_headline_is_that_of_the_records(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, *others = keeping.headline()
    assert f"{first.ratio:.3f} of the training time" in text
    assert f"95 % interval [{first.ratio_low:.3f}, {first.ratio_high:.3f}]" in text
    assert [one.verdict for one in (first, *others)] == ["faster", "equivalent", "equivalent"]
    assert {(one.n, one.level) for one in (first, *others)} == {(12, 0.05)}
    again = tmp_path / "headline.svg"
    again.write_text(standalone_svg(draw_forest([first, *others])), encoding="utf-8")
    assert drawn_data(again) == drawn_data(keeping.HEADLINE)
    assert "prefers-color-scheme: dark" in keeping.HEADLINE.read_text(encoding="utf-8")


def test_only_a_complete_session_is_kept(tmp_path: Path) -> None:
    sessions, reference = tmp_path / "sessions", tmp_path / "reference"
    reference.mkdir()
    with pytest.raises(RecordError, match=r"there is no session of 'default' in .*--study default"):
        keeping.keep("default", sessions, reference)
    uncompressed("default", sessions / "default-1")
    kept, before = keeping.keep("default", sessions, reference), SessionStore(REFERENCE / "default")
    assert (kept.session(), kept.runs()) == (before.session(), before.runs())
    files = [{file.relative_to(store.folder) for file in store.folder.rglob("*")} for store in (kept, before)]
    assert files[0] == files[1]
    with pytest.raises(RecordError, match="default is compressed and takes no more runs"):
        kept.append(kept.runs()[0])
    assert keeping.keep("other", sessions, reference, session="default-1").folder == reference / "other"
    with pytest.raises(RecordError, match=r"there is no session default-2 in "):
        keeping.keep("other", sessions, reference, session="default-2")
    runs = sessions / "default-1" / "runs.jsonl"
    lengthy = "x" * (keeping.LONGEST_POLICY + 1)
    first, *others = SessionStore(sessions / "default-1").runs()
    whole = runs.read_bytes()
    runs.unlink()
    for run in (msgspec.structs.replace(first, policy=lengthy), *others):
        SessionStore(sessions / "default-1").append(run)
    cut, *rest = keeping.keep("default", sessions, reference).runs()
    assert cut.policy.startswith(f"# left out of this copy: {len(lengthy)} characters, sha256:")
    assert rest == others
    runs.write_bytes(whole)
    runs.write_bytes(b"".join(runs.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(RecordError, match="block 2, was not run"):
        keeping.keep("default", sessions, reference)


def test_what_was_measured_is_not_replaced_by_what_is_skipped(tmp_path: Path) -> None:
    sessions, reference = tmp_path / "sessions", tmp_path / "reference"
    reference.mkdir()
    store = uncompressed("default", sessions / "default-1")
    runs = store.runs()
    store.runs_file.unlink()
    for run in runs:
        if run.backend == "prefetch":
            run = msgspec.structs.replace(run, status="skipped", reason="it is not installed")
        store.append(run)
    assert len(keeping.keep("default", sessions, reference).runs()) == len(runs)  # nothing is lost
    shutil.rmtree(reference / "default")
    shutil.copytree(REFERENCE / "default", reference / "default")
    with pytest.raises(RecordError, match=r"default-1: prefetch is skipped, .*lost: it is not installed"):
        keeping.keep("default", sessions, reference)
    assert SessionStore(reference / "default").runs() == runs
