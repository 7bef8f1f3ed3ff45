"""``adabench history``: a cell's ratio to its baseline, session by session."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import Results, recorded_root, terminal_width
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import unknown

if TYPE_CHECKING:
    from adabench.results.record import Run


def history(
    usecase: Annotated[
        str | None, typer.Option("--usecase", "-u", help="Use case to show; by default all.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help="Only this backend.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Baseline, as in `adabench compare`.")] = None,
    results: Results = None,
) -> None:
    """Show each cell's ratio to its baseline, session by session."""
    from adabench.analysis.sessions import history as history_of
    from adabench.analysis.tables import fitted
    from adabench.results.store import readable_sessions

    root = recorded_root(results)
    sessions = [(session, runs) for _, session, runs in readable_sessions(root)]
    moments = [
        one
        for one in history_of(sessions, baseline)
        if usecase in (None, one.comparison.usecase)
        and (backend is None or one.comparison.label.partition(" (")[0].partition(",")[0] == backend)
    ]
    if not moments:
        _check_names([run for _, runs in sessions for run in runs], usecase, backend, baseline)
        tell(f"no session in {root} compares such cells")
        return
    width = terminal_width()
    cells: dict[tuple[str, str, str], list[list[str]]] = {}
    for one in moments:
        compared = one.comparison
        low, high = compared.ratio_low, compared.ratio_high
        row = [
            one.created_at[:16].replace("T", " "),
            one.commit if width is None else one.commit[:8],
            f"{compared.n}",
            "-" if math.isnan(compared.ratio) else f"{compared.ratio:.3f}",
            "-" if math.isnan(low) else f"[{low:.3f}, {high:.3f}]",
            compared.verdict,
        ]
        cells.setdefault((compared.usecase, compared.label, compared.baseline), []).append(row)
    names = ["when", "commit", "blocks", "ratio", "interval", "verdict"]
    for (of, label, against), rows in cells.items():
        tell(f"{of}: {label} against {against}\n\n{fitted(names, rows, width)}\n")


def _check_names(runs: list[Run], usecase: str | None, backend: str | None, baseline: str | None) -> None:
    """Refuse names that are in no record."""
    backends = {run.backend for run in runs}
    of_baseline = baseline and re.split(r"[\[(,]", baseline)[0].strip()
    for what, given, known in (
        ("use case", usecase, {run.usecase for run in runs}),
        ("backend", backend, backends),
        ("baseline", of_baseline, backends),
    ):
        if given is not None and known and given not in known:
            raise unknown(what, given, known)
