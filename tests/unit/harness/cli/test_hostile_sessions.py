"""Foreign sessions: whatever texts they contain, nothing is written outside them or executed."""

import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adabench.results.record import Seconds
from adabench.results.store import SessionStore
from tests.records import make_run, make_session, plan_of

MARKUP = "<script>alert(1)</script>&{body}"
HOSTILE = {
    "a dollar": "$",
    "no formula": "$\\foo$ and $_$",
    "markup": MARKUP,
    "an escape": "\x1b]0;title\x07\x1b[31m",
    "lines": "one\ntwo\r\n",
    "a path": "../../outside",
    "an absolute path": "/tmp/outside",
    "no text": "\0",
    "nothing": "",
}


def write_session(root: Path, text: str, **changes: Any) -> SessionStore:
    """A session of two backends in which every field that may hold any text holds this one."""
    store = SessionStore(root / "foreign")
    runs = []
    for block in range(2):
        for position, backend in enumerate(("prefetch", "manual")):
            runs.append(
                make_run(
                    backend,
                    block,
                    session=text,
                    cell=f"{backend}{text}",
                    params={"epochs": 1, text: f"{backend}{text}", "note": f"{text}{position}"},
                    nodes=2,
                    network=text,
                    data=text,
                    position=position,
                    seed=block,
                    reason=text,
                    started_at=text,
                    seconds=Seconds(setup=1, train=2.0 + block, eval=1, teardown=1, total=5.0 + block),
                    epoch_seconds=[2.0 + block],
                    samples=100,
                    metrics={text: 0.5},
                    history=[{"epoch": 1, text: 0.5, f"valid_{text}": 0.5}],
                    counters={"bytes_sent": 1.0, text: 1.0},
                    train_cpu_seconds=1.0,
                    environment=text,
                )
            )
    runs.append(msgspec.structs.replace(runs[0], run_id="bad", block=2, status="failed", failed_phase=text))
    session = make_session(
        text,
        created_at=text,
        command=["adabench", text],
        study={"name": text, "repeats": 2, "data": {}},
        plan=plan_of(runs),
        environment={"cpu": text, text: [text, {text: text}]},
        environment_id=text,
        machine=text,
    )
    store.create(session)
    for run in runs:
        store.append(msgspec.structs.replace(run, **changes))
    return store


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_of_a_stranger_are_shown_as_they_are_and_lead_nowhere(
    tmp_path: Path, said: Any, text: str
) -> None:
    root = tmp_path / "deep" / "down" / "results"
    store = write_session(root, text)
    before = {path for path in tmp_path.rglob("*") if store.folder not in path.parents}
    results = ("--results", str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fonts lack such characters
        for arguments in (
            ("list", "sessions"),
            ("show", "foreign"),
            ("show", "bad"),
            ("plot", "foreign"),
            ("report", "foreign"),
            ("export", "foreign"),
            ("export", "foreign", "--to", "json"),
        ):
            code, out, err = said(*arguments, *results)
            assert (code, err) == (0, ""), (arguments, err)
            assert "\x1b" not in out
            assert "\0" not in out
    assert {path for path in tmp_path.rglob("*") if store.folder not in path.parents} == before
    assert said("report", "--all", *results)[0] == 0
    for file, scripts in ((store.folder / "report.html", 0), (root / "sessions.html", 1)):  # its own, to sort
        page = Elements()
        page.feed(file.read_text(encoding="utf-8"))
        assert page.found.count("script") == scripts
    for drawn in (store.folder / "figures").glob("*.svg"):
        figure = Elements()
        figure.feed(drawn.read_text(encoding="utf-8"))
        assert "script" not in figure.found


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x"])
@pytest.mark.parametrize("field", ["usecase", "run_id", "backend"])
def test_a_name_of_a_stranger_that_is_a_path_is_refused(
    tmp_path: Path, refused: Any, field: str, name: str
) -> None:
    root = tmp_path / "deep" / "down" / "results"
    write_session(root, "fine", **{field: name})
    before = sorted(tmp_path.rglob("*"))
    for what in ("plot", "report", "export", "show"):
        sentence = refused(what, "foreign", "--results", str(root))
        assert "is not a run's record: Expected `str` matching regex" in sentence
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_a_stranger_s_session_are_not_written_through(
    tmp_path: Path, said: Any, refused: Any
) -> None:
    root = tmp_path / "results"
    store = write_session(root, "fine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    (store.folder / "figures").symlink_to(outside)
    assert "figures is a link" in refused("plot", "foreign", "--results", str(root))
    (store.folder / "figures").unlink()
    (store.folder / "figures").mkdir()
    for name in ("figures/ctr.png", "figures/ctr.svg", "report.html", "runs.csv", "runs.json"):
        (store.folder / name).symlink_to(outside / "file")
    for arguments in (("plot",), ("report",), ("export",), ("export", "--to", "json")):
        assert said(*arguments, "--results", str(root))[0] == 0
    assert (outside / "file").read_text() == "precious"
    assert [path.name for path in outside.iterdir()] == ["file"]
