"""The policy document: reading, checking and writing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from adaps.policy.fields import RowSelection
from adaps.policy.matching import Managed, check_fit, check_managed, managed_by, matches, resolve_hottest
from adaps.policy.model_parameters import Catalogue, Parameter
from adaps.policy.rule import Rule
from adaps.policy.sections import SHARES_BY_SPEED, DataSharing, MadeFor, Synchronization
from adaps.policy.toml_text import toml_fields, toml_string, toml_value
from adaps.policy.validation import PolicyError, check_fields, check_text, is_number

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FORMAT", "Policy"]

FORMAT = 1
"""Format of documents that this version reads and writes."""

_Section = TypeVar("_Section")


@dataclass(frozen=True)
class Policy:
    """The management of each parameter of a model.

    Attributes
    ----------
    name : str
        Name of the policy.
    rules : sequence of Rule
        Rules. The first matching rule applies, and the last one matches all parameters.
    made_for : MadeFor, optional
        Model and cluster for which the policy was made.
    synchronization : Synchronization
        Times when workers see each other's updates.
    data : DataSharing
        Distribution of samples to workers.
    source : str
        Name of the policy in messages: its file, if it has one. It is ignored in comparisons.
    folder : Path
        Folder of the files that its rules name. It is ignored in comparisons.
    evidence : mapping of str to str, number or sequence of str
        Reasons for the policy, such as predictions and measurements. They have no effect on the execution.

    Raises
    ------
    PolicyError
        If a field is invalid, or the last rule does not match all parameters.

    Examples
    --------
    >>> import adaps
    >>> policy = adaps.Policy("pinned", [adaps.policy.Rule("emb", technique="static", home={"node": 0}),
    ...                                  adaps.policy.Rule("*")])
    >>> adaps.Policy.parse(policy.text()) == policy
    True
    """

    name: str
    rules: Sequence[Rule]
    made_for: MadeFor | None = None
    synchronization: Synchronization = field(default_factory=Synchronization)
    data: DataSharing = field(default_factory=DataSharing)
    source: str = field(default="the policy", compare=False, repr=False)
    folder: Path = field(default=Path(), compare=False, repr=False)
    evidence: Mapping[str, str | float | Sequence[str]] = field(default_factory=dict)
    _worked_out: dict[tuple[Parameter, ...], tuple[Managed, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "evidence", _checked_evidence(self.evidence))
        check_text("name", self.name)
        if not self.rules:
            raise PolicyError('there is no rule; the last one must match all: parameters = "*"')
        for number, rule in enumerate(self.rules, 1):
            if not isinstance(rule, Rule):
                raise PolicyError(f"rule {number} is {rule!r}; it must be an adaps.policy.Rule")
        last = self.rules[-1]
        if not last.matches_all:
            what = "has rows" if last.parameters == "*" else f"has parameters = {last.parameters!r}"
            raise PolicyError(
                f"rule {len(self.rules)}, the last one, {what}; it must match all: "
                'parameters = "*" without rows'
            )

    @classmethod
    def uniform(cls, technique: str) -> Policy:
        """Return the policy that manages every parameter with one technique and homes by hash.

        Parameters
        ----------
        technique : str
            Technique of the only `Rule`.
        """
        return cls(technique, [Rule("*", technique=technique)])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a file.

        Parameters
        ----------
        path : path
            TOML document. Files that its rules name are searched in the same folder.

        Raises
        ------
        PolicyError
            If the document is invalid. The error names the file, and the rule and the field if they are
            invalid.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise PolicyError(f"{file}: {(error.strerror or str(error)).lower()}") from error
        except UnicodeDecodeError as error:
            raise PolicyError(f"{file}: it is not UTF-8, as a policy must be") from error
        return cls.parse(text, source=str(file), folder=file.parent)

    @classmethod
    def parse(cls, text: str, *, source: str = "the policy", folder: Path = Path()) -> Policy:
        """Read a document.

        Parameters
        ----------
        text : str
            TOML document.
        source : str
            Name of the policy in messages.
        folder : Path
            Folder of the files that its rules name.

        Raises
        ------
        PolicyError
            If the document is invalid. The error names `source`, and the rule and the field if they are
            invalid.
        """
        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise PolicyError(f"{source}: it is not valid TOML: {error}") from error
        try:
            return replace(_policy(document), source=source, folder=folder)
        except PolicyError as error:
            raise PolicyError(f"{source}: {error}") from error

    def text(self) -> str:
        """Return the document with all fields. `parse` creates an equal policy from it."""
        parts = [f"format = {FORMAT}\nname = {toml_string(self.name)}"]
        if self.made_for is not None:
            parts.append(self.made_for.text())
        parts += [rule.text() for rule in self.rules]
        parts += [self.synchronization.text(), toml_fields("[data]", shares=self.data)]
        if self.evidence:
            lines = [f"{name} = {_evidence_text(value)}" for name, value in self.evidence.items()]
            parts.append("\n".join(["[evidence]", *lines]))
        return "\n\n".join(parts) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `text` to a file.

        Parameters
        ----------
        path : path
            File to write. An existing file is replaced.
        """
        # Writes bytes, because write_text translates line ends on some systems.
        Path(path).write_bytes(self.text().encode("utf-8"))

    def check(self, catalogue: Catalogue, nodes: int, *, force: bool = False) -> None:
        """Raise an error if the policy does not fit a model and a number of nodes.

        Parameters
        ----------
        catalogue : Catalogue
            Parameters of the model.
        nodes : int
            Number of nodes of the cluster.
        force : bool
            Whether to accept a policy that was made for another model or cluster.

        Raises
        ------
        PolicyError
            If the policy does not fit. The error names the rule and the reason: a parameter or row that does
            not exist, shares for another number of nodes, allreduce for a table, or another model or cluster.
        """
        made_for = self.made_for
        if made_for is not None and not force:
            if made_for.parameters is not None and made_for.parameters != catalogue.sha256:
                raise PolicyError(
                    f"{self.source}: it was made for another model, whose parameters are "
                    f"{made_for.parameters} and not {catalogue.sha256}; build it again, or accept it by force"
                )
            if made_for.nodes is not None and made_for.nodes != nodes:
                raise PolicyError(
                    f"{self.source}: it was made for {made_for.nodes} nodes, not {nodes}; build it again, or "
                    "accept it by force"
                )
        try:
            check_fit(self.rules, catalogue, nodes, self.folder)
            if not any(rule.rows is not None and rule.rows.hottest is not None for rule in self.rules):
                check_managed(self.rules, self._managed(catalogue), catalogue)
            self.data.check(nodes)
        except PolicyError as error:
            raise PolicyError(f"{self.source}: {error}") from error

    def managed(self, catalogue: Catalogue) -> list[Managed]:
        """Return the rules that manage the rows of each parameter, in the catalogue's order.

        Parameters
        ----------
        catalogue : Catalogue
            Catalogue that the policy fits: `check` accepts it.
        """
        try:
            return list(self._managed(catalogue))
        except PolicyError as error:
            raise PolicyError(f"{self.source}: {error}") from error

    def _managed(self, catalogue: Catalogue) -> tuple[Managed, ...]:
        """Compute the result of `managed`, once per catalogue unless it depends on files or access counts."""
        if any(rule.rows is not None and rule.rows.ranges is None for rule in self.rules):
            # the contents of files may change
            return managed_by(self.rules, catalogue.parameters, self.folder)
        parameters = tuple(catalogue.parameters)
        found = self._worked_out.get(parameters)
        if found is None:
            found = managed_by(self.rules, parameters, self.folder)
            self._worked_out.clear()  # a policy is rarely used with several models
            self._worked_out[parameters] = found
        return found  # not self._worked_out[parameters], which another thread may have replaced

    def rule_number(self, catalogue: Catalogue, parameter: str, row: int = 0) -> int:
        """Return the number of the rule that manages a row, counted from 1.

        Parameters
        ----------
        catalogue : Catalogue
            Parameters of the model.
        parameter : str
            Qualified name of the parameter.
        row : int
            Index of the row.

        Raises
        ------
        PolicyError
            If the parameter or the row does not exist.
        """
        found = catalogue.parameter(parameter)
        if not 0 <= row < found.rows:
            raise PolicyError(
                f"{parameter} has no row {row}; it has {found.rows}, from 0 to {found.rows - 1}"
            )
        for number, rule in enumerate(self.rules, 1):
            if matches(rule.parameters, found):
                ranges = None if rule.rows is None else rule.rows.selected(self.folder)
                if ranges is None or any(start <= row < end for start, end in ranges):
                    return number
        raise AssertionError("the last rule matches all")

    def resolved(self, catalogue: Catalogue, speed_shares: Sequence[float] | None = None) -> Policy:
        """Return the policy with explicit ranges of rows, made for this catalogue's parameters.

        The result needs no files or access counts.

        Parameters
        ----------
        catalogue : Catalogue
            Parameters of the model, with access counts if a rule selects the hottest rows.
        speed_shares : sequence of float, optional
            Each node's part of the total speed, if known. It replaces "speed" in `data`.

        Raises
        ------
        AccessesMissing
            If access counts are needed and missing.
        PolicyError
            If a file of rows cannot be read.
        """
        rules: list[Rule] = []
        for number, rule in enumerate(self.rules, 1):
            try:
                if rule.rows is None or rule.rows.ranges is not None:
                    rules.append(rule)
                elif rule.rows.hottest is None:
                    rows = RowSelection(ranges=rule.rows.selected(self.folder))
                    rules.append(replace(rule, rows=rows))
                else:
                    hottest = resolve_hottest(rule.parameters, rule.rows.hottest, catalogue)
                    rules += [replace(rule, parameters=name, rows=rows) for name, rows in hottest]
            except PolicyError as error:
                raise type(error)(f"{self.source}: rule {number}: {error}") from error
        nodes = None if self.made_for is None else self.made_for.nodes
        data = self.data
        if speed_shares is not None and data.shares == SHARES_BY_SPEED:
            data = DataSharing(tuple(speed_shares))
        return replace(self, rules=tuple(rules), made_for=MadeFor(catalogue.sha256, nodes), data=data)


def _policy(document: Mapping[str, Any]) -> Policy:
    known = ("format", "name", "made_for", "rule", "synchronization", "data", "evidence")
    check_fields("the policy", document, known)
    if "format" not in document:
        raise PolicyError(f"format is missing; this version reads format = {FORMAT}")
    if document["format"] != FORMAT or isinstance(document["format"], bool):
        raise PolicyError(f"format is {document['format']!r}; this version reads format {FORMAT}")
    if "name" not in document:
        raise PolicyError('name is missing; give it one, such as name = "mine"')
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PolicyError("rule must be an array of tables: write [[rule]] above each")
    return Policy(
        document["name"],
        [_rule(number, table) for number, table in enumerate(tables, 1)],
        _section(document, "made_for", MadeFor),
        _section(document, "synchronization", Synchronization) or Synchronization(),
        _section(document, "data", DataSharing) or DataSharing(),
        evidence=document.get("evidence", {}),
    )


def _rule(number: int, table: Mapping[str, Any]) -> Rule:
    try:
        check_fields("rule", table, _names(Rule))
        if "parameters" not in table:
            raise PolicyError('parameters is missing; "*" matches all')
        return Rule(**table)
    except PolicyError as error:
        raise PolicyError(f"rule {number}: {error}") from error


def _section(document: Mapping[str, Any], name: str, kind: type[_Section]) -> _Section | None:
    if name not in document:
        return None
    if not isinstance(document[name], dict):
        raise PolicyError(
            f"{name} is {document[name]!r}; it must be a table: write [{name}] above its fields"
        )
    try:
        check_fields(f"[{name}]", document[name], _names(kind))
        return kind(**document[name])
    except PolicyError as error:
        raise PolicyError(f"[{name}]: {error}") from error


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]


def _checked_evidence(given: Any) -> dict[str, str | float | tuple[str, ...]]:
    """Return checked evidence: texts, numbers and lists of texts, with valid names."""
    if not isinstance(given, Mapping):
        raise PolicyError(f"evidence is {given!r}; it must be a table: write [evidence] above its fields")
    checked: dict[str, str | float | tuple[str, ...]] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise PolicyError(f"[evidence]: {name!r} is not a name of letters, digits and underscores")
        if isinstance(value, str):
            check_text(f"[evidence]: {name}", value)
            checked[name] = value
        elif is_number(value):
            checked[name] = value
        elif isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
            for one in value:
                check_text(f"[evidence]: {name}", one)
            checked[name] = tuple(value)
        else:
            raise PolicyError(
                f"[evidence]: {name} is {value!r}; it must be a text, a finite number or a list of texts"
            )
    return checked


def _evidence_text(value: str | float | Sequence[str]) -> str:
    if isinstance(value, (str, int, float)):
        return toml_value(value)
    return "\n".join(["[", *(f"  {toml_string(one)}," for one in value), "]"])
