"""A user's program: a list of statements, each in a section of one fixed skeleton."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["ROWS", "Program", "Statement"]

ROWS = 10
"""Number of rows of each table."""

IMPORTS = """\
import copy, io, random
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

import autoada as aa

"""

SKELETON = """\
def program(wrapped, see):
    random.seed({seed}), np.random.seed({seed}), torch.manual_seed({seed})
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            {init}
            self.out = nn.Linear(3, 1)
        def forward(self, ids):
            h = torch.zeros(len(ids), 3)
            {forward}
            return torch.tanh(self.out(h) * 0.3)
    {data}
    net = model = Net()
    {made}
    {optimizers}
    {before}
    if wrapped:
        model = aa.AdaModel(net, [{names}], tables={tables}{options})
    {after}
    {loader}
    step = 0
    for epoch in range({epochs}):
        {iterate}
            {top}
            loss = (model(ids) - labels).square().mean()
            {loss}
            {update}
            {bottom}
            step += 1
        {between}
    {end}
    if wrapped:
        model.close()
"""


class Statement(NamedTuple):
    """One statement of a program.

    Attributes
    ----------
    section : str
        Name of the place in the skeleton.
    text : str
        Source, of one or several lines.
    defines : str
        Name that other statements use; they are removed with this one.
    """

    section: str
    text: str
    defines: str = ""


@dataclass(frozen=True)
class Program:
    """A program that can be run plain and wrapped.

    Attributes
    ----------
    seed : int
        Seed of all random generators at the start of the program.
    statements : tuple of Statement
        Statements in the order of their execution within a section.
    iterate : str
        Head of the loop over batches.
    epochs : int
        Number of passes.
    lookahead : int or str or None
        Lookahead of the loader when it is wrapped; None leaves the loader as it is.
    tables : tuple of str
        Names for the argument ``tables`` of `autoada.AdaModel`.
    nodes : int
        Number of nodes for the wrapped program.
    """

    seed: int
    statements: tuple[Statement, ...]
    iterate: str = "for ids, labels in loader:"
    epochs: int = 1
    lookahead: int | str | None = None
    tables: tuple[str, ...] = ()
    nodes: int = 1

    def with_statements(self, statements: tuple[Statement, ...]) -> Program:
        return replace(self, statements=statements)

    def source(self) -> str:
        """Source of a function ``program(wrapped, see)``, which uses `rank` and `policy` on two nodes."""
        lines = []
        for line in SKELETON.splitlines():
            place = line.strip()
            section = place[1:-1]
            if place == "{iterate}":
                lines.append(line.replace(place, self.iterate))
            elif place.startswith("{") and section.isidentifier():
                indent = line[: -len(place)]
                lines += [textwrap.indent(text, indent) for text in self._texts(section)]
            else:
                lines.append(
                    line.format(
                        seed=self.seed,
                        epochs=self.epochs,
                        names=", ".join(self.optimizers()),
                        tables=list(self.tables) or None,
                        options="" if self.nodes == 1 else ", policy=policy",
                    )
                    if "{" in line
                    else line
                )
        return "\n".join(lines) + "\n"

    def script(self) -> str:
        """A complete script that runs the program both ways and prints each difference."""
        return (
            IMPORTS
            + "from tests.fuzz_semantics.outcome import report\n\n\n"
            + self.source()
            + "\n\nreport(program)\n"
        )

    def optimizers(self) -> list[str]:
        """Names of the optimizers that are passed to the wrapper."""
        return [one.defines for one in self.statements if one.section == "optimizers" and one.defines]

    def _texts(self, section: str) -> Iterator[str]:
        for one in self.statements:
            if one.section == section:
                yield one.text
        if section == "top" and self.nodes > 1:
            yield "if wrapped:\n    ids, labels = ids[rank::2], labels[rank::2]"
        if section == "loader" and self.lookahead is not None:
            how = "" if self.lookahead == "auto" else f", {self.lookahead}"
            yield f"loader = aa.AdaDataLoader(loader{how}, model=model) if wrapped else loader"


_numbers = itertools.count()


def compiled(source: str, **names: Any) -> Callable[[bool, Callable[[Any], None]], None]:
    """Return the function ``program`` of a source, with lines that tracebacks and `inspect` can show.

    Other `names` are global variables of the source.
    """
    name = f"<program {next(_numbers) % 50}>"
    full = IMPORTS + source
    linecache.cache[name] = (len(full), None, full.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "fuzzed_program", **names}
    exec(_imports(), namespace)
    code: CodeType = compile("\n" * IMPORTS.count("\n") + source, name, "exec")
    exec(code, namespace)
    function: Callable[[bool, Callable[[Any], None]], None] = namespace["program"]
    return function


_compiled_imports: list[CodeType] = []


def _imports() -> CodeType:
    if not _compiled_imports:
        _compiled_imports.append(compile(IMPORTS, "<imports>", "exec"))
    return _compiled_imports[0]
