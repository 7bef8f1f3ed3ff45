"""The page that lists the outcome of each operation on a table.

``python -m tests.operations.page`` writes the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from tests.operations.cases import OPERATIONS, cases_of
from tests.operations.trials import Trial, try_cases

__all__ = ["PAGE", "listed", "outcomes", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operations.md"

INTRODUCTION = """\
This page is for users who check whether an operation of PyTorch can be applied to a table. It lists the
{count} operations of PyTorch {version} that accept float32 tensors (`op_db`). Each operation ran with
plain tensors, and with a table in place of each tensor and of each result (`out=`). Views of a table
took part too: rows, one row, one column, one element, the transposed table and another shape. Results,
gradients of finite values, the table afterwards and the random numbers are equal, or the operation is
refused with an error. Uses that PyTorch itself refuses are left out. The
[contract](../concepts/contract.md) explains the rules."""
HEADINGS = {
    "read": "Reading a table",
    "second derivative": "Second derivatives",
    "write to the result": "Writing to a result that is a view of a table",
    "in place": "Changing a table in place",
    "out": "A table as `out=`",
}
"""Headings of the page by the use of the table."""
MEANINGS = {
    "rows": "Equal; pulls only the rows that are read",
    "equal": "Equal",
    "materialised": "Equal; pulls the whole table",
    "partly refused": "Equal, or refused for some arguments",
    "refused": "Refused",
}
"""Descriptions of outcomes."""

Outcomes = Mapping[str, str]
"""Outcome of one operation by the use of the table."""


def outcomes(trials: Iterable[Trial]) -> Outcomes:
    """Outcome by use; uses that PyTorch itself refuses are left out."""
    grouped: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.outcome != "plain refuses":
            grouped.setdefault(trial.case.use, []).append(trial)
    return {use: _outcome(use, group) for use, group in grouped.items()}


def _outcome(use: str, trials: list[Trial]) -> str:
    kinds = {trial.outcome for trial in trials}
    if "refused" in kinds:
        return "refused" if kinds == {"refused"} else "partly refused"
    if use != "read":
        return "equal"
    return "materialised" if all(trial.whole for trial in trials) else "rows"


def render(found: Mapping[str, Outcomes]) -> str:
    """The page for the outcomes of all operations."""
    parts = [
        "# Operations on tables",
        INTRODUCTION.format(count=len(found), version=torch.__version__.split("+")[0]).replace("\n", " "),
        "The command `python -m tests.operations.page` writes this page, and `tests/operations` checks it.",
    ]
    for use, heading in HEADINGS.items():
        parts.append(f"## {heading}")
        for outcome, meaning in MEANINGS.items():
            names = sorted(name for name, uses in found.items() if uses.get(use) == outcome)
            if names:
                text = f"**{meaning}** ({len(names)}): " + ", ".join(f"`{name}`" for name in names) + "."
                parts.append(text)
    return "\n\n".join(parts) + "\n"


def listed(page: str) -> dict[str, dict[str, str]]:
    """Outcomes by operation and use, as `render` writes them."""
    found: dict[str, dict[str, str]] = {}
    uses = {heading: use for use, heading in HEADINGS.items()}
    kinds = {meaning: outcome for outcome, meaning in MEANINGS.items()}
    for section in page.split("\n## ")[1:]:
        heading, *groups = section.strip().split("\n\n")
        for group in groups:
            match = re.match(r"\*\*(.*?)\*\*", group)
            assert match is not None, group
            for name in re.findall(r"`([^`]+)`", group):
                found.setdefault(name, {})[uses[heading]] = kinds[match[1]]
    return found


if __name__ == "__main__":
    PAGE.write_text(render({name: outcomes(try_cases(list(cases_of(name)))) for name in OPERATIONS}))
