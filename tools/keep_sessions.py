"""Keeps sessions, and shows their figures in the documentation.

Usage: ``python tools/keep_sessions.py [NAME[=SESSION]…]``. For each name, such as `thesis`, the newest
session of this study in `results/sessions`, or the session after the equals sign, replaces
`results/reference/NAME`: its records, and the traces that are drawn. Then the program draws the figures and
tables of all kept sessions and the README's figure again, and writes the page that shows them,
`docs/reference/recorded-sessions.md`.
"""

import hashlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from adabench.analysis.compare import Comparison, compare
from adabench.analysis.figures import draw_figures
from adabench.analysis.load import last_attempts, traced_runs
from adabench.analysis.panels import draw_forest
from adabench.analysis.style import standalone_svg
from adabench.analysis.tables import write_table
from adabench.results.record import POLICY_LEFT_OUT, RecordError, Run, Session
from adabench.results.store import SessionStore, list_sessions, readable_sessions

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference"
SESSIONS = ROOT / "results" / "sessions"
PAGE = ROOT / "docs" / "reference" / "recorded-sessions.md"
HEADLINE = REFERENCE / "headline.svg"

CAPTIONS = {
    "default": "What `make run` shows: four strategies on two nodes",
    "thesis": (
        "The thesis's two figures with new measurements, and the thesis's bars next to ours as "
        "ratios to `prefetch` "
        "(`adabench run --study thesis`)"
    ),
    "ctr": "Automatic intent against `prefetch`, twelve blocks",
    "gcn-facebook": (
        "Automatic intent against `prefetch` on MUSAE Facebook (`adabench run -u 'gcn[graph=facebook]' …`)"
    ),
    "gcn-arxiv_like": (
        "Automatic intent against `prefetch` on a graph of the size of ogbn-arxiv with generated edges"
    ),
    "gcn-techniques": "Each technique on a graph of the size of ogbn-arxiv with generated edges, four nodes",
    "matrix": "Every strategy on one and two nodes, over fast and slow links (`adabench run --study matrix`)",
    "peers": (
        "This project's strategies, other systems, and plain PyTorch in one process "
        "(`adabench run --study peers`)"
    ),
    "links": (
        "Strategies and other systems between network namespaces, whose links delay all packets equally "
        "(`adabench run --study links`)"
    ),
    "namespaces": (
        "Automatic intent over loopback and over links between network namespaces "
        "(`adabench run --study namespaces`)"
    ),
    "latency": "Links slower than loopback, with and without intent (`adabench run --study latency`)",
    "scaling": "One and two nodes, with one core for each node (`adabench run --study scaling`)",
    "sampling": (
        "Negatives of a knowledge graph, drawn by the loader or by the server, four nodes "
        "(`adabench run --study sampling`)"
    ),
    "intent": (
        "Relocation and replication by intent, against no intent, only relocation and only replication "
        "(`adabench run --study intent`)"
    ),
    "policies": "Policies that imitate parameter servers of the literature (`adabench run --study policies`)",
    "placement": "Samples assigned to workers by the rows that they read (`adabench run --study placement`)",
    "placement-fb15k237": (
        "Samples of FB15k-237 assigned by the rows that they read "
        "(`adabench run -u 'kge[placement=random,greedy,…]' …`)"
    ),
    "simulated-cells": (
        "Five techniques in twelve settings, with [simulated and predicted times](predictions.md) "
        "(`adabench run --study predictions`)"
    ),
    "robust": (
        "Aggregation rules with two wrong workers of eight, and with none (`adabench run --study robust`)"
    ),
}

LONGEST_POLICY = 4096
"""Maximum number of characters of a policy that a kept run contains completely."""

HEADLINES = {
    "ctr": "click-through rate",
    "gcn-facebook": "graph network, MUSAE Facebook",
    "gcn-arxiv_like": "graph network, size of ogbn-arxiv",
}
"""Sessions that compare automatic intent with `prefetch`, and their names in the README's figure."""

ONLY = {"thesis": "thesis", "life": "default"}
"""Figures that are kept and shown for one session only."""

UNSHOWN = {"simulated-cells"}
"""Sessions with cells that differ too much for a bar chart. Another page draws them differently."""

INTRODUCTION = """\
<!-- written by tools/keep_sessions.py -->
# Recorded sessions

This page shows the figures of all recorded sessions, for readers who look up a measurement. Each figure is
drawn from the records of a session under `results/reference`. Each dot is a run, and the numbers below a bar
are the quality that the runs reached. `adabench report results/reference/NAME` writes a page for one session,
with all runs, intervals and the environment. [How runs are compared](../concepts/statistics.md) describes
when one bar counts as shorter than another. See also the [speed goals](../../results/reference/BENCH.md) and
[how cost grows with nodes](../../results/reference/SPEED.md)."""


def keep(
    name: str, sessions: Path = SESSIONS, reference: Path = REFERENCE, *, session: str | None = None
) -> SessionStore:
    """Copy a session, by default the newest one of the study `name`, and return the copy.

    Raises
    ------
    RecordError
        If there is no session, or if a planned run of it is missing, failed, or was skipped although the
        currently kept session has measured it.
    """
    known = readable_sessions(sessions)
    if session is not None:
        known = [one for one in known if one[0].folder.name == session]
        if not known:
            raise RecordError(f"there is no session {session} in {sessions}")
    else:
        known = [one for one in known if one[1].study["name"] == name]
        if not known:
            raise RecordError(
                f"there is no session of {name!r} in {sessions}: run `adabench run --study {name}`"
            )
    source, described, runs = known[-1]
    target = SessionStore(reference / name)
    measured = {(run.usecase, run.backend) for run in target.runs() if run.status == "ok"}
    last = {run.key: run for run in last_attempts(runs)}
    for planned in described.plan:
        run = last.get(planned.key)
        if run is None or run.status not in ("ok", "skipped"):
            what = "was not run" if run is None else f"ended as {run.status}: {run.reason}"
            raise RecordError(f"{source.folder.name}: {planned.backend}, block {planned.block}, {what}")
        if run.status == "skipped" and (run.usecase, run.backend) in measured:
            raise RecordError(
                f"{source.folder.name}: {run.backend} is skipped, and {target.folder} has measured it, which "
                f"would be lost: {run.reason}"
            )
    shutil.rmtree(target.folder, ignore_errors=True)
    target.folder.mkdir()
    for run in runs:
        target.append(_shortened(run))
    kept = msgspec.json.encode(described).decode()
    for folder in described.study["data"].values():  # the folder of the data is specific to this machine
        kept = kept.replace(folder, Path(folder).name)
    target.describe(msgspec.json.decode(kept, type=Session))
    for run in traced_runs(source).values():
        target.traces.mkdir(exist_ok=True)
        shutil.copy(source.trace_file(run.run_id), target.traces)
    target.compress()
    draw(target)
    return target


def _shortened(run: Run) -> Run:
    """Return a run without its policy if that lists thousands of rows, which takes megabytes for each run."""
    size = len(run.policy or "")
    if size <= LONGEST_POLICY:
        return run
    digest = hashlib.sha256((run.policy or "").encode()).hexdigest()
    return msgspec.structs.replace(run, policy=f"{POLICY_LEFT_OUT}: {size} characters, sha256:{digest}")


def draw(store: SessionStore) -> None:
    """Write the shown figures of a kept session, as SVG only, and its table."""
    shutil.rmtree(store.folder / "figures", ignore_errors=True)
    for figure in draw_figures(store) if store.folder.name not in UNSHOWN else ():
        if figure.suffix != ".svg" or not _is_shown(figure.stem, store.folder.name):
            figure.unlink()
    write_table(store)


def page(reference: Path = REFERENCE) -> str:
    """Return the documentation's page with the figures of all kept sessions."""
    names = [store.folder.name for store in list_sessions(reference)]
    names.sort(key=lambda name: list(CAPTIONS).index(name) if name in CAPTIONS else len(CAPTIONS))
    return "\n\n".join([INTRODUCTION, *(_section(SessionStore(reference / name)) for name in names)]) + "\n"


def headline(reference: Path = REFERENCE) -> list[Comparison]:
    """Return comparisons of automatic intent with `prefetch`, one per session, which the README shows."""
    found = []
    for name, words in HEADLINES.items():
        (one,) = compare(SessionStore(reference / name).runs(), "prefetch")
        found.append(replace(one, label=words))
    return found


def main(names: list[str]) -> int:
    refused = False
    for argument in names:
        name, _, session = argument.partition("=")
        try:
            print(keep(name, session=session or None).folder.relative_to(ROOT))
        except RecordError as error:
            refused = True
            print(f"error: {error}", file=sys.stderr)
    for store in list_sessions(REFERENCE):
        draw(store)
    PAGE.write_text(page(), encoding="utf-8")
    HEADLINE.write_text(standalone_svg(draw_forest(headline())), encoding="utf-8")
    return 2 if refused else 0


def _is_shown(stem: str, session: str) -> bool:
    """Whether the page shows a figure of a session, by the name of the figure's file."""
    return all(name == session or not stem.endswith(f"-{kind}") for kind, name in ONLY.items())


def _section(store: SessionStore) -> str:
    name, session = store.folder.name, store.session()
    link = f"../../results/reference/{name}"
    stems = sorted(file.stem for file in (store.folder / "figures").glob("*.svg"))
    facts = f"{_facts(session)} ([table]({link}/table.md))."
    images = [f"![{stem}: {_shown(stem)} strategy]({link}/figures/{stem}.svg)" for stem in stems]
    return "\n".join([f"## {CAPTIONS.get(name, name)}", "", facts + _verdict(store), "", *images])


def _verdict(store: SessionStore) -> str:
    """Return the result of a session that compares one backend with `prefetch`."""
    runs = store.runs()
    if "prefetch" not in {run.backend for run in runs} or len({run.cell for run in runs}) != 2:
        return ""
    (one,) = compare(runs, "prefetch")
    interval = f"{one.ratio:.3f} [{one.ratio_low:.3f}, {one.ratio_high:.3f}]"
    return f" `{one.label}` ÷ `prefetch`: {interval}, {one.verdict}."


def _shown(stem: str) -> str:
    return "CPU time and speed of each" if stem.endswith("-costs") else "training time per"


def _facts(session: Session) -> str:
    commit = f", commit {session.git.commit[:12]}" if session.git is not None else ""
    repeats = session.study["repeats"]
    runs = f"{repeats} {'runs' if repeats > 1 else 'run'} per cell"
    return f"{runs}, {session.created_at[:10]}, {session.machine}{commit}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
