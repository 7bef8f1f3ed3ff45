"""Keeps sessions and shows their figures in the README.

``python results/reference/keep.py [NAME[=SESSION]…]``: for each name, such as `thesis`, the newest session in
`results/sessions` that is called so, or the one after the equals sign, replaces `results/reference/NAME`: its
records, and the traces that are drawn. Then the figures and tables of all kept sessions are drawn anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from adabench.analysis.compare import compare
from adabench.analysis.figures import draw_figures
from adabench.analysis.load import last_attempts, traced_runs
from adabench.analysis.tables import write_table
from adabench.results.record import RecordError, Session
from adabench.results.store import SessionStore, list_sessions, readable_sessions

__all__ = ["keep", "readme_with_figures"]

REFERENCE = Path(__file__).resolve().parent
SESSIONS = REFERENCE.parent / "sessions"
README = REFERENCE.parents[1] / "README.md"
BEGIN = "<!-- recorded sessions: written by results/reference/keep.py -->"
END = "<!-- end of recorded sessions -->"

CAPTIONS = {
    "default": "What `make run` shows: four strategies on two nodes",
    "thesis": (
        "The thesis's two figures, and its own bars beside ours as ratios to `prefetch` "
        "(`adabench run --study thesis`)"
    ),
    "ctr": "Automatic intent against `prefetch`, twelve blocks",
    "gcn-facebook": "The same on MUSAE Facebook (`adabench run -u 'gcn[graph=facebook]' …`)",
    "gcn-arxiv_like": "The same on a graph of the size of ogbn-arxiv with generated edges",
    "gcn-techniques": "Each technique on a graph of the size of ogbn-arxiv with generated edges, four nodes",
    "matrix": "Every strategy on one and two nodes, over fast and slow links (`adabench run --study matrix`)",
    "peers": "Ours against what else there is, and the floor (`adabench run --study peers`)",
    "links": (
        "The same between network namespaces, whose links delay everybody's packets alike "
        "(`adabench run --study links`)"
    ),
    "latency": "Links slower than loopback, with intent and without (`adabench run --study latency`)",
    "scaling": "One and two nodes with a core each (`adabench run --study scaling`)",
}

ONLY = {"thesis": "thesis", "life": "default"}
"""Figures that the README shows of one session only."""


def keep(
    name: str, sessions: Path = SESSIONS, reference: Path = REFERENCE, *, session: str | None = None
) -> SessionStore:
    """Copy a session, by default the newest of the study called like the copy; returns the copy.

    Raises
    ------
    RecordError
        If there is none, or a planned run of it is missing or ended badly.
    """
    known = [store for store, _, _ in readable_sessions(sessions)]
    if session is not None:
        known = [store for store in known if store.folder.name == session]
        if not known:
            raise RecordError(f"there is no session {session} in {sessions}")
    else:
        known = [store for store in known if store.session().study["name"] == name]
        if not known:
            raise RecordError(
                f"there is no session of {name!r} in {sessions}: run `adabench run --study {name}`"
            )
    source = known[-1]
    runs = {(run.cell, run.phase, run.block): run for run in last_attempts(source.runs())}
    for planned in source.session().plan:
        run = runs.get(planned.key)
        if run is None or run.status not in ("ok", "skipped"):
            what = "was not run" if run is None else f"ended as {run.status}: {run.reason}"
            raise RecordError(f"{source.folder.name}: {planned.backend}, block {planned.block}, {what}")
    target = SessionStore(reference / name)
    shutil.rmtree(target.folder, ignore_errors=True)
    target.folder.mkdir()
    shutil.copy(source.runs_file, target.folder)
    kept = msgspec.json.encode(source.session()).decode()
    for folder in source.session().study["data"].values():  # where the data lay is this machine's business
        kept = kept.replace(folder, Path(folder).name)
    target.describe(msgspec.json.decode(kept, type=Session))
    for run in traced_runs(source).values():
        target.traces.mkdir(exist_ok=True)
        shutil.copy(source.trace_file(run.run_id), target.traces)
    draw(target)
    return target


def draw(store: SessionStore) -> None:
    """Write a kept session's figures, as SVG only, and its table."""
    shutil.rmtree(store.folder / "figures", ignore_errors=True)
    for figure in draw_figures(store):
        if figure.suffix != ".svg":
            figure.unlink()
    write_table(store)


def readme_with_figures(text: str, reference: Path = REFERENCE) -> str:
    """The README's text with the figures of all kept sessions between its two marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    names = sorted(file.parent.name for file in reference.glob("*/session.json"))
    names.sort(key=lambda name: list(CAPTIONS).index(name) if name in CAPTIONS else len(CAPTIONS))
    shown = [_section(SessionStore(reference / name)) for name in names]
    return before + "\n\n".join([BEGIN, *_goals(reference / "BENCH.md"), *shown, END]) + after


def main(names: list[str]) -> int:
    try:
        for argument in names:
            name, _, session = argument.partition("=")
            print(keep(name, session=session or None).folder.relative_to(REFERENCE.parents[1]))
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for store in list_sessions(REFERENCE):
        draw(store)
    README.write_text(readme_with_figures(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _goals(page: Path) -> list[str]:
    """The first table of the page that `make bench` writes, if there is one."""
    if not page.is_file():
        return []
    blocks = page.read_text(encoding="utf-8").split("\n\n")
    table = next(block for block in blocks if block.startswith("|"))
    link = "results/reference/BENCH.md"
    return [
        f"**Goals of speed (`make bench`).** Reasons and what each system took: [{link}]({link}).",
        table,
    ]


def _section(store: SessionStore) -> str:
    name, session = store.folder.name, store.session()
    link = f"results/reference/{name}"
    stems = sorted(file.stem for file in (store.folder / "figures").glob("*.svg"))
    special = [f"-{one}" for one, kept_by in ONLY.items() if kept_by != name]
    stems = [stem for stem in stems if not stem.endswith(tuple(special))]
    facts = f"**{CAPTIONS.get(name, name)}.** {_facts(session)} ([table]({link}/table.md))."
    images = [f"![{stem}: {_shown(stem)} strategy]({link}/figures/{stem}.svg)" for stem in stems]
    return "\n".join([facts + _verdict(store), "", *images])


def _verdict(store: SessionStore) -> str:
    """What came of a session that was made to compare one backend with `prefetch`."""
    runs = store.runs()
    if "prefetch" not in {run.backend for run in runs} or len({run.cell for run in runs}) != 2:
        return ""
    (one,) = compare(runs, "prefetch")
    interval = f"{one.ratio:.3f} [{one.ratio_low:.3f}, {one.ratio_high:.3f}]"
    return f" `{one.label}` ÷ `prefetch`: {interval}, {one.verdict}."


def _shown(stem: str) -> str:
    return "CPU time and speed of each" if stem.endswith("-costs") else "training time a"


def _facts(session: Session) -> str:
    commit = f", commit {session.git.commit[:12]}" if session.git is not None else ""
    return f"{session.study['repeats']} runs each, {session.created_at[:10]}, {session.machine}{commit}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
