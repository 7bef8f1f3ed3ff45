"""The page that lists the outcome of each operation on a table.

``python -m tests.operations.page`` writes the page.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from tests.operations.cases import OPERATIONS, cases_of
from tests.operations.trials import Trial, try_cases

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operations.md"

INTRODUCTION = """\
This page is for users who check whether an operation of PyTorch can be applied to a table. It lists the
{count} operations of PyTorch {version} that accept float32 tensors (`op_db`). Each operation was executed
with plain tensors, and then with a table in place of each argument and of each result (`out=`). The same was
done with views of a table: rows, one row, one column, one element, the transposed table and another shape.
*Equal* means that results, gradients of finite values, the table afterwards and the random numbers are as
with plain tensors. *Refused* means an error. Uses that PyTorch itself refuses are left out."""
HEADINGS = {
    "read": "Reading a table",
    "second derivative": "Second derivatives",
    "write to the result": "Writing to a result that is a view of a table",
    "in place": "Changing a table in place",
    "out": "A table as `out=`",
}
"""Headings of the page by the use of the table."""
MEANINGS = {
    "rows": "equal; pulls only the rows that it needs",
    "whole": "equal; pulls all rows of the table or view",
    "partly refused": "equal, or refused for some arguments",
    "refused": "refused",
}
"""Descriptions of outcomes; for uses other than reading, equal outcomes are not listed."""

LOOKUPS = {"__getitem__", "index_select"}
"""Lookups whose samples in PyTorch's list name all rows of a table, or need a table of three dimensions."""

Outcomes = Mapping[str, str]
"""Outcome of one operation by the use of the table."""


def outcomes(name: str, trials: Iterable[Trial]) -> Outcomes:
    """Outcomes to list, by use; uses that PyTorch itself refuses are left out."""
    grouped: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.outcome != "plain refuses":
            grouped.setdefault(trial.case.use, []).append(trial)
    found = {use: _outcome(group) for use, group in grouped.items()}
    if name in LOOKUPS and found["read"] == "whole":
        found["read"] = "rows"
    return {use: outcome for use, outcome in found.items() if use == "read" or "refused" in outcome}


def _outcome(trials: list[Trial]) -> str:
    kinds = {trial.outcome for trial in trials}
    if "refused" in kinds:
        return "refused" if kinds == {"refused"} else "partly refused"
    direct = [trial for trial in trials if trial.case.direct]
    return "whole" if all(trial.whole for trial in direct) else "rows"


def render(found: Mapping[str, Outcomes]) -> str:
    """The page for the outcomes of all operations."""
    parts = [
        "# Operations on tables",
        INTRODUCTION.format(count=len(found), version=torch.__version__.split("+")[0]).replace("\n", " "),
        "The command `python -m tests.operations.page` writes this page, and `tests/operations` checks it.",
    ]
    for use, heading in HEADINGS.items():
        parts.append(f"## {heading}")
        if use != "read":
            parts.append("All operations that are not listed here are equal.")
        rows = ["| outcome | operations |", "|---|---|"]
        for outcome, meaning in MEANINGS.items():
            names = sorted(name for name, uses in found.items() if uses.get(use) == outcome)
            if names:
                rows.append(f"| {meaning} | {', '.join(f'`{name}`' for name in names)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def listed(page: str) -> dict[str, dict[str, str]]:
    """Outcomes by operation and use, as `render` writes them."""
    found: dict[str, dict[str, str]] = {}
    uses = {heading: use for use, heading in HEADINGS.items()}
    outcome_of = {meaning: outcome for outcome, meaning in MEANINGS.items()}
    for section in page.split("\n## ")[1:]:
        heading, _, rest = section.partition("\n")
        for meaning, names in re.findall(r"^\| (.*?) \| (`.*`) \|$", rest, re.MULTILINE):
            for name in re.findall(r"`([^`]+)`", names):
                found.setdefault(name, {})[uses[heading]] = outcome_of[meaning]
    return found


if __name__ == "__main__":
    found = {name: outcomes(name, try_cases(list(cases_of(name)))) for name in OPERATIONS}
    PAGE.write_text(render(found), encoding="utf-8")
