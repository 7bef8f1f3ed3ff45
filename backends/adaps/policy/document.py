"""The document: a policy as it is written, read and checked by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from adaps import _argument_checks
from adaps.policy.fields import (
    EXCHANGE_AUTO,
    TECHNIQUES,
    WIRES,
    Home,
    PolicyError,
    RowSelection,
    checked_shares,
    toml_numbers,
    toml_string,
)
from adaps.policy.matching import (
    Managed,
    check_fit,
    check_managed,
    managed_by,
    matches,
    resolve_hottest,
)
from adaps.policy.model_parameters import Catalogue, Parameter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FORMAT", "Aggregation", "DataSharing", "MadeFor", "Policy", "Rule", "Synchronization"]

FORMAT = 1
"""Of the documents that this version reads and writes."""
SHARES_EQUAL, SHARES_BY_SPEED = "equal", "speed"
AGGREGATIONS = ("mean", "median", "trimmed_mean", "krum", "suspicion")
MEAN, KRUM = "mean", "krum"
EXPECTS_FAULTY = ("trimmed_mean", "krum", "suspicion")
"""Rules that have to be told how many workers may be wrong."""
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """How the parameters, or the rows, that it matches are managed.

    Attributes
    ----------
    parameters : str
        A qualified name, or a pattern with ``*`` and ``?``; ``tables`` and ``dense`` are the two kinds, and
        ``tables.deep.*`` is a pattern among one of them.
    rows : RowSelection, optional
        Only these rows.
    technique : str
        adaptive, relocation, replication, static or full_replication; of tables also auto, and of dense
        parameters allreduce.
    home : Home
        Who keeps them at first.
    lookahead : int, optional
        Batches that are announced ahead; 0 announces none. None leaves it to who signals intent.
    exchange : "auto" or int
        Changes are exchanged as the server sees fit, or at most every so many clocks.
    wire : str
        How values and changes travel: float32, bfloat16, float16 or int8.
    """

    parameters: str
    rows: RowSelection | None = None
    technique: str = "adaptive"
    home: Home = field(default_factory=Home)
    lookahead: int | None = None
    exchange: str | int = EXCHANGE_AUTO
    wire: str = "float32"

    def __post_init__(self) -> None:
        _checked_text("parameters", self.parameters)
        if self.rows is not None and not isinstance(self.rows, RowSelection):
            object.__setattr__(self, "rows", RowSelection.of(self.rows))
        if not isinstance(self.home, Home):
            object.__setattr__(self, "home", Home.of(self.home))
        _one_of("technique", self.technique, TECHNIQUES)
        _one_of("wire", self.wire, WIRES)
        if self.lookahead is not None:
            _whole("lookahead", self.lookahead, least=0)
        if isinstance(self.exchange, str):
            _one_of("exchange", self.exchange, (EXCHANGE_AUTO,), " or a number of clocks")
        else:
            _whole("exchange", self.exchange, least=1)

    @property
    def matches_all(self) -> bool:
        """Whether every row of every parameter is meant."""
        return self.parameters == "*" and self.rows is None

    def text(self) -> str:
        """As TOML says it, with every field that has a value."""
        lines = ["[[rule]]", f"parameters = {toml_string(self.parameters)}"]
        if self.rows is not None:
            lines.append(f"rows = {self.rows.text()}")
        lines += [f"technique = {toml_string(self.technique)}", f"home = {self.home.text()}"]
        if self.lookahead is not None:
            lines.append(f"lookahead = {self.lookahead}")
        exchange = toml_string(self.exchange) if isinstance(self.exchange, str) else str(self.exchange)
        return "\n".join([*lines, f"exchange = {exchange}", f"wire = {toml_string(self.wire)}"])


@dataclass(frozen=True)
class MadeFor:
    """The model and the cluster that a policy was made for; it is refused for others.

    Attributes
    ----------
    parameters : str, optional
        `Catalogue.sha256` of the model's parameters.
    nodes : int, optional
        Number of nodes.
    """

    parameters: str | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.parameters is not None:
            digits = self.parameters.removeprefix("sha256:") if isinstance(self.parameters, str) else ""
            if len(digits) != 64 or set(digits) - set("0123456789abcdef") or digits == self.parameters:
                raise PolicyError(
                    f"parameters is {self.parameters!r}; it must be sha256: and 64 hexadecimal digits"
                )
        if self.nodes is not None:
            _whole("nodes", self.nodes, least=1)


@dataclass(frozen=True)
class Aggregation:
    """What a step of all workers together makes of their gradients.

    Attributes
    ----------
    rule : str
        ``mean``; ``median``, of each coordinate; ``trimmed_mean``, of each coordinate without the `faulty`
        least and greatest values; ``krum``, the gradient that is nearest to its neighbours; ``suspicion``,
        a mean weighted by the distance to the median, without the farthest if they stand out.
    faulty : int, optional
        How many workers may be wrong at once, 1 or more: of trimmed_mean, krum and suspicion, which need it.
    keep : int, optional
        Of krum: the mean of so many gradients is taken; without it, of 1.
    """

    rule: str = MEAN
    faulty: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        _one_of("aggregation", self.rule, AGGREGATIONS)
        if (self.faulty is not None) != (self.rule in EXPECTS_FAULTY):
            needed = (
                f"takes no faulty = {self.faulty!r}"
                if self.faulty is not None
                else "needs faulty, how many workers may be wrong at once: "
                f'{{ rule = "{self.rule}", faulty = 1 }}'
            )
            raise PolicyError(f"aggregation {self.rule!r} {needed}")
        if self.faulty is not None:
            _whole("aggregation faulty", self.faulty, least=1)
        if self.keep is not None:
            if self.rule != KRUM:
                raise PolicyError(f"aggregation {self.rule!r} takes no keep = {self.keep!r}")
            _whole("aggregation keep", self.keep, least=1)

    @classmethod
    def of(cls, value: Any) -> Aggregation:
        """What stands behind ``aggregation =``.

        Parameters
        ----------
        value : str, dict or Aggregation
            ``"median"``, or ``{"rule": "trimmed_mean", "faulty": 2}``.
        """
        if isinstance(value, Aggregation):
            return value
        if isinstance(value, Mapping):
            _known_fields("aggregation", value, ("rule", "faulty", "keep"))
            if "rule" not in value:
                raise PolicyError(f"aggregation has no rule; valid are {', '.join(AGGREGATIONS)}")
            return cls(**value)
        return cls(value)

    def check(self, workers: int) -> None:
        """Raise `PolicyError` if there are too few workers to tell who is wrong.

        Parameters
        ----------
        workers : int
            Of all nodes together.
        """
        if self.faulty is None:
            return
        least = 2 * self.faulty + (2 if self.rule == KRUM else 0)
        if workers <= least:
            raise PolicyError(
                f"aggregation {self.rule!r} with faulty = {self.faulty} needs more than {least} workers, and "
                f"there {'is 1' if workers == 1 else f'are {workers}'}"
            )
        if self.keep is not None and self.keep > workers - self.faulty:
            raise PolicyError(
                f"aggregation keep is {self.keep}; of {workers} workers, {self.faulty} of them faulty, it "
                f"can be at most {workers - self.faulty}"
            )

    def text(self) -> str:
        """As TOML says it."""
        if self.faulty is None:
            return toml_string(self.rule)
        keep = "" if self.keep is None else f", keep = {self.keep}"
        return f"{{ rule = {toml_string(self.rule)}, faulty = {self.faulty}{keep} }}"


@dataclass(frozen=True)
class Synchronization:
    """When workers see each other's updates, and what becomes of gradients that meet.

    Attributes
    ----------
    every : int
        0: asynchronously. Otherwise all updates of all workers are visible to all every so many steps.
    aggregation : Aggregation
        What a step of all workers together makes of their gradients. Any but the mean needs ``every = 1``.
    """

    every: int = 0
    aggregation: Aggregation = field(default_factory=Aggregation)

    def __post_init__(self) -> None:
        _whole("every", self.every, least=0)
        if not isinstance(self.aggregation, Aggregation):
            object.__setattr__(self, "aggregation", Aggregation.of(self.aggregation))
        if self.aggregation.rule != MEAN and self.every != 1:
            raise PolicyError(
                f"aggregation is {self.aggregation.rule!r} with every = {self.every}; only gradients of the "
                "same step can be compared: it needs every = 1"
            )

    def text(self) -> str:
        """As TOML says it; the mean goes without saying, as it always did."""
        if self.aggregation == Aggregation():
            return f"every = {self.every}"
        return f"every = {self.every}\naggregation = {self.aggregation.text()}"


@dataclass(frozen=True)
class DataSharing:
    """How training samples are shared among workers.

    Attributes
    ----------
    shares : "equal", "speed", or sequence of float
        Equal numbers; in proportion to the speed of each worker's node, which is to be replaced by numbers
        where speeds are known; or each node's part of the samples of a step. These add up to 1.
    """

    shares: str | Sequence[float] = "equal"

    def __post_init__(self) -> None:
        if isinstance(self.shares, str) or not isinstance(self.shares, Sequence):
            _one_of("shares", self.shares, (SHARES_EQUAL, SHARES_BY_SPEED), " or a list of numbers")
            return
        numbers = checked_shares("shares", self.shares)
        if 0.0 in numbers:
            raise PolicyError(f"shares holds 0 for node {numbers.index(0.0)}; every node needs samples")
        object.__setattr__(self, "shares", numbers)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Each node's part; empty unless it is given by numbers."""
        return () if isinstance(self.shares, str) else tuple(self.shares)

    def check(self, nodes: int) -> None:
        """Raise `PolicyError` if the numbers are not those of so many nodes.

        Parameters
        ----------
        nodes : int
            Of the cluster.
        """
        if self.numbers and len(self.numbers) != nodes:
            raise PolicyError(
                f"[data]: shares has {len(self.numbers)} numbers for {nodes} nodes; give one each"
            )

    def text(self) -> str:
        """As TOML says it."""
        return toml_string(self.shares) if isinstance(self.shares, str) else toml_numbers(self.shares)


@dataclass(frozen=True)
class Policy:
    """How each parameter of a model is managed.

    Attributes
    ----------
    name : str
        What people call it.
    rules : sequence of Rule
        The first that matches counts. The last one matches all.
    made_for : MadeFor, optional
        What it was made for.
    synchronization : Synchronization
        When workers see each other's updates.
    data : DataSharing
        How samples are shared among workers.
    source : str
        What messages call it: its file, if it has one. Of no account for equality.
    folder : Path
        Where the files are that its rules name. Of no account for equality.
    evidence : mapping of str to str, number or sequence of str
        Why it is as it is, such as what was predicted and measured. Of no account for what is executed.

    Raises
    ------
    PolicyError
        If a field is wrong, or the last rule does not match all.

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
        _checked_text("name", self.name)
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
        """The policy that manages every parameter by one technique, at home by hash.

        Parameters
        ----------
        technique : str
            As of a `Rule`.
        """
        return cls(technique, [Rule("*", technique=technique)])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a file.

        Parameters
        ----------
        path : path
            A TOML document. Files that its rules name are looked for beside it.

        Raises
        ------
        PolicyError
            Naming the file, and rule and field where they are what is wrong.
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
            TOML.
        source : str
            What messages call it.
        folder : Path
            Where the files are that its rules name.

        Raises
        ------
        PolicyError
            Naming `source`, and rule and field where they are what is wrong.
        """
        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise PolicyError(f"{source}: it is no TOML: {error}") from error
        try:
            return replace(_policy(document), source=source, folder=folder)
        except PolicyError as error:
            raise PolicyError(f"{source}: {error}") from error

    def text(self) -> str:
        """The document, which `parse` makes this policy of again: every field is written out."""
        parts = [f"format = {FORMAT}\nname = {toml_string(self.name)}"]
        if self.made_for is not None:
            lines = ["[made_for]"]
            if self.made_for.parameters is not None:
                lines.append(f"parameters = {toml_string(self.made_for.parameters)}")
            if self.made_for.nodes is not None:
                lines.append(f"nodes = {self.made_for.nodes}")
            parts.append("\n".join(lines))
        parts += [rule.text() for rule in self.rules]
        parts.append(f"[synchronization]\n{self.synchronization.text()}")
        parts.append(f"[data]\nshares = {self.data.text()}")
        if self.evidence:
            said = [f"{name} = {_evidence_text(value)}" for name, value in self.evidence.items()]
            parts.append("\n".join(["[evidence]", *said]))
        return "\n\n".join(parts) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `text` to a file.

        Parameters
        ----------
        path : path
            Replaced if it exists.
        """
        # bytes, as write_text would translate line ends on some systems
        Path(path).write_bytes(self.text().encode("utf-8"))

    def check(self, catalogue: Catalogue, nodes: int, *, force: bool = False) -> None:
        """Raise if it does not fit a model and a number of nodes.

        Parameters
        ----------
        catalogue : Catalogue
            The model's parameters.
        nodes : int
            Of the cluster.
        force : bool
            Also take a policy that was made for another model or cluster.

        Raises
        ------
        PolicyError
            Naming the rule and what does not fit: a parameter or row that is not there, shares of another
            number of nodes, allreduce for a table of rows, a model or cluster that it was not made for.
        """
        made_for = self.made_for
        if made_for is not None and not force:
            if made_for.parameters is not None and made_for.parameters != catalogue.sha256:
                raise PolicyError(
                    f"{self.source}: it was made for another model, whose parameters are "
                    f"{made_for.parameters} and not {catalogue.sha256}; build it again, or take it by force"
                )
            if made_for.nodes is not None and made_for.nodes != nodes:
                raise PolicyError(
                    f"{self.source}: it was made for {made_for.nodes} nodes, not {nodes}; build it again, or "
                    "take it by force"
                )
        try:
            check_fit(self.rules, catalogue, nodes, self.folder)
            if not any(rule.rows is not None and rule.rows.hottest is not None for rule in self.rules):
                check_managed(self.rules, self._managed(catalogue), catalogue)
            self.data.check(nodes)
        except PolicyError as error:
            raise PolicyError(f"{self.source}: {error}") from error

    def managed(self, catalogue: Catalogue) -> list[Managed]:
        """Which rule manages which rows of each parameter, in the catalogue's order.

        Parameters
        ----------
        catalogue : Catalogue
            That `check` has found it to fit.
        """
        try:
            return list(self._managed(catalogue))
        except PolicyError as error:
            raise PolicyError(f"{self.source}: {error}") from error

    def _managed(self, catalogue: Catalogue) -> tuple[Managed, ...]:
        """As `managed` says; what a policy's own ranges lead to is worked out once."""
        if any(rule.rows is not None and rule.rows.ranges is None for rule in self.rules):
            return managed_by(self.rules, catalogue.parameters, self.folder)  # what files hold may change
        parameters = tuple(catalogue.parameters)
        found = self._worked_out.get(parameters)
        if found is None:
            found = managed_by(self.rules, parameters, self.folder)
            self._worked_out.clear()  # a policy is seldom asked about several models
            self._worked_out[parameters] = found
        return found  # and not what is there now: another thread may have asked about another model

    def rule_number(self, catalogue: Catalogue, parameter: str, row: int = 0) -> int:
        """The number, from 1 on, of the rule that manages a row.

        Parameters
        ----------
        catalogue : Catalogue
            The model's parameters.
        parameter : str
            Qualified name.
        row : int
            Of the parameter.

        Raises
        ------
        PolicyError
            If there is no such parameter or row.
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
        """The policy with ranges in place of all other rows, and made for this catalogue's parameters.

        So it needs no file and no access counts any more.

        Parameters
        ----------
        catalogue : Catalogue
            With access counts, if a rule asks for the hottest rows.
        speed_shares : sequence of float, optional
            Each node's part of the speed of all, where that is known: put in the place of `data`'s "speed".

        Raises
        ------
        AccessesMissing
            If counts are needed.
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
    _known_fields("the policy", document, known)
    if "format" not in document:
        raise PolicyError(f"format is missing; this version reads format = {FORMAT}")
    if document["format"] != FORMAT or isinstance(document["format"], bool):
        raise PolicyError(f"format is {document['format']!r}; this version reads format {FORMAT}")
    if "name" not in document:
        raise PolicyError('name is missing; give it one, such as name = "mine"')
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PolicyError("rule must be an array of tables: write [[rule]] above each")
    rules = []
    for number, table in enumerate(tables, 1):
        try:
            fields = ("parameters", "rows", "technique", "home", "lookahead", "exchange", "wire")
            _known_fields("rule", table, fields)
            if "parameters" not in table:
                raise PolicyError('parameters is missing; "*" matches all')
            rules.append(Rule(**table))
        except PolicyError as error:
            raise PolicyError(f"rule {number}: {error}") from error
    made_for = _section(document, "made_for", MadeFor, ("parameters", "nodes"))
    return Policy(
        document["name"],
        rules,
        made_for,
        _section(document, "synchronization", Synchronization, ("every", "aggregation")) or Synchronization(),
        _section(document, "data", DataSharing, ("shares",)) or DataSharing(),
        evidence=document.get("evidence", {}),
    )


def _checked_evidence(given: Any) -> dict[str, str | float | tuple[str, ...]]:
    """Names of letters, digits and underscores; texts, numbers, and lists of texts."""
    if not isinstance(given, Mapping):
        raise PolicyError(f"evidence is {given!r}; it must be a table: write [evidence] above its fields")
    checked: dict[str, str | float | tuple[str, ...]] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise PolicyError(f"[evidence]: {name!r} is no name of letters, digits and underscores")
        if isinstance(value, str):
            _checked_text(f"[evidence]: {name}", value)
            checked[name] = value
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
            checked[name] = value
        elif isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
            for one in value:
                _checked_text(f"[evidence]: {name}", one)
            checked[name] = tuple(value)
        else:
            raise PolicyError(
                f"[evidence]: {name} is {value!r}; it must be a text, a finite number or a list of texts"
            )
    return checked


def _evidence_text(value: str | float | Sequence[str]) -> str:
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    lines = [f"  {toml_string(one)}," for one in value]
    return "\n".join(["[", *lines, "]"])


def _section(document: Mapping[str, Any], name: str, kind: Any, known: Sequence[str]) -> Any:
    if name not in document:
        return None
    if not isinstance(document[name], dict):
        raise PolicyError(
            f"{name} is {document[name]!r}; it must be a table: write [{name}] above its fields"
        )
    try:
        _known_fields(f"[{name}]", document[name], known)
        return kind(**document[name])
    except PolicyError as error:
        raise PolicyError(f"[{name}]: {error}") from error


def _known_fields(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            hint = _argument_checks.nearest(name, known)
            raise PolicyError(f"{owner} has no field {name!r}{hint}; it has {', '.join(known)}")


def _one_of(name: str, value: object, valid: Sequence[str], more: str = "") -> None:
    if value not in valid:
        hint = _argument_checks.nearest(value, valid)
        raise PolicyError(f"{name} {value!r} does not exist{hint}; valid are {', '.join(valid)}{more}")


def _whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise PolicyError(f"{name} is {value!r}; it must be an integer of {least} or more")


def _checked_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{name} is {value!r}; it must be a text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise PolicyError(f"{name} is {value!r}; it must be text that UTF-8 can say") from None
