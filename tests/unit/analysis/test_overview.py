"""The page over all sessions: its rows, and the values that they are sorted by."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adabench.analysis.overview import COLUMNS
from adabench.results.record import Run, Seconds
from adabench.results.store import SessionStore
from tests.records import make_run, make_session


class Table(HTMLParser):
    """Texts, and values to sort by, of a page's table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str]]] = []
        self.links: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self._inside = True
            self.rows[-1].append(("", given["data-value"]))
        if tag == "a":
            self.links.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._inside:
            text, value = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, value)


def runs(factor: float) -> list[Run]:
    return [
        make_run(
            backend, block, seconds=Seconds(train=seconds, total=9.0), metrics={"auc": 0.75}, environment="e"
        )
        for block in range(6)
        for backend, seconds in (("prefetch", 10.0), ("other", 10.0 * factor))
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, factor, day in (("old", 2.0, 1), ("new", 0.5, 2)):
        store = SessionStore(tmp_path / "sessions" / name)
        created_at = f"2026-01-0{day}T00:00:00+00:00"
        store.create(make_session(name, created_at=created_at, environment={"cpu": "a processor"}))
        for run in runs(factor):
            store.append(run)
    SessionStore(tmp_path / "sessions" / "empty").create(make_session("empty"))
    (tmp_path / "sessions" / "new" / "report.html").write_text("")
    return tmp_path / "sessions"


def test_every_cell_of_every_session_is_a_row(said: Any, root: Path) -> None:
    assert said("report", "--all", "--results", str(root)) == (0, "sessions/sessions.html\n", "")
    page = (root / "sessions.html").read_text(encoding="utf-8")
    table = Table(page)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows if row]
    assert [(row["session"][0], row["backend"][0], row["verdict"][0]) for row in rows] == [
        ("old", "prefetch", "baseline"),
        ("old", "other", "slower"),
        ("new", "prefetch", "baseline"),
        ("new", "other", "faster"),
    ]
    assert rows[1]["training (s)"] == ("20.00", "20.0")
    assert rows[1]["quality"] == ("auc 0.7500", "0.75")
    assert rows[1]["ratio"][0] == "2.000"
    assert rows[0]["ratio"] == ("-", "")
    assert table.links == ["new/report.html"] * 2


def test_nothing_is_written_of_nothing(refused: Any, root: Path) -> None:
    assert refused("report", "--all", "--results", "none").startswith("no session has a finished run")
    assert refused("report", "old", "--all", "--results", str(root)).startswith("--all is about all sessions")
