"""Makes a program that shows a bug as small as possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz_semantics.outcome import Outcome
from tests.fuzz_semantics.program import Program, Statement

__all__ = ["shrunk"]

RUNS = 400
"""Largest number of runs for one program."""


def shrunk(program: Program, outcome: Outcome, judge: Callable[[Program], Outcome]) -> Program:
    """A smaller program with the same kind of bug.

    The error stays at the same place in the source of the wrapper.
    """
    runs = 0
    progress = True
    while progress:
        progress = False
        for candidate in simpler(program):
            if runs >= RUNS:
                return program
            runs += 1
            other = judge(candidate)
            if (other.kind, other.origin) == (outcome.kind, outcome.origin):
                program, progress = candidate, True
                break
    return program


def simpler(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, the smallest first."""
    statements = program.statements
    size = len(statements) // 2
    while size > 1:
        for start in range(0, len(statements), size):
            yield without(program, statements[start : start + size])
        size //= 2
    for one in statements:
        yield without(program, (one,))
    if program.epochs > 1:
        yield replace(program, epochs=1)
    if program.lookahead is not None:
        yield replace(program, lookahead=None)
    if program.lookahead not in (None, 1):
        yield replace(program, lookahead=1)
    if program.iterate != (plain := "for ids, labels in loader:"):
        yield replace(program, iterate=plain)
    for number, one in enumerate(statements):
        for text in simpler_texts(one):
            changed = Statement(one.section, text, one.defines)
            yield program.with_statements((*statements[:number], changed, *statements[number + 1 :]))


def without(program: Program, removed: tuple[Statement, ...]) -> Program:
    """The program without some statements, and without all that uses a name that they define."""
    gone = set(map(id, removed))
    names = [one.defines for one in removed if one.defines]
    uses = (r"(?<![\w'])(?:self|net|model)\.{0}\b", r"^{0}\b", r"\({0}\b", r"\b{0}\.\w+\(")
    used = re.compile("|".join(use.format(name) for name in names for use in uses))
    kept = tuple(
        one for one in program.statements if id(one) not in gone and not (names and used.search(one.text))
    )
    tables = tuple(name for name in program.tables if name not in names)
    return replace(program, statements=kept, tables=tables)


SIMPLE = (
    ("loader", "loader = list(zip(inputs.split(4), targets.split(4)))"),
    ("loss", "loss.backward()"),
    ("data", "inputs, targets = torch.randint(0, 10, (4, 4)), torch.rand(4, 1)"),
)


def simpler_texts(one: Statement) -> Iterator[str]:
    """Simpler forms of a statement: without a condition, a line or an argument, or its simplest kind."""
    lines = one.text.splitlines()
    if lines[0].startswith("if step") and len(lines) > 1:
        yield "\n".join(line[4:] for line in lines[1:])
        for number in range(2, len(lines)):
            yield "\n".join(lines[:number] + lines[number + 1 :])
    elif len(lines) > 1:
        for number in range(len(lines)):
            yield "\n".join(lines[:number] + lines[number + 1 :])
    if one.section == "optimizers":
        rule = re.sub(r"torch\.optim\.\w+\((.*), lr=[^\[\]{}]*\)$", r"torch.optim.SGD(\1, lr=0.1)", one.text)
        if len(rule) < len(one.text):
            yield rule
    for section, text in SIMPLE:
        if one.section == section and len(text) < len(one.text):
            yield text
    for match in re.finditer(r", \w+=(?:[^,()\[\]]+|\([^()]*\))(?=[,)])", one.text):
        if match.group().startswith((", lr=", ", batch_size=")):
            continue
        yield one.text[: match.start()] + one.text[match.end() :]
    if ";" in one.text:
        yield from one.text.split("; ")
