"""One sortable HTML page over all sessions: a row for each cell."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from adabench.analysis.compare import Comparison, compare
from adabench.analysis.load import SUCCESS, cell_labels, last_attempts
from adabench.analysis.report import rendered
from adabench.results.record import RecordError, Run, Session
from adabench.results.store import SessionStore, readable_sessions, write_atomically

COLUMNS = {
    "session": "name of the session; a link leads to its report",
    "recorded": "time at which the session began, UTC",
    "machine": "processor",
    "use case": "training task",
    "backend": "strategy or system, with the parameters that differ in the session",
    "nodes": "node processes",
    "workers": "worker threads per node",
    "network": "links between nodes",
    "runs": "measured runs that were trained to their end",
    "training (s)": "mean training time of a run",
    "quality": "mean of the use case's metric on the test split",
    "ratio": "training time, or time to the target if there is one, divided by the baseline's in the same "
    "block; below 1 is faster",
    "verdict": "outcome of the comparison with the baseline",
}
"""Column -> meaning."""

Cell = tuple[str, str]
"""Text of a table's cell, and the value that it is sorted by."""


def write_overview(root: Path) -> Path:
    """Write ``sessions.html`` into the folder of the sessions.

    Raises
    ------
    RecordError
        If no session there has a finished run.
    """
    sessions = readable_sessions(root)
    links = {store.folder.name: f"{store.folder.name}/report.html" for store, _, _ in sessions}
    links = {name: link for name, link in links.items() if (root / link).is_file()}
    file = root / "sessions.html"
    write_atomically(file, overview_html(sessions, links).encode())
    return file


def overview_html(
    sessions: Sequence[tuple[SessionStore, Session, Sequence[Run]]], links: dict[str, str]
) -> str:
    """The page as text; `links` has the reports of some sessions. Errors as in `write_overview`."""
    rows = [row for store, session, runs in sessions for row in _rows(store.folder.name, session, runs)]
    if not rows:
        raise RecordError("no session has a finished run: run one with `adabench run`")
    return rendered("overview.html.jinja", columns=COLUMNS, rows=rows, links=links, count=len(sessions))


def _rows(name: str, session: Session, runs: Sequence[Run]) -> list[list[Cell]]:
    counted = [run for run in last_attempts(runs) if run.phase == "measured"]
    labels = cell_labels(counted)
    compared = {one.cell: one for one in _comparisons(counted, session.analyses)}
    baselines = {(one.usecase, one.baseline) for one in compared.values()}
    rows = []
    for cell, label in labels.items():
        own = [run for run in counted if run.cell == cell and run.status in SUCCESS]
        if not own:
            continue
        one = own[0]
        verdict = "baseline" if (one.usecase, label) in baselines else "-"
        found = compared.get(cell)
        texts = [
            *(name, session.created_at[:16].replace("T", " "), str(session.environment.get("cpu", "-"))),
            *(one.usecase, label),
        ]
        rows.append(
            [
                *((text, text) for text in texts),
                *((f"{number}", f"{number}") for number in (one.nodes, one.workers)),
                (one.network, one.network),
                (f"{len(own)}", f"{len(own)}"),
                _number(_mean([run.seconds.train for run in own]), ".2f"),
                _quality(own),
                _number(math.nan if found is None else found.ratio, ".3f"),
                (verdict, verdict) if found is None else (found.verdict, found.verdict),
            ]
        )
    return rows


def _comparisons(runs: Sequence[Run], analyses: int) -> list[Comparison]:
    """Comparisons with the session's default baseline; none if there is nothing to compare."""
    try:
        return compare(runs, analyses=analyses)
    except RecordError:
        return []


def _quality(runs: Sequence[Run]) -> Cell:
    """The use case's metric, which is the first one in older records, with its name."""
    name = runs[0].metric or next(iter(runs[0].metrics), "")
    text, value = _number(_mean([run.metrics.get(name) for run in runs]), ".4f")
    return (f"{name} {text}", value) if value else (text, value)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan


def _number(value: float, form: str) -> Cell:
    """A number, or a dash that is sorted before all numbers."""
    return ("-", "") if math.isnan(value) else (f"{value:{form}}", f"{value!r}")
