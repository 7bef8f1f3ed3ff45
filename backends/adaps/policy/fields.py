"""The fields of a rule: where rows are at home, which rows are meant, and what may stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adaps import _argument_checks

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "AUTO",
    "EXCHANGE_AUTO",
    "TECHNIQUES",
    "WIRES",
    "AccessesMissing",
    "Home",
    "PolicyError",
    "RowSelection",
    "checked_shares",
    "toml_numbers",
    "toml_string",
]

AUTO = "auto"
TECHNIQUES = ("adaptive", "relocation", "replication", "static", "full_replication", AUTO, "allreduce")
"""How a rule may manage parameters; `allreduce` is for dense ones only, and `auto` for tables only."""
WIRES = ("float32", "bfloat16", "float16", "int8")
"""Formats that values and changes may travel in."""
EXCHANGE_AUTO = "auto"
SCHEMES = ("hash", "blocks", "node", "shares", "with")
_TOLERANCE = 1e-6
_MOST_LISTED = 20
"""So many ranges of rows are written as a list; more as a text, which takes a TOML parser no time."""
_RANGE = re.compile(r"[0-9]{1,19}:[0-9]{1,19}")


class PolicyError(ValueError):
    """A policy that is wrong, or that does not fit: one sentence that names file, rule and field."""


class AccessesMissing(PolicyError):
    """A policy cannot be built or resolved without knowing how often rows are accessed."""


@dataclass(frozen=True)
class Home:
    """Where rows are at home: who keeps them at first, and is asked for them.

    Attributes
    ----------
    scheme : str
        ``hash`` scatters rows over the nodes; ``blocks`` gives each node an equal range of consecutive rows;
        ``node`` keeps all on one; ``shares`` gives each node a range in proportion; ``with`` puts each row
        where the row with the same number of another table is.
    node : int, optional
        Of ``node``.
    shares : tuple of float, optional
        Of ``shares``: one per node, which add up to 1.
    table : str, optional
        Of ``with``: the other table's qualified name.
    """

    scheme: Literal["hash", "blocks", "node", "shares", "with"] = "hash"
    node: int | None = None
    shares: tuple[float, ...] | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise PolicyError(_unknown("home", self.scheme, SCHEMES))
        given = {"node": self.node, "shares": self.shares, "with": self.table}
        for scheme, value in given.items():
            if (value is not None) != (scheme == self.scheme):
                needed = "needs its value" if scheme == self.scheme else f"takes no {scheme}"
                raise PolicyError(f"home {self.scheme!r} {needed}")
        if self.node is not None and (not _is_int(self.node) or self.node < 0):
            raise PolicyError(f"home node is {self.node!r}; it must be a node's number, from 0 on")
        if self.table is not None and (not isinstance(self.table, str) or not self.table):
            raise PolicyError(f"home with is {self.table!r}; it must be a table's qualified name")
        if self.shares is not None:
            object.__setattr__(self, "shares", checked_shares("home shares", self.shares))

    @classmethod
    def of(cls, value: Any) -> Home:
        """What stands behind ``home =``.

        Parameters
        ----------
        value : str, dict or Home
            ``"hash"``, ``"blocks"``, ``{"node": 2}``, ``{"shares": [0.5, 0.5]}`` or ``{"with": "a.table"}``.
        """
        if isinstance(value, Home):
            return value
        if isinstance(value, str):
            if value in ("hash", "blocks"):
                return cls("hash" if value == "hash" else "blocks")
            raise PolicyError(
                _unknown("home", value, ("hash", "blocks")) + ", { node = … }, { shares = … }, { with = … }"
            )
        if isinstance(value, Mapping) and len(value) == 1:
            ((name, given),) = value.items()
            if name == "node":
                return cls("node", node=given)
            if name == "shares":
                if not isinstance(given, Sequence) or isinstance(given, str):
                    raise PolicyError(f"home shares is {given!r}; it must be a list of numbers")
                return cls("shares", shares=tuple(given))
            if name == "with":
                return cls("with", table=given)
            raise PolicyError(_unknown("field of home", name, ("node", "shares", "with")))
        raise PolicyError(
            f"home is {value!r}; it must be 'hash', 'blocks', {{ node = … }}, {{ shares = … }} or "
            "{ with = … }"
        )

    def text(self) -> str:
        """As TOML says it."""
        if self.node is not None:
            return f"{{ node = {self.node} }}"
        if self.shares is not None:
            return f"{{ shares = {toml_numbers(self.shares)} }}"
        if self.table is not None:
            return f"{{ with = {toml_string(self.table)} }}"
        return toml_string(self.scheme)

    def node_counts(self, rows: int, nodes: int) -> list[float]:
        """How many of a parameter's rows each node is expected to keep; ``with`` as a hash would.

        Parameters
        ----------
        rows, nodes : int
            At least 1.
        """
        if self.scheme == "node":
            return [float(rows) if node == self.node else 0.0 for node in range(nodes)]
        if self.scheme in ("blocks", "shares"):
            bounds = self.block_bounds(rows, nodes)
            return [float(end - start) for start, end in pairwise(bounds)]
        return [rows / nodes] * nodes

    def block_bounds(self, rows: int, nodes: int) -> list[int]:
        """First row of each node's range, and the number of rows, for ``blocks`` and ``shares``.

        Parameters
        ----------
        rows, nodes : int
            At least 1.

        Raises
        ------
        PolicyError
            If shares are not those of so many nodes.
        """
        if self.shares is None:
            return [node * rows // nodes for node in range(nodes + 1)]
        if len(self.shares) != nodes:
            raise PolicyError(f"home shares has {len(self.shares)} numbers for {nodes} nodes; give one each")
        ends = accumulate(self.shares[:-1])
        return [0, *(min(rows, round(end * rows)) for end in ends), rows]


@dataclass(frozen=True)
class RowSelection:
    """Some rows of a parameter; exactly one of the three says which.

    Attributes
    ----------
    ranges : tuple of (int, int), optional
        First row, and the one behind the last; ascending, without overlap.
    file : str, optional
        A NumPy file of int64 row numbers, relative to the policy's own folder.
    hottest : float, optional
        The share of rows with the most accesses, above 0 and at most 1, which `Policy.resolved` replaces by
        ranges where access counts are known.
    """

    ranges: tuple[tuple[int, int], ...] | None = None
    file: str | None = None
    hottest: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("ranges", "file", "hottest") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PolicyError(
                f"rows gives {' and '.join(given) or 'nothing'}; it must give ranges, file or hottest"
            )
        if self.ranges is not None:
            object.__setattr__(self, "ranges", _checked_ranges(self.ranges))
        if self.file is not None and (not isinstance(self.file, str) or not self.file):
            raise PolicyError(f"rows file is {self.file!r}; it must be the name of a NumPy file")
        if self.hottest is not None:
            if not _is_number(self.hottest) or not 0 < self.hottest <= 1:
                raise PolicyError(
                    f"rows hottest is {self.hottest!r}; it must be a share of the rows, above 0 and at most 1"
                )
            object.__setattr__(self, "hottest", float(self.hottest))

    @classmethod
    def of(cls, value: Any) -> RowSelection:
        """What stands behind ``rows =``.

        Parameters
        ----------
        value : dict or RowSelection
            ``{"ranges": [[0, 100]]}``, ``{"ranges": "0:100 5000:5100"}``, ``{"file": "hot.npy"}`` or
            ``{"hottest": 0.001}``.
        """
        if isinstance(value, RowSelection):
            return value
        known = ("ranges", "file", "hottest")
        if not isinstance(value, Mapping):
            raise PolicyError(f"rows is {value!r}; it must be a table with one of {', '.join(known)}")
        for name in value:
            if name not in known:
                raise PolicyError(_unknown("field of rows", name, known))
        return cls(**value)

    @classmethod
    def of_rows(cls, rows: np.ndarray[Any, np.dtype[np.int64]]) -> RowSelection:
        """The selection of these rows, as ranges.

        Parameters
        ----------
        rows : int64 array
            One-dimensional, ascending, without repetition, not empty.
        """
        import numpy as np

        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        starts = rows[np.concatenate([[0], breaks])]
        ends = rows[np.concatenate([breaks - 1, [len(rows) - 1]])] + 1
        return cls(ranges=tuple(zip(starts.tolist(), ends.tolist(), strict=True)))

    def text(self) -> str:
        """As TOML says it."""
        if self.ranges is not None:
            if len(self.ranges) > _MOST_LISTED:
                return f"{{ ranges = '{' '.join(f'{start}:{end}' for start, end in self.ranges)}' }}"
            return f"{{ ranges = [{', '.join(f'[{start}, {end}]' for start, end in self.ranges)}] }}"
        if self.file is not None:
            return f"{{ file = {toml_string(self.file)} }}"
        return f"{{ hottest = {self.hottest!r} }}"

    def selected(self, folder: Path) -> tuple[tuple[int, int], ...]:
        """The rows as ranges.

        Parameters
        ----------
        folder : Path
            That of the policy, where its files are.

        Raises
        ------
        PolicyError
            If the file cannot be read or holds no row numbers, or ``hottest`` has not been resolved.
        """
        if self.ranges is not None:
            return self.ranges
        if self.file is None:
            raise PolicyError(
                "rows hottest needs access counts: `adabench policy build FILE --accesses …` replaces it by "
                "ranges"
            )
        import numpy as np

        path = folder / self.file
        try:
            rows = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise PolicyError(f"rows file {path} cannot be read: {error}") from error
        if not isinstance(rows, np.ndarray):
            raise PolicyError(f"rows file {path} holds several arrays; it must hold one, of row numbers")
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
            raise PolicyError(
                f"rows file {path} holds {rows.dtype} of shape {rows.shape}; it must hold one dimension of "
                "integers, at least one"
            )
        if int(rows.min()) < 0:
            raise PolicyError(f"rows file {path} holds {int(rows.min())}; rows are numbered from 0 on")
        ranges = RowSelection.of_rows(np.unique(rows).astype(np.int64)).ranges
        assert ranges is not None
        return ranges


def toml_string(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_numbers(numbers: Iterable[float]) -> str:
    """An array of TOML."""
    return f"[{', '.join(repr(float(number)) for number in numbers)}]"


def checked_shares(what: str, shares: Sequence[Any]) -> tuple[float, ...]:
    """Numbers of 0 or more that add up to 1; raises `PolicyError`, which names `what`, if they are others."""
    for share in shares:
        if not _is_number(share) or share < 0:
            raise PolicyError(f"{what} holds {share!r}; each must be a number of 0 or more")
    if not shares or abs(sum(shares) - 1) > _TOLERANCE:
        raise PolicyError(f"{what} add up to {sum(shares):.6g}; they must add up to 1")
    return tuple(float(share) for share in shares)


def _unknown(what: str, value: object, valid: Iterable[str]) -> str:
    known = list(valid)
    hint = _argument_checks.nearest(value, known)
    return f"{what} {value!r} does not exist{hint}; valid are {', '.join(known)}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _checked_ranges(given: Any) -> tuple[tuple[int, int], ...]:
    ranges = _spelled_out(given) if isinstance(given, str) else given
    if not isinstance(ranges, Sequence) or not ranges:
        raise PolicyError(
            f"rows ranges is {given!r}; it must be a list of [first, behind the last], or a text such as "
            "'0:100 5000:5100'"
        )
    before = 0
    checked = []
    for one in ranges:
        if not isinstance(one, Sequence) or len(one) != 2 or not all(map(_is_int, one)):
            raise PolicyError(f"rows ranges holds {one!r}; it must be [first, behind the last]")
        start, end = one
        if start < 0 or end <= start:
            raise PolicyError(
                f"rows ranges holds [{start}, {end}], which is no row; rows are numbered from 0 on"
            )
        if start < before:
            raise PolicyError(f"rows ranges holds [{start}, {end}] behind row {before - 1}; they must ascend")
        before = end
        checked.append((start, end))
    return tuple(checked)


def _spelled_out(text: str) -> list[list[int]]:
    """The ranges of a text such as ``"0:100 5000:5100"``."""
    ranges = []
    for one in text.split():
        if not _RANGE.fullmatch(one):
            raise PolicyError(f"rows ranges holds {one!r}; it must be first:behind the last, such as 0:100")
        start, _, end = one.partition(":")
        ranges.append([int(start), int(end)])
    return ranges
