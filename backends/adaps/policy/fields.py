"""Fields of a rule: the homes of rows, and the selection of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from adaps.policy.toml_text import toml_value
from adaps.policy.validation import PolicyError, check_one_of, checked_shares, is_number

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EXCHANGE_AUTO", "TECHNIQUES", "WIRES", "Home", "RowSelection"]

TECHNIQUES = ("adaptive", "relocation", "replication", "static", "full_replication", "allreduce")
"""Techniques of rules. `allreduce` is only for dense parameters."""
WIRES = ("float32", "bfloat16", "float16", "int8")
"""Formats of values and changes in messages."""
EXCHANGE_AUTO = "auto"
_MOST_LISTED = 20
"""Maximum number of row ranges written as a list. TOML parsers read more of them faster as one text."""
_RANGE = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")

_Scheme = Literal["hash", "blocks", "node", "shares", "with"]
_WITH_VALUE = {"node": "node", "shares": "shares", "with": "table"}
"""Schemes that need a value, and the attribute with the value."""


@dataclass(frozen=True)
class Home:
    """The home nodes of rows. A home node owns its rows at first, and records their current owner.

    Attributes
    ----------
    scheme : str
        Scheme. ``hash`` distributes rows over the nodes. ``blocks`` gives each node an equal range of
        consecutive rows. ``node`` selects one node for all rows. ``shares`` gives each node a range of the
        given share. ``with`` gives each row the home of the row with the same index in another table.
    node : int, optional
        Node for the scheme ``node``.
    shares : tuple of float, optional
        One number per node for the scheme ``shares``. The numbers add up to 1.
    table : str, optional
        Qualified name of the other table for the scheme ``with``.
    """

    scheme: _Scheme = "hash"
    node: int | None = None
    shares: tuple[float, ...] | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        check_one_of("home", self.scheme, get_args(_Scheme))
        for scheme, attribute in _WITH_VALUE.items():
            if (getattr(self, attribute) is not None) != (scheme == self.scheme):
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
        """Return the home for the value of ``home`` in a document.

        Parameters
        ----------
        value : str, dict or Home
            Value such as ``"hash"``, ``"blocks"``, ``{"node": 2}``, ``{"shares": [0.5, 0.5]}`` or ``{"with":
            "a.table"}``.
        """
        if isinstance(value, Home):
            return value
        if isinstance(value, str):
            others = ", { node = … }, { shares = … }, { with = … }"
            check_one_of("home", value, ("hash", "blocks"), others)
            return cls("hash" if value == "hash" else "blocks")
        if not isinstance(value, Mapping) or len(value) != 1:
            raise PolicyError(
                f"home is {value!r}; it must be 'hash', 'blocks', {{ node = … }}, {{ shares = … }} or "
                "{ with = … }"
            )
        ((scheme, given),) = value.items()
        check_one_of("field of home", scheme, tuple(_WITH_VALUE))
        if scheme == "shares":
            if not isinstance(given, Sequence) or isinstance(given, str):
                raise PolicyError(f"home shares is {given!r}; it must be a list of numbers")
            given = tuple(given)
        return cls(scheme, **{_WITH_VALUE[scheme]: given})

    def text(self) -> str:
        """Return the value of ``home`` as TOML."""
        if self.scheme in _WITH_VALUE:
            return toml_value({self.scheme: getattr(self, _WITH_VALUE[self.scheme])})
        return toml_value(self.scheme)

    def node_counts(self, rows: int, nodes: int) -> list[float]:
        """Return the expected number of a parameter's rows on each node; ``with`` is counted as a hash.

        Parameters
        ----------
        rows, nodes : int
            Numbers of rows and of nodes, at least 1.
        """
        if self.scheme == "node":
            return [float(rows) if node == self.node else 0.0 for node in range(nodes)]
        if self.scheme in ("blocks", "shares"):
            bounds = self.block_bounds(rows, nodes)
            return [float(end - start) for start, end in pairwise(bounds)]
        return [rows / nodes] * nodes

    def block_bounds(self, rows: int, nodes: int) -> list[int]:
        """Return the first row of each node's range, and the number of rows, for ``blocks`` and ``shares``.

        Parameters
        ----------
        rows, nodes : int
            Numbers of rows and of nodes, at least 1.

        Raises
        ------
        PolicyError
            If the number of shares differs from `nodes`.
        """
        if self.shares is None:
            return [node * rows // nodes for node in range(nodes + 1)]
        if len(self.shares) != nodes:
            raise PolicyError(f"home shares has {len(self.shares)} numbers for {nodes} nodes; give one each")
        ends = accumulate(self.shares[:-1])
        return [0, *(min(rows, round(end * rows)) for end in ends), rows]


@dataclass(frozen=True)
class RowSelection:
    """A selection of a parameter's rows by exactly one of three attributes.

    Attributes
    ----------
    ranges : tuple of (int, int), optional
        First row of each range, and the row after its last. Ranges are ascending and do not overlap.
    file : str, optional
        NumPy file of int64 row numbers, relative to the policy's folder.
    hottest : float, optional
        Share of the rows with the most accesses, above 0 and at most 1. `Policy.resolved` replaces it by
        ranges if access counts are known.
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
            if not is_number(self.hottest) or not 0 < self.hottest <= 1:
                raise PolicyError(
                    f"rows hottest is {self.hottest!r}; it must be a share of the rows, above 0 and at most 1"
                )
            object.__setattr__(self, "hottest", float(self.hottest))

    @classmethod
    def of(cls, value: Any) -> RowSelection:
        """Return the selection for the value of ``rows`` in a document.

        Parameters
        ----------
        value : dict or RowSelection
            Value such as ``{"ranges": [[0, 100]]}``, ``{"ranges": "0:100 5000:5100"}``, ``{"file":
            "hot.npy"}`` or ``{"hottest": 0.001}``.
        """
        if isinstance(value, RowSelection):
            return value
        known = ("ranges", "file", "hottest")
        if not isinstance(value, Mapping):
            raise PolicyError(f"rows is {value!r}; it must be a table with one of {', '.join(known)}")
        for name in value:
            check_one_of("field of rows", name, known)
        return cls(**value)

    @classmethod
    def of_rows(cls, rows: np.ndarray[Any, np.dtype[np.int64]]) -> RowSelection:
        """Return the selection of these rows, as ranges.

        Parameters
        ----------
        rows : int64 array
            Row numbers, one-dimensional, ascending, without repetition, not empty.
        """
        import numpy as np

        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        starts = rows[np.concatenate([[0], breaks])]
        ends = rows[np.concatenate([breaks - 1, [len(rows) - 1]])] + 1
        return cls(ranges=tuple(zip(starts.tolist(), ends.tolist(), strict=True)))

    def text(self) -> str:
        """Return the value of ``rows`` as TOML."""
        if self.ranges is not None and len(self.ranges) > _MOST_LISTED:
            return f"{{ ranges = '{' '.join(f'{start}:{end}' for start, end in self.ranges)}' }}"
        given = {"ranges": self.ranges, "file": self.file, "hottest": self.hottest}
        return toml_value({name: value for name, value in given.items() if value is not None})

    def selected(self, folder: Path) -> tuple[tuple[int, int], ...]:
        """Return the rows as ranges.

        Parameters
        ----------
        folder : Path
            Folder of the policy, which contains its files.

        Raises
        ------
        PolicyError
            If the file cannot be read or does not contain row numbers, or if ``hottest`` has not been
            resolved.
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


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_ranges(given: Any) -> tuple[tuple[int, int], ...]:
    ranges = _ranges_in_text(given) if isinstance(given, str) else given
    if not isinstance(ranges, Sequence) or not ranges:
        raise PolicyError(
            f"rows ranges is {given!r}; it must be a list of [first, end], or a text such as "
            "'0:100 5000:5100'"
        )
    before = 0
    checked = []
    for one in ranges:
        if not isinstance(one, Sequence) or len(one) != 2 or not all(map(_is_int, one)):
            raise PolicyError(f"rows ranges holds {one!r}; it must be [first, end]")
        start, end = one
        if start < 0 or end <= start:
            raise PolicyError(
                f"rows ranges holds [{start}, {end}], which is no range of rows; rows are numbered from 0 on"
            )
        if start < before:
            raise PolicyError(f"rows ranges holds [{start}, {end}] behind row {before - 1}; they must ascend")
        before = end
        checked.append((start, end))
    return tuple(checked)


def _ranges_in_text(text: str) -> list[list[int]]:
    """Return the ranges of a text such as ``"0:100 5000:5100"``."""
    ranges = []
    for one in text.split():
        if not (found := _RANGE.fullmatch(one)):
            raise PolicyError(f"rows ranges holds {one!r}; it must be first:end, such as 0:100")
        ranges.append([int(end) for end in found.groups()])
    return ranges
