"""``adabench history``: a cell's ratio to its baseline, session by session."""

import math
from typing import Annotated

import typer

from adabench.harness.cli.options import Results, results_root, terminal_width
from adabench.harness.cli.terminal import tell


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

    root = results_root(results)
    sessions = [(session, runs) for _, session, runs in readable_sessions(root)]
    moments = [
        one
        for one in history_of(sessions, baseline)
        if usecase in (None, one.comparison.usecase)
        and (backend is None or one.comparison.label.partition(" (")[0].partition(",")[0] == backend)
    ]
    if not moments:
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
