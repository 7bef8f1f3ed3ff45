"""Tables of a session as Markdown, which is also readable as plain text."""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from adabench.analysis.compare import ALPHA, Comparison
from adabench.analysis.load import SUCCESS, cell_labels, last_attempts
from adabench.analysis.sessions import Change
from adabench.results.record import Run
from adabench.results.store import SessionStore, write_atomically

_NAME = 22
"""Least number of characters at which a long name is wrapped."""

MEANINGS = {
    "n": "measured runs that were trained to their end",
    "not ok": "other measured runs, and runs that did not reach their target",
    "training (s)": "seconds of all epochs, without evaluation: mean [least, greatest]",
    "whole run (s)": "seconds from launch to exit",
    "best epoch": "epoch with the best quality on the validation split; the run's quality is the test "
    "quality after it",
    "reached after (s)": "training seconds until the end of the best epoch",
    "local": "pulled keys that were on the node: owned, or a replica",
    "sent (MB)": "bytes that all nodes sent during the epochs",
    "blocks": "blocks in which both backends were trained to their end",
    "ratio": "training time, or time to the target if there is one, divided by the baseline's in the same "
    "block: Hodges-Lehmann estimate",
    "interval": "exact interval of the ratio, corrected for the number of comparisons",
    "p": "two-sided p-value of the signed-rank test",
    "verdict": "faster, slower, equivalent or undecided, or the reason for no verdict",
}
"""Meanings of columns whose names are short."""


def session_table(runs: Sequence[Run], width: int | None = None) -> str:
    """Return the measurements, a row per cell: counts, mean [min, max] seconds, quality, traffic."""
    counted = [run for run in last_attempts(runs) if run.phase == "measured"]
    tables = []
    for usecase in dict.fromkeys(run.usecase for run in counted):
        names, rows = usecase_rows([run for run in counted if run.usecase == usecase])
        title = [f"{usecase}: mean [least, greatest] of n runs", *_data_facts(counted, usecase, width)]
        tables.append("\n".join(title) + "\n\n" + fitted(names, rows, width))
    return "\n\n".join(tables)


def usecase_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of one use case's measured runs."""
    rows = [
        _row(label, [run for run in runs if run.cell == cell]) for cell, label in cell_labels(runs).items()
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[row.get(name, "-") for name in names] for row in rows]


def comparison_table(comparisons: Sequence[Comparison], width: int | None = None) -> str:
    """Backends against the baseline, a table per use case and topology: ratio with its interval, verdict.

    The title of each table names the measure.
    """
    if not comparisons:
        return "there is nothing to compare with the baseline"
    lines = [
        "each block's ratio to the baseline's; below 1 is faster",
        "Hodges-Lehmann estimate with the exact interval of the signed-rank test;",
        f"at most {ALPHA:.0%} of sessions have a wrong verdict (Holm, comparisons: {len(comparisons)})",
    ]
    tables: dict[str, list[Comparison]] = {}
    for one in comparisons:
        title = f"{one.usecase}, {one.topology}: {one.measure} against {one.baseline}"
        tables.setdefault(title, []).append(one)
    for title, own in tables.items():
        names, rows = comparison_rows(own)
        rows = [[one.name, *row[2:]] for one, row in zip(own, rows, strict=True)]
        lines += ["", title, "", fitted(names[1:], rows, width)]
    few = [one for one in comparisons if one.verdict == "too few runs"]
    for one in comparisons:
        if one.reason is not None and one not in few:
            lines += ["", f"{one.usecase} {one.label}: {one.verdict}: {one.reason}"]
    if few:
        lines += ["", needs(few[0].needed, len(comparisons))]
    flagged = [run for one in comparisons for run in one.flagged]
    if flagged:
        lines += ["", f"far from the other runs of their cell, and kept: {', '.join(dict.fromkeys(flagged))}"]
    return "\n".join(lines)


def session_comparison_table(
    changes: Sequence[Change], before: str, after: str, width: int | None = None
) -> str:
    """The cells of two sessions: ratio of the later one's training time to the earlier one's, and verdict."""
    rows = [
        [
            one.label,
            one.usecase,
            f"{one.before}, {one.after}",
            f"{one.ratio:.3f}",
            f"{one.p:.4f}",
            one.verdict,
        ]
        for one in changes
    ]
    reasons = [f"{one.usecase} {one.label}: {one.verdict}: {one.reason}" for one in changes if one.reason]
    return "\n".join(
        [
            f"training time in {after}: its ratio to that in {before}; below 1 is faster",
            f"rank-sum test, unpaired: a change of the machine between the sessions affects the ratio "
            f"(Holm, comparisons: {len(changes)})",
            "",
            fitted(["cell", "use case", "runs", "ratio", "p", "verdict"], rows, width, keys=2),
            *(line for reason in reasons for line in ("", reason)),
        ]
    )


def comparison_json(found: Sequence[Comparison] | Sequence[Change], **names: str) -> str:
    """Comparisons as JSON; numbers that are not known are null."""
    comparisons = [{**msgspec.to_builtins(one), "verdict": one.verdict} for one in found]
    return msgspec.json.format(msgspec.json.encode({**names, "comparisons": comparisons}), indent=2).decode()


def needs(blocks: int, comparisons: int) -> str:
    """Return a message that states how many blocks a verdict needs."""
    several = f"{comparisons} comparisons" if comparisons > 1 else "one comparison"
    return f"a verdict on {several} needs {blocks} blocks: use -r {blocks} or more"


def fitted(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, keys: int = 1) -> str:
    """A Markdown table of at most `width` characters per line.

    Long names in the first columns are wrapped. If the other columns do not fit next to them, there are
    several tables, and each has the first columns.

    Parameters
    ----------
    names : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        Cells of each row.
    width : int, optional
        Characters per line; None for a table as wide as its cells.
    keys : int
        Number of first columns, which identify a row.
    """
    if width is None:
        return markdown(names, rows)
    widths = [max(len(line[column]) for line in [names, *rows]) + 3 for column in range(len(names))]
    longest = max(range(keys), key=widths.__getitem__)
    room = width - 1 - sum(widths) + widths[longest]
    widths[longest] = min(widths[longest], max(room, _NAME + 3))
    groups: list[list[int]] = [[]]
    for column in range(keys, len(names)):
        if groups[-1] and 1 + sum(widths[:keys]) + sum(widths[one] for one in [*groups[-1], column]) > width:
            groups.append([])
        groups[-1].append(column)
    tables = []
    for group in groups:
        shown = [*range(keys), *group]
        lines = [
            [line[column] for column in shown]
            for row in rows
            for line in _wrapped(row, longest, widths[longest] - 3)
        ]
        tables.append(markdown([names[column] for column in shown], lines))
    return "\n\n".join(tables)


def broken(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken at spaces, else after punctuation, else anywhere."""
    lines = [""]
    for word in re.findall(r"\S+\s?", text) if len(text) > width else [text]:
        parts = [word] if len(word.rstrip()) <= width else re.findall(r"[^,=:/-]+[,=:/-]*|[,=:/-]+", word)
        for part in parts:
            if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
            while len(lines[-1].rstrip()) > width:
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def _wrapped(row: Sequence[str], column: int, width: int) -> list[list[str]]:
    """The row, and a row for each further line of one of its cells."""
    first, *others = broken(row[column], width)
    blank = [""] * len(row)
    return [
        [*cells[:column], line, *cells[column + 1 :]]
        for cells, line in [(list(row), first), *((blank, line) for line in others)]
    ]


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters; excess characters are removed from the middle."""
    if len(text) <= width:
        return text
    left = max((width - 1) // 2, 0)
    right = max(width - 1 - left, 0)
    return text[:left] + "…" + text[len(text) - right :]


def comparison_rows(comparisons: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a comparison."""
    names = ["use case", "backend", "blocks", "ratio", "interval", "p", "verdict"]
    rows = [
        [
            one.usecase,
            one.label,
            f"{one.n}",
            "-" if math.isnan(one.ratio) else f"{one.ratio:.3f}",
            "-" if math.isnan(one.ratio_low) else f"[{one.ratio_low:.3f}, {one.ratio_high:.3f}]",
            f"{one.p:.4f}",
            one.verdict,
        ]
        for one in comparisons
    ]
    return names, rows


def write_table(store: SessionStore) -> Path:
    """Write the session's table into its folder; returns the file."""
    file = store.folder / "table.md"
    write_atomically(file, (session_table(store.runs()) + "\n").encode())
    return file


def runs_table(runs: Sequence[Run], width: int | None = None) -> str:
    """Return all runs of a session in the order they ended, with their cells; `width` is as in `fitted`."""
    labels = cell_labels(runs)
    rows = [
        [
            run.run_id,
            labels.get(run.cell, run.backend),  # A cell may have only a warm-up.
            run.usecase,
            "warm-up" if run.phase == "warmup" else f"{run.block + 1}",
            run.status,
            f"{run.seconds.total:.1f}",
        ]
        for run in runs
    ]
    return fitted(["run", "backend", "use case", "block", "status", "whole run (s)"], rows, width, keys=2)


def run_text(store: SessionStore, run: Run) -> str:
    """Everything recorded of a run, and the end of its log."""
    text = msgspec.json.format(msgspec.json.encode(run), indent=2).decode()
    log = store.logs / f"{run.run_id}.err"
    if not log.exists():
        return text
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([text, f"end of {log}:", *lines[-40:]])


def aligned(cells: Sequence[Sequence[str]], left: Collection[int] = (0,), gap: str = " ") -> list[str]:
    """Lines with aligned columns.

    Parameters
    ----------
    cells : sequence of sequence of str
        Cells of all rows, the head first.
    left : collection of int
        Columns that are aligned at the left; the others are aligned at the right.
    gap : str
        Text between two columns.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        gap.join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[column]) for line in [names, *rows]) for column in range(len(names))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join(
        [line(names), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]
    )


def _data_facts(runs: Sequence[Run], usecase: str, width: int | None) -> list[str]:
    """Return lines of the facts about the data of a use case's runs, each different set of facts once."""
    own = [run.data_facts for run in runs if run.usecase == usecase and run.data_facts]
    texts = [", ".join(f"{name} {value}" for name, value in facts.items()) for facts in own]
    return [line for text in dict.fromkeys(texts) for line in broken(f"data: {text}", width or len(text) + 6)]


def _row(label: str, runs: Sequence[Run]) -> dict[str, str]:
    done = [run for run in runs if run.status in SUCCESS]
    row = {"backend": label, "n": str(len(done))}
    others = [run.status for run in runs if run.status not in SUCCESS or run.status == "not_converged"]
    row["not ok"] = ", ".join(f"{others.count(status)} {status}" for status in dict.fromkeys(others)) or "-"
    row["training (s)"] = _spread([run.seconds.train for run in done if run.seconds.train is not None], ".2f")
    row["whole run (s)"] = _spread([run.seconds.total for run in done], ".2f")
    best = [run for run in done if run.best_epoch is not None and run.epoch_seconds]
    row["best epoch"] = _spread([float(run.best_epoch or 0) for run in best], ".0f")
    row["reached after (s)"] = _spread([seconds_to_best(run) for run in best], ".2f")
    for metric in dict.fromkeys(name for run in done for name in run.metrics):
        row[metric] = _spread([run.metrics[metric] for run in done if metric in run.metrics], ".4f")
    row["local"] = _local_share(done)
    sent = [run.counters["bytes_sent"] for run in done if "bytes_sent" in run.counters]
    row["sent (MB)"] = f"{fmean(sent) / 1e6:.1f}" if sent else "-"
    return row


def seconds_to_best(run: Run) -> float:
    """Return training seconds until the end of the epoch with the best validation."""
    return sum(run.epoch_seconds[: run.best_epoch])


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    return f"{fmean(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def _local_share(runs: Sequence[Run]) -> str:
    """Return the fraction of pulled keys that needed no message: keys owned or replicated here."""
    here = sum(run.counters.get(name, 0) for run in runs for name in ("pulled_local", "pulled_replica"))
    pulled = here + sum(run.counters.get("pulled_remote", 0) for run in runs)
    return f"{here / pulled:.1%}" if pulled else "-"
