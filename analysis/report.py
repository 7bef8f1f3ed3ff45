"""A session's report: one self-contained HTML file for screens, phones and paper, in light and dark."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from adabench.analysis.budgets import draw_budgets
from adabench.analysis.compare import EQUIVALENCE, Comparison, compare
from adabench.analysis.figures import draw_bars
from adabench.analysis.life_of_keys import draw_life_of_run
from adabench.analysis.load import SUCCESS, last_attempts, traced_runs
from adabench.analysis.panels import draw_forest, draw_phases, draw_quality, draw_server
from adabench.analysis.style import adaptive_svg
from adabench.analysis.tables import MEANINGS, comparison_rows, usecase_rows
from adabench.analysis.thesis import draw_thesis
from adabench.results.record import RecordError, Run, Session
from adabench.results.store import SessionStore, write_atomically


def write_report(store: SessionStore, baseline: str | None = None) -> Path:
    """Write ``report.html`` into a session's folder.

    Raises
    ------
    RecordError
        If nothing was finished, or there is no such baseline.
    """
    file = store.folder / "report.html"
    lives = {usecase: draw_life_of_run(store, run) for usecase, run in traced_runs(store).items()}
    write_atomically(file, report_html(store.session(), store.runs(), baseline, lives).encode())
    return file


def report_html(
    session: Session,
    runs: Sequence[Run],
    baseline: str | None = None,
    lives: Mapping[str, Figure] | None = None,
) -> str:
    """The page as text, with the life of keys of some use cases; errors as in `write_report`."""
    counted = [run for run in last_attempts(runs) if run.phase == "measured"]
    finished = [run for run in counted if run.status in SUCCESS]
    if not finished:
        raise RecordError(f"session {session.session} has no finished run to report")
    # Comparisons of all use cases form one family.
    compared = _comparisons(counted, baseline, session.analyses)
    sections = [
        _section(
            usecase,
            [run for run in counted if run.usecase == usecase],
            [one for one in compared if one.usecase == usecase],
            (lives or {}).get(usecase),
        )
        for usecase in dict.fromkeys(run.usecase for run in finished)
    ]
    bad = [run for run in runs if run.status != "ok"]
    return rendered(
        "report.html.jinja",
        session=session,
        facts=_facts(session, len(finished), len(counted)),
        command=shlex.join(session.command),
        sections=sections,
        meanings=MEANINGS,
        equivalence=f"{EQUIVALENCE:.0%}",
        bad=[[run.run_id, run.backend, run.phase, run.status, run.reason or "-"] for run in bad],
        environment=[[name, _flat(value)] for name, value in session.environment.items()],
    )


def rendered(template: str, **values: object) -> str:
    """A page of a template of this folder, with the stylesheet."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    templates.filters["parts"] = _parts
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return templates.get_template(template).render(style=style, **values)


def _facts(session: Session, finished: int, measured: int) -> dict[str, object]:
    commit = "not in a clone"
    if session.git is not None:
        commit = session.git.commit[:12] + (" with uncommitted changes" if session.git.dirty else "")
    return {
        "Recorded": session.created_at.replace("T", " "),
        "Machine": session.machine,
        "Commit": commit,
        "Runs": f"{finished} finished of {measured} measured",
        "Seed": session.seed,
    }


def _section(
    usecase: str, runs: Sequence[Run], comparisons: Sequence[Comparison], life: Figure | None
) -> dict[str, object]:
    """Return the section of a use case: figures as SVG, None if there is nothing to draw."""
    metric = next(iter(next(run for run in runs if run.metrics).metrics))
    figures = {
        "bars": draw_bars(runs),
        "thesis": draw_thesis(runs),
        "forest": draw_forest(comparisons) if comparisons else None,
        "quality": draw_quality(runs, metric),
        "phases": draw_phases(runs),
        "budgets": draw_budgets(runs),
        "server": draw_server(runs),
        "life": life,
    }
    return {
        "usecase": usecase,
        "runs": _unbroken(*usecase_rows(runs)),
        "comparisons": comparison_rows(comparisons) if comparisons else None,
        "reasons": _reasons(comparisons),
        **{name: None if drawn is None else adaptive_svg(drawn) for name, drawn in figures.items()},
    }


def _reasons(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one text per reason for missing verdicts, which names all comparisons without a verdict."""
    labels: dict[str, list[str]] = {}
    for one in comparisons:
        if one.reason:
            labels.setdefault(f"{one.verdict}: {one.reason}.", []).append(one.label)
    return [f"{'; '.join(own)}: {reason}" for reason, own in labels.items()]


def _parts(text: str) -> list[str]:
    """Split a name after its punctuation: a line may break there, so that a column can be narrow."""
    return re.split(r"(?<=[,=:/\[])(?=[^\W\d])", text)


def _unbroken(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[list[str]]]:
    """Return a table with line breaks in cells before ranges, and not inside them."""
    return names, [
        [re.sub(r"(?<=\[\d)(.*), (?=.*\]$)", "\\1,\N{NO-BREAK SPACE}", cell) for cell in row] for row in rows
    ]


def _comparisons(runs: Sequence[Run], baseline: str | None, analyses: int) -> list[Comparison]:
    if len({run.cell for run in runs}) < 2:
        return []
    return compare(runs, baseline, analyses=analyses)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(_flat(one) for one in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not known" if value is None else f"{value}"
