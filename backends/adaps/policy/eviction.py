"""Fields of a rule for tables: which rows are given to other ids, which ids get a row, and the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaps import _argument_checks
from adaps._core import MAX_ADMIT_SEEN, MAX_TTL
from adaps.policy.toml_text import toml_value
from adaps.policy.validation import PolicyError, check_fields, check_one_of, check_whole

__all__ = ["ORDERS", "Admission", "Eviction", "Memory"]

ORDERS = ("intent", "lru", "lfu")
"""Orders in which rows are retired, besides the time since their last use."""
_TTL = "ttl"


@dataclass(frozen=True)
class Eviction:
    """The order in which the rows of a full table are retired, that is, given to other ids.

    Attributes
    ----------
    order : str
        Order. ``intent`` retires rows that no intent announces, the least likely to be used first. ``lru``
        retires the row that was not used for the longest time, and ``lfu`` the row with the fewest uses.
        ``ttl`` retires only rows that were not used for `ttl` clocks.
    ttl : int, optional
        Number of clocks for the order ``ttl``.
    """

    order: str
    ttl: int | None = None

    def __post_init__(self) -> None:
        check_one_of("evict", self.order, (*ORDERS, _TTL))
        if (self.ttl is not None) != (self.order == _TTL):
            needed = "needs its number of clocks" if self.order == _TTL else "takes no ttl"
            raise PolicyError(f"evict {self.order!r} {needed}")
        if self.ttl is not None:
            check_whole("evict ttl", self.ttl, least=1, most=MAX_TTL)

    @classmethod
    def of(cls, value: Any) -> Eviction:
        """Return the order for the value of ``evict`` in a document.

        Parameters
        ----------
        value : str, dict or Eviction
            Value such as ``"intent"`` or ``{"ttl": 1000}``.
        """
        if isinstance(value, Eviction):
            return value
        if isinstance(value, Mapping):
            check_fields("evict", value, (_TTL,))
            return cls(_TTL, value.get(_TTL))
        check_one_of("evict", value, ORDERS, ", { ttl = … }")
        return cls(value)

    def text(self) -> str:
        """Return the value of ``evict`` as TOML."""
        return toml_value(self.order if self.ttl is None else {_TTL: self.ttl})


@dataclass(frozen=True)
class Admission:
    """The ids that get a row.

    Attributes
    ----------
    seen : int
        Number of requests of an id after which it has a row, from 1 to 8. In earlier requests,
        `Worker.rows_of` returns -1. An id is forgotten after about 0.65 times as many other ids without a row
        as the table has rows.
    """

    seen: int

    def __post_init__(self) -> None:
        check_whole("admit seen", self.seen, least=1, most=MAX_ADMIT_SEEN)

    @classmethod
    def of(cls, value: Any) -> Admission:
        """Return the admission for the value of ``admit`` in a document.

        Parameters
        ----------
        value : dict or Admission
            Value such as ``{"seen": 3}``.
        """
        if isinstance(value, Admission):
            return value
        if not isinstance(value, Mapping):
            raise PolicyError(f"admit is {value!r}; it must be {{ seen = … }}")
        check_fields("admit", value, ("seen",))
        seen: Any = value.get("seen")
        return cls(seen)

    def text(self) -> str:
        """Return the value of ``admit`` as TOML."""
        return toml_value({"seen": self.seen})


@dataclass(frozen=True)
class Memory:
    """The maximum memory for the rows of a table on each node. Other rows are in files.

    Attributes
    ----------
    size : int
        Number of bytes.
    """

    size: int

    @classmethod
    def of(cls, value: Any) -> Memory:
        """Return the limit for the value of ``memory`` in a document.

        Parameters
        ----------
        value : int, str or Memory
            Number of bytes, or text such as ``"2GiB"``.
        """
        if isinstance(value, Memory):
            return value
        try:
            return cls(_argument_checks.byte_count("memory", value))
        except (TypeError, ValueError) as error:
            raise PolicyError(str(error)) from error

    def text(self) -> str:
        """Return the value of ``memory`` as TOML."""
        return toml_value(_argument_checks.byte_text(self.size))
