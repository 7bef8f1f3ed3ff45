"""A session's report: one HTML file that needs nothing else, reads on a phone, prints, and follows light
and dark.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from adabench.analysis.budgets import draw_budgets
from adabench.analysis.compare import EQUIVALENCE, Comparison, compare
from adabench.analysis.figures import draw_bars
from adabench.analysis.life_of_keys import draw_life_of_run
from adabench.analysis.load import SUCCESS, last_attempts, traced_runs
from adabench.analysis.panels import draw_forest, draw_phases, draw_quality, draw_server
from adabench.analysis.style import adaptive_svg
from adabench.analysis.tables import comparison_rows, usecase_rows
from adabench.analysis.thesis import draw_thesis
from adabench.results.record import RecordError, Run, Session
from adabench.results.store import SessionStore, write_atomically

__all__ = ["report_html", "write_report"]

_STYLESHEET = Path(__file__).with_name("report.css")


def write_report(store: SessionStore, baseline: str | None = None) -> Path:
    """Write ``report.html`` into a session's folder.

    Parameters
    ----------
    store : SessionStore
    baseline : str, optional
        What the others are compared with; see `adabench.analysis.compare.compare`.

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
    sections = []
    # Of all use cases together: they are one family.
    compared = _comparisons(counted, baseline, session.looks)
    for usecase in dict.fromkeys(run.usecase for run in finished):
        own = [run for run in counted if run.usecase == usecase]
        life = (lives or {}).get(usecase)
        ours = [one for one in compared if one.usecase == usecase]
        sections.append(_usecase_section(usecase, own, ours, life))
    body = "\n".join([_head(session, counted), *sections, _not_ok(runs), _environment(session)])
    return _PAGE.format(
        title=html.escape(session.session), style=_STYLESHEET.read_text(encoding="utf-8"), body=body
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>AdaBench: {title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _head(session: Session, counted: Sequence[Run]) -> str:
    finished = sum(run.status in SUCCESS for run in counted)
    commit = "not in a clone"
    if session.git is not None:
        commit = session.git.commit[:12] + (" with uncommitted changes" if session.git.dirty else "")
    facts = {
        "Recorded": session.created_at.replace("T", " "),
        "Machine": session.machine,
        "Commit": commit,
        "Runs": f"{finished} finished of {len(counted)} measured",
        "Seed": str(session.seed),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items())
    command = html.escape(shlex.join(session.command))
    return (
        f"<header><h1>{html.escape(session.session)}</h1><dl>{listed}</dl>"
        f"<p>To repeat it:</p><pre><code>{command}</code></pre></header>"
    )


def _usecase_section(
    usecase: str, runs: Sequence[Run], comparisons: Sequence[Comparison], life: Figure | None
) -> str:
    parts = [f"<section><h2>{html.escape(usecase)}</h2>", _figure(adaptive_svg(draw_bars(runs)), _BARS)]
    parts.append(_table(*usecase_rows(runs)))
    beside = draw_thesis(runs)
    if beside is not None:
        parts += ["<h3>Beside the thesis</h3>", _figure(adaptive_svg(beside), _THESIS)]
    if comparisons:
        note = _RATIOS.format(percent=EQUIVALENCE)
        parts += ["<h3>Compared block by block</h3>", _figure(adaptive_svg(draw_forest(comparisons)), note)]
        parts.append(_table(*comparison_rows(comparisons)))
        reasons = [f"{one.label}: {one.verdict}: {one.reason}." for one in comparisons if one.reason]
        parts += [f"<p>{html.escape(reason)}</p>" for reason in reasons]
    metric = next(iter(next(run for run in runs if run.metrics).metrics))
    parts += ["<h3>Quality against time</h3>", _figure(adaptive_svg(draw_quality(runs, metric)), _QUALITY)]
    parts += ["<h3>Where the time goes</h3>", _figure(adaptive_svg(draw_phases(runs)), _PHASES)]
    budgets = draw_budgets(runs)
    if budgets is not None:
        parts += ["<h3>Where the time of a step goes</h3>", _figure(adaptive_svg(budgets), _BUDGETS)]
    server = draw_server(runs)
    if server is not None:
        parts += ["<h3>The parameter server</h3>", _figure(adaptive_svg(server), _SERVER)]
    if life is not None:
        parts += ["<h3>The life of keys</h3>", _figure(adaptive_svg(life), _LIFE)]
    return "\n".join([*parts, "</section>"])


_BARS = (
    "Training time of a run. Bars are means, whiskers the least and the greatest run, dots single "
    "runs. With n runs the whiskers cover the median with probability 1 &minus; "
    "2<sup>1&minus;n</sup>: 75 % for three runs, 96.9 % for six."
)
_THESIS = (
    "The thesis ran on another cluster, with more data and another parameter server: seconds cannot be "
    "compared, ratios can be looked at side by side."
)
_RATIOS = (
    "Hodges&ndash;Lehmann estimate, over blocks, of the ratio to the baseline's time in the same block; "
    "below 1 is faster. The interval is that of the signed-rank test, exact, at the level that Holm's "
    "correction leaves for all comparisons of the session together. The band is ± {percent:.0%}: an interval "
    "inside it means equivalent. No run is left out."
)
_QUALITY = (
    "On the test split, after each epoch. Thin lines are runs, thick ones medians; stars are the epochs that "
    "were best by validation, whose quality is the run's. Evaluation does not count as time."
)
_PHASES = "Setup is the start of processes, imports and reading data."
_BUDGETS = (
    "Wall time of a worker's training step, by what it did; what happened inside something else counts once, "
    "as the innermost. Hatched: CPU time of the process's other threads meanwhile."
)
_SERVER = "Sums over all nodes of a run; bars are means, dots single runs."
_LIFE = (
    "Five rows in an epoch of the warm-up, from often to rarely used ones: which node owned each, where "
    "there were replicas, and when the nodes had intent for it."
)


def _comparisons(runs: Sequence[Run], baseline: str | None, looks: int) -> list[Comparison]:
    if len({run.cell for run in runs}) < 2:
        return []
    return compare(runs, baseline, looks=looks)


def _not_ok(runs: Sequence[Run]) -> str:
    bad = [run for run in runs if run.status != "ok"]
    if not bad:
        return ""
    names = ["run", "backend", "phase", "status", "reason"]
    rows = [[run.run_id, run.backend, run.phase, run.status, run.reason or "-"] for run in bad]
    return f"<section><h2>Runs that did not end well</h2>{_table(names, rows)}</section>"


def _environment(session: Session) -> str:
    rows = [[name, _flat(value)] for name, value in session.environment.items()]
    return f"<section><h2>Environment</h2>{_table(['what', 'value'], rows)}</section>"


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(one)}" for name, one in value.items())
    if isinstance(value, list):
        return "; ".join(_flat(one) for one in value)
    return "not known" if value is None else f"{value}"


def _figure(svg: str, caption: str) -> str:
    return f'<figure><div class="chart">{svg}</div><figcaption>{caption}</figcaption></figure>'


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
