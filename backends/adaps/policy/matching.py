"""Assignment of rules to rows, and checks whether a policy's rules fit a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaps import _argument_checks
from adaps.policy.fields import RowSelection
from adaps.policy.model_parameters import Catalogue, Parameter
from adaps.policy.validation import AccessesMissing, PolicyError

if TYPE_CHECKING:
    from adaps.policy.rule import Rule

__all__ = ["Managed", "Part", "check_fit", "check_managed", "managed_by", "matches", "resolve_hottest"]

_KINDS = {"tables": "table", "dense": "dense"}


@dataclass(frozen=True)
class Part:
    """The rows of a parameter that one rule manages.

    Attributes
    ----------
    rule : int
        Number of the rule, counted from 1.
    ranges : tuple of (int, int)
        First row and row after the last of each range, ascending.
    """

    rule: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True)
class Managed:
    """The management of the rows of one parameter.

    Attributes
    ----------
    parameter : Parameter
        Parameter that is managed.
    parts : tuple of Part
        Parts in the order of the rules. Together they contain each row once.
    """

    parameter: Parameter
    parts: tuple[Part, ...]


def matches(pattern: str, parameter: Parameter) -> bool:
    """Whether the `parameters` field of a rule matches a parameter.

    Parameters
    ----------
    pattern : str
        Pattern as in `Rule`.
    parameter : Parameter
        Parameter of a model.
    """
    if pattern == parameter.name:
        return True
    kind, dot, rest = pattern.partition(".")
    if kind in _KINDS:
        of_kind = parameter.kind == _KINDS[kind]
        return of_kind and (not dot or fnmatch.fnmatchcase(parameter.name, rest))
    return fnmatch.fnmatchcase(parameter.name, pattern)


def managed_by(rules: Sequence[Rule], parameters: Iterable[Parameter], folder: Path) -> tuple[Managed, ...]:
    """Return the rows of each parameter that each rule manages. The first matching rule applies."""
    return tuple(_managed_by(rules, parameter, folder) for parameter in parameters)


def _managed_by(rules: Sequence[Rule], parameter: Parameter, folder: Path) -> Managed:
    left = [(0, parameter.rows)]
    parts = []
    for number, rule in enumerate(rules, 1):
        if not left:
            break
        if not matches(rule.parameters, parameter):
            continue
        try:
            wanted = ((0, parameter.rows),) if rule.rows is None else rule.rows.selected(folder)
        except PolicyError as error:
            raise PolicyError(f"rule {number}: {error}") from error
        taken = list(_common(left, wanted))
        if taken:
            parts.append(Part(number, tuple(taken)))
            left = list(_without(left, taken))
    return Managed(parameter, tuple(parts))


def check_fit(rules: Sequence[Rule], catalogue: Catalogue, nodes: int, folder: Path) -> None:
    """Raise PolicyError, which names the rule, if a rule does not fit a model and a number of nodes.

    `check_managed` makes the checks that depend on the management of other parameters.
    """
    for number, rule in enumerate(rules, 1):
        try:
            _check_rule(rule, catalogue, nodes, folder)
        except PolicyError as error:
            raise PolicyError(f"rule {number}: {error}") from error


def check_managed(rules: Sequence[Rule], managed: Iterable[Managed], catalogue: Catalogue) -> None:
    """Raise PolicyError, which names the rule, if fitting rules cannot manage the parameters together."""
    homes = {}
    for one in managed:
        parameter = one.parameter
        _check_of_tables(rules, one)
        for part in one.parts:
            rule = rules[part.rule - 1]
            if rule.technique == "allreduce" and parameter.kind == "table":
                raise PolicyError(
                    f"rule {part.rule}: technique 'allreduce' is for dense parameters; {parameter.name} is a "
                    "table of rows"
                )
            if rule.home.table is not None:
                homes[parameter.name] = (part.rule, rule.home.table)
    for name, (number, table) in homes.items():
        _check_home_with(name, number, table, homes, catalogue)


def resolve_hottest(pattern: str, share: float, catalogue: Catalogue) -> Iterator[tuple[str, RowSelection]]:
    """Yield the hottest rows, at least one, of each parameter that a pattern matches."""
    for parameter in catalogue.parameters:
        if not matches(pattern, parameter):
            continue
        counts = catalogue.accesses.get(parameter.name)
        if counts is None:
            raise AccessesMissing(
                f"rows hottest needs access counts of {parameter.name}: `adabench accesses` writes them"
            )
        wanted = max(1, round(share * parameter.rows))
        import numpy as np

        # The sort is stable: of rows with equal numbers of accesses, the ones with lower indices are
        # selected.
        hottest = np.argsort(-counts, kind="stable")[:wanted]
        yield parameter.name, RowSelection.of_rows(np.sort(hottest).astype(np.int64))


def _check_rule(rule: Rule, catalogue: Catalogue, nodes: int, folder: Path) -> None:
    found = [one for one in catalogue.parameters if matches(rule.parameters, one)]
    if not found and rule.parameters != "*" and rule.parameters.partition(".")[0] not in _KINDS:
        if not set(rule.parameters) & set("*?["):
            catalogue.parameter(rule.parameters)
        names = [one.name for one in catalogue.parameters]
        hint = _argument_checks.nearest(rule.parameters, names)
        raise PolicyError(
            f"parameters {rule.parameters!r} matches no parameter{hint}; there are {', '.join(names)}"
        )
    home = rule.home
    if home.node is not None and home.node >= nodes:
        raise PolicyError(f"home node is {home.node}; there are {nodes} nodes, from 0 to {nodes - 1}")
    if home.shares is not None:
        home.block_bounds(1, nodes)
    if rule.rows is None or rule.rows.hottest is not None:
        return
    last = rule.rows.selected(folder)[-1][1] - 1
    for parameter in found:
        if last >= parameter.rows:
            raise PolicyError(
                f"rows names row {last}; {parameter.name} has {parameter.rows}, from 0 to "
                f"{parameter.rows - 1}"
            )


def _check_of_tables(rules: Sequence[Rule], managed: Managed) -> None:
    """Check the fields of rules that only tables, or only tables with ids, can have."""
    parameter = managed.parameter
    is_table = parameter.kind == "table"
    found = "a table without ids" if is_table else "a dense parameter"
    any_id = "any row can get any id"
    for field, fits, kind, reason in (
        ("evict", parameter.has_ids, "tables with ids", any_id),
        ("admit", parameter.has_ids, "tables with ids", any_id),
        ("memory", is_table, "tables", "the rows share the memory"),
    ):
        values = {part.rule: getattr(rules[part.rule - 1], field) for part in managed.parts}
        for number, value in values.items():
            if value is not None and not fits:
                raise PolicyError(
                    f"rule {number}: {field} = {value.text()} is for {kind}; {parameter.name} is {found}: "
                    f"give {field} in a rule whose parameters are {kind}"
                )
        if len(set(values.values())) > 1:
            raise PolicyError(
                f"rules {' and '.join(map(str, values))} give rows of {parameter.name} different values of "
                f"{field}, but {reason}; give all rows of the table one rule"
            )


def _check_home_with(
    name: str, number: int, table: str, homes: dict[str, tuple[int, str]], catalogue: Catalogue
) -> None:
    """Check a rule that gives the rows of a table the homes of another table's rows."""
    try:
        other = catalogue.parameter(table)
    except PolicyError as error:
        raise PolicyError(f"rule {number}: home with: {error}") from None
    own = catalogue.parameter(name)
    if table in homes:
        raise PolicyError(
            f"rule {number}: home with: {name} follows {table}, which follows {homes[table][1]}; "
            "name a table that follows no other table"
        )
    if other.rows != own.rows:
        raise PolicyError(
            f"rule {number}: home with: {name} has {own.rows} rows and {table} {other.rows}; a table can "
            f"only follow a table with the same number of rows"
        )


def _common(left: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    place = 0
    for start, end in left:
        while place < len(wanted) and wanted[place][1] <= start:
            place += 1
        at = place
        while at < len(wanted) and wanted[at][0] < end:
            yield max(start, wanted[at][0]), min(end, wanted[at][1])
            at += 1


def _without(left: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    remaining = iter(taken)
    current = next(remaining, None)
    for start, end in left:
        while current is not None and current[0] < end:
            if start < current[0]:
                yield start, current[0]
            start = current[1]
            current = next(remaining, None)
        if start < end:
            yield start, end
