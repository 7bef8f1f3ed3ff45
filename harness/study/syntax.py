"""The command line's ``name[param=1,2,x=3]``, and the values of parameters."""

import itertools
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from adabench.harness.errors import UsageError, unknown
from adabench.harness.machine.namespaces import PREFIX, link_of, slow_pair_of

T = TypeVar("T", bound=msgspec.Struct)

LARGEST = 2**63 - 1
MOST_CELLS = 10_000
"""Maximum number of combinations of a study, so that a mistake is found before memory runs out."""
MOST_SECONDS = 1e9

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NETWORKS = ("loopback", "sockets", "lan", "slow")
_RATE = re.compile(r"\d+(\.\d+)?(kbit|mbit|gbit)(:.*)?")
_LINK = re.compile(r"(\d+(\.\d+)?)(us|ms|s),(\d+(\.\d+)?)(kbit|mbit|gbit)")


class Selection(msgspec.Struct, frozen=True):
    """A plugin's name and, for each parameter, the values to try."""

    name: str
    values: dict[str, list[Any]]


def parse_selections(text: str) -> list[Selection]:
    """Parse ``manual,prefetch[lookahead=0,10,timing=off]``.

    Inside the brackets an item with ``=`` begins a parameter; an item without it is one more value of it. A
    value may contain brackets, as in ``manual[policy=nups[times=50],lapse]``.
    """
    selections = []
    for part in _split_outside_brackets(text):
        match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(\[(.*)\])?\s*", part, re.DOTALL)
        if match is None or not _is_balanced(match[3] or ""):
            raise UsageError(f"{part.strip()!r} is not of the form name or name[param=value,…]")
        selections.append(Selection(match[1], _parse_values(match[3] or "", part.strip())))
    return selections


def parse_one(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and parameters of a single selection with one value for each; None if there are more."""
    selections = parse_selections(text)
    if len(selections) != 1 or any(len(values) != 1 for values in selections[0].values.values()):
        return None
    (selected,) = selections
    return selected.name, {name: values[0] for name, values in selected.values.items()}


def combinations(values: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of one value per parameter; `UsageError` if there are more than `MOST_CELLS`."""
    check_number("combinations", math.prod(map(len, values.values())))
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def check_number(what: str, count: int) -> None:
    """Refuse a study of more than `MOST_CELLS` names, combinations or cells."""
    if count > MOST_CELLS:
        raise UsageError(f"a study has at most {MOST_CELLS} {what}, and this one has {count}: split it")


def convert_params(kind: type[T], given: Mapping[str, Any], owner: str) -> T:
    """Check parameters against a plugin's class and fill in its defaults.

    Parameters
    ----------
    kind : type
        Class ``Params`` or ``Options`` of the plugin.
    given : mapping
        Values as text (from the command line) or already typed (from a study).
    owner : str
        Owner of the parameters for the message, such as ``backend 'prefetch'``.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    typed = {}
    for name, value in given.items():
        if name not in fields:
            raise unknown("parameter", name, fields, f" of {owner}")
        value = _from_text(value, fields[name].type)
        try:
            typed[name] = msgspec.convert(value, fields[name].type, strict=not isinstance(given[name], str))
        except msgspec.ValidationError as error:
            raise UsageError(
                f"parameter {name} of {owner} cannot be {given[name]!r}: {_lower_first(error)}"
                f"{_choices(fields[name].type)}"
            ) from error
        if isinstance(typed[name], int) and not -LARGEST <= typed[name] <= LARGEST:
            raise UsageError(f"parameter {name} of {owner} cannot be {given[name]}: it has more than 64 bits")
    try:
        return kind(**typed)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{owner}: {_lower_first(error)}") from error


def _choices(kind: Any) -> str:
    """The words that a parameter may be, for the end of a message."""
    literals = [one for one in (kind, *typing.get_args(kind)) if typing.get_origin(one) is typing.Literal]
    words = [str(word) for one in literals for word in typing.get_args(one)]
    return f"; there is {', '.join(words)}" if words else ""


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``20m`` or ``1.5h``, which have to be positive."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or not 0 < float(match[1]) < MOST_SECONDS:
        raise UsageError(f"{text!r} is not a duration: write a positive number with s, m or h, such as 20m")
    return float(match[1]) * _UNITS[match[2]]


def parse_network(text: str) -> str:
    """Check a network, such as ``lan``, ``0.5ms,2gbit`` or ``namespaces:lan:0-1/10``.

    It is ``loopback``, ``sockets``, ``lan``, ``slow``, or latency and bandwidth as ``0.5ms,2gbit``. After
    ``namespaces:`` it consists of links between network namespaces, which always are sockets. One link may be
    slower, as in ``namespaces:lan:0-1/10``.
    """
    text = text.strip().lower()
    link, slow = text, None
    if (between := link_of(text)) is not None:
        link, slow = slow_pair_of(between)
    if between is not None and link == "sockets":
        raise UsageError(f"network {text!r}: between namespaces all links are sockets: give {PREFIX}loopback")
    if link in _NETWORKS or _LINK.fullmatch(link):
        if slow is not None and (slow.one == slow.other or slow.times == 0 or link == "loopback"):
            raise UsageError(
                f"network {text!r} slows down no link: after a link that takes time, such as {PREFIX}lan, "
                "name two nodes and how many times slower they are joined, as in :0-1/10"
            )
        return text
    raise UsageError(
        f"unknown network {text!r}: give {', '.join(_NETWORKS)}, 0.5ms,2gbit, or one of them after {PREFIX}"
    )


def check_slow_pair(network: str, nodes: int) -> None:
    """Refuse a network with a slower link between nodes that the cluster does not have."""
    _, slow = slow_pair_of(link_of(network) or "")
    if slow is not None and max(slow.one, slow.other) >= nodes:
        raise UsageError(
            f"network {network} slows down the link between nodes {slow.one} and {slow.other}, "
            f"but {nodes} nodes are 0 to {nodes - 1}"
        )


def parse_networks(text: str) -> list[str]:
    """Check several networks: in ``lan,slow,0.5ms,2gbit``, the last network includes a comma."""
    links: list[str] = []
    for part in text.split(","):
        if links and _RATE.fullmatch(part.strip().lower()):
            links[-1] += f",{part.strip()}"
        else:
            links.append(part)
    return [parse_network(link) for link in links]


def as_list(value: Any) -> list[Any]:
    """Return a list of one value or of a list of values."""
    return list(value) if isinstance(value, list) else [value]


def checked_text(value: Any) -> str:
    """The value, which has to be a text."""
    if not isinstance(value, str):
        raise UsageError(f"{value!r} is not a text")
    return value


def switch(value: Any) -> bool:
    """The value, which has to be true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{value!r} is neither true nor false")
    return value


def between(least: int, value: Any, most: int) -> int:
    """A whole number, also one that is written as text, within limits that are included."""
    try:
        number = msgspec.convert(value, int, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise UsageError(f"{value!r} is not a whole number") from error
    if number < least:
        raise UsageError(f"{number} is too small: it has to be at least {least}")
    if number > most:
        raise UsageError(f"{number} is too large: it can be at most {most}")
    return number


def _from_text(value: Any, kind: Any) -> Any:
    """``on`` and ``off`` for a switch; ``128x64`` for a tuple, because the comma separates values to try."""
    if kind is bool and value in ("on", "off"):
        return value == "on"
    if isinstance(value, str) and typing.get_origin(kind) in (tuple, list):
        return value.split("x")
    return value


def _split_outside_brackets(text: str) -> Iterable[str]:
    if not _is_balanced(text):
        raise UsageError(f"the brackets of {text!r} do not match")
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _is_balanced(text: str) -> bool:
    """Whether every bracket that opens is closed, and none closes before it opens."""
    depths = itertools.accumulate((character == "[") - (character == "]") for character in text)
    last = 0
    for last in depths:
        if last < 0:
            return False
    return last == 0


def _parse_values(text: str, part: str) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    current: list[Any] | None = None
    for item in _split_outside_brackets(text) if text.strip() else []:
        name, equals, value = item.partition("=")
        if "[" in name:  # The bracket belongs to a value: nups[times=50].
            name, equals, value = "", "", item
        if equals:
            if name.strip() in values:
                raise UsageError(f"parameter {name.strip()} is given twice in {part!r}")
            current = values.setdefault(name.strip(), [])
        else:
            value = item
        if current is None or not value.strip() or (equals and not name.strip()):
            raise UsageError(f"{item.strip()!r} in {part!r} is not of the form param=value")
        current.append(value.strip())
    return values


def _lower_first(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
